"""What is said of the record, each from a run that holds no more than it takes."""

import hashlib
from pathlib import Path

import pytest
from dossier_files import made_run
from run_factory import make_run, write_ledger

from evaluation.dossier import record_facts
from evaluation.dossier.file import File, open_file
from evaluation.dossier.record_facts import access, checks, privacy, site_logs
from evaluation.results.run_folders import open_runs
from fedmerit.verification.verify import Verified


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        (None, ""),
        ([], "Updates left the sites without a privacy filter. No claim of anonymity is made."),
        (["he", "gaussian"], "Updates passed he, gaussian. No claim of anonymity is made."),
    ],
)
def test_which_filters_updates_passed(tmp_path: Path, filters: list[str] | None, said: str) -> None:
    assert privacy(File([made_run(tmp_path, privacy=filters)], [])) == said


def test_models_are_named_with_their_digests(tmp_path: Path) -> None:
    (tmp_path / "run" / "models").mkdir(parents=True)
    (tmp_path / "run" / "models" / "global.pt").write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    assert access(File([made_run(tmp_path / "run")], [])) == f"Models in run/models: global.pt (SHA-256 {digest})."


def test_what_is_encrypted_is_not_said_to_be_checked(tmp_path: Path) -> None:
    for filters, checked in (([], "every reply"), (["he"], "of every reply what is not encrypted")):
        run = make_run(tmp_path / checked, method="fedce", rounds=2, privacy=filters)
        write_ledger(run, [{"round": 1, "rejected": {"Cedar": "late"}}])
        assert checks(open_file(open_runs([run]), None)).startswith(f"The server checked {checked} before use")


@pytest.mark.parametrize(("left", "said"), [((), ""), (("a", "b"), " Not shown by them: a; b.")])
def test_what_sites_logs_leave_open_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: tuple[str, ...], said: str
) -> None:
    run = make_run(tmp_path / "run", method="fedce", rounds=2)
    write_ledger(run, [{"round": 1}])
    (run / "sites" / "Cedar").mkdir(parents=True)
    (run / "sites" / "Cedar" / "site_log.jsonl").touch()
    monkeypatch.setattr(record_facts, "verify_run", lambda path, logs: Verified(2, None, {"Cedar": 2}, not_shown=left))
    told = site_logs(open_file(open_runs([run]), None))
    assert told == f"Sites' own logs agree with the ledger: Cedar 2 updates.{said}"
