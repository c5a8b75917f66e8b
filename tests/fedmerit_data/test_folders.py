"""Folders that are complete or absent."""

import shutil

import pytest

from fedmerit.errors import BadInput
from fedmerit_data import folders
from fedmerit_data.folders import is_occupied, new_folder, partial_folder, partial_path, require_free


def test_an_absent_or_empty_folder_is_free(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full" / "inner").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    taken = {name: is_occupied(tmp_path / name) for name in ("absent", "empty", "full", "file")}
    assert taken == {"absent": False, "empty": False, "full": True, "file": True}
    for name, full in taken.items():
        if full:
            with pytest.raises(BadInput, match=f"{name}: is not empty; name a new folder"):
                require_free(tmp_path / name)
        else:
            require_free(tmp_path / name)


def test_a_partial_folder_is_for_one_at_a_time_and_outlives_the_block(tmp_path):
    out = tmp_path / "new" / "sites"
    with partial_folder(out) as folder:
        assert folder == partial_path(out)
        (folder / "half").write_text("done")
        with pytest.raises(BadInput, match="sites: another process is preparing it"), partial_folder(out):
            pytest.fail("let in")
    with partial_folder(out) as folder:
        assert (folder / "half").read_text() == "done"


def _stopped_half_way(folder):
    (folder / "half").touch()
    raise KeyboardInterrupt


def test_a_new_folder_is_whole_or_absent(tmp_path):
    out = tmp_path / "within" / "sites"
    left = partial_path(out) / "new" / "of a killed process"
    left.mkdir(parents=True)
    with new_folder(out) as folder:
        assert list(folder.iterdir()) == []
        (folder / "whole").touch()
        assert not out.exists()
    assert [path.name for path in out.iterdir()] == ["whole"]
    with pytest.raises(BadInput, match="sites: is not empty"), new_folder(out):
        pytest.fail("let in")
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "within" / "others") as folder:
        _stopped_half_way(folder)
    assert [path.name for path in (tmp_path / "within").iterdir()] == ["sites"]


def test_a_folder_that_the_other_process_removed_meanwhile_is_not_taken(tmp_path, monkeypatch):
    """It came to its end between our opening of the lock and our locking it."""
    out = tmp_path / "sites"
    monkeypatch.setattr(folders.fcntl, "flock", lambda *_: shutil.rmtree(partial_path(out)))
    with pytest.raises(BadInput, match="another process"), partial_folder(out):
        pytest.fail("let in")
