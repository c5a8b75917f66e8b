"""What would be read, before anything is written."""

import pytest
from made_photographs import write_photographs

from fedmerit.errors import BadInput
from fedmerit_data.preparation import Preparation
from fedmerit_data.prepare import describe

LABELS = {"disc": (1, 2), "cup": (2,)}


def test_what_would_be_read(tmp_path):
    source = write_photographs(tmp_path / "raw")
    (source / "A" / "notes.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    one, other = describe(Preparation("generic", source=source, labels=LABELS))
    assert sorted(tmp_path.rglob("*")) == before
    reported = "\n".join(one.lines(("disc", "cup")))
    for part in ("site A: 4 cases of 4 patients", "0.png", "48 x 56 pixels, 3 channel(s)", "label cup:", "notes.txt"):
        assert part in reported
    assert not one.faults
    assert not other.faults


def test_what_cannot_be_prepared_so(tmp_path, fedmerit, monkeypatch):
    source = write_photographs(tmp_path / "raw", sites=("A",), count=2)
    (one,) = describe(Preparation("generic", source=source, labels={"disc": (1,)}))
    assert len(one.faults) == 2
    assert "2 patient(s)" in one.faults[0]
    assert "--labels" in one.faults[1]
    monkeypatch.chdir(tmp_path)
    reported = fedmerit("prepare", "generic", "--source", source, "--labels", "disc=1", "--describe")
    assert reported.exit_code == 1
    assert "cannot be prepared" in reported.output
    with pytest.raises(BadInput, match="generates"):
        describe(Preparation("synthetic-prostate"))
