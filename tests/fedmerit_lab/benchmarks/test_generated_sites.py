"""Generated sites for benchmarks: made once, and copied."""

from pathlib import Path

import pytest
from run_factory import make_sites

from fedmerit.schema.site_folder import open_sites
from fedmerit_lab.benchmarks import generated_sites as module
from fedmerit_lab.benchmarks.generated_sites import generated_sites


@pytest.fixture
def asked(monkeypatch):
    """The preparations; two tiny sites replace their sites."""
    asked = []

    def prepare(preparation, out):
        asked.append(preparation)
        make_sites(Path(out), ("site1", "site2"), size=16)

    monkeypatch.setattr(module, "prepare", prepare)
    return asked


def test_sites_are_generated_once_for_each_size_and_share(asked, tmp_path):
    for _ in range(2):
        assert generated_sites(tmp_path, 48) == tmp_path / "sites" / "48px"
        shared = generated_sites(tmp_path, 48, server_share=0.2)
        assert shared != tmp_path / "sites" / "48px"
    assert [(one.kind, one.size, one.server_share) for one in asked] == [
        ("synthetic-prostate", 48, 0.0),
        ("synthetic-prostate", 48, 0.2),
    ]


def test_copies_of_the_first_site_have_its_images(asked, tmp_path):
    root = generated_sites(tmp_path, 48, 3)
    folders = open_sites(root)
    assert [folder.name for folder in folders] == ["site001", "site002", "site003"]
    original = (tmp_path / "sites" / "48px" / "site1" / "training0_image.npy").read_bytes()
    assert all((folder.path / "training0_image.npy").read_bytes() == original for folder in folders)
    (root / "site002" / "site.json").unlink()  # an interrupted copy is made again
    (root / "site003" / "kept").touch()
    assert generated_sites(tmp_path, 48, 3) == root
    assert len(open_sites(root)) == 3
    assert (root / "site003" / "kept").exists()
    assert len(asked) == 1


def test_an_interrupted_copy_is_made_again(asked, monkeypatch, tmp_path):
    generated_sites(tmp_path, 48)
    with monkeypatch.context() as interrupted:
        interrupted.setattr(module, "write_json", lambda path, content: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            generated_sites(tmp_path, 48, 1)
    assert [folder.name for folder in open_sites(generated_sites(tmp_path, 48, 1))] == ["site001"]
