"""Folders of studies: nothing is left half made, and an old one continues with what it was made for only."""

import pytest
from run_factory import make_sites, prepare_again

from fedmerit.engines import resumption, runs
from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.schema.configuration.data import Preprocessing
from fedmerit.schema.site_folder import open_sites, read_site_digests
from fedmerit_evaluation.studies.study import (
    DIGESTS,
    open_server_sites,
    recorded_digests,
    require_same,
    require_same_images,
    require_unchanged,
)

# Folders in the making


@pytest.mark.parametrize(
    ("asked", "reported"),
    [
        ({"rounds": 4}, "rounds 3"),
        ({"site_names": ["A"]}, "site names A, B"),
        ({"device": "cpu"}, "no device"),  # was not asked for
        ({"rounds": None, "device": "cuda"}, "rounds 3; no device"),
    ],
)
def test_require_unchanged_names_former_option(tmp_path, asked, reported):
    before = {"rounds": 3, "site_names": ["A", "B"]}
    write_json(tmp_path / "asked.json", before)
    with pytest.raises(BadInput) as refused:
        require_unchanged(tmp_path / "asked.json", before | asked)
    assert (
        str(refused.value)
        == f"{tmp_path}: holds trainings with {reported}. Use the same options, or choose another --out"
    )


def test_require_same_images_rejects_other_sites(tmp_path):
    """As far as they are the same: a comparison may continue with others beside its runs."""
    record, sites = tmp_path / "asked.json", make_sites(tmp_path / "sites", ("A", "B"), size=32)
    require_same_images(record, open_sites(sites))
    write_json(record, {"rounds": 3, DIGESTS: read_site_digests(open_sites(sites))})
    require_unchanged(record, {"rounds": 3})
    make_sites(sites, ("C",), size=32)
    require_same_images(record, open_sites(sites))
    prepare_again(sites / "A")
    require_same_images(record, open_sites(sites, ["B", "C"]))
    with pytest.raises(BadInput, match=f"{sites}: A is not what {tmp_path} was started with"):
        require_same_images(record, open_sites(sites))


def test_require_unchanged_accepts_moved_sites(tmp_path):
    record, asked = tmp_path / "asked.json", {"sites": "here", "rounds": 3}
    write_json(record, asked)
    with pytest.raises(BadInput, match=r"holds trainings with sites here\."):
        require_unchanged(record, asked | {"sites": "there"})
    write_json(record, asked | {DIGESTS: {"A": "0" * 64}})
    require_unchanged(record, asked | {"sites": "there"})
    with pytest.raises(BadInput, match=r"holds trainings with rounds 3\."):
        require_unchanged(record, {"sites": "there", "rounds": 4})


def test_require_unchanged_accepts_moved_server_sites(tmp_path):
    record, own = tmp_path / "asked.json", make_sites(tmp_path / "own", ("S",), size=32)
    asked = {"sites": "here", "server_sites": str(own), "rounds": 3}
    write_json(record, asked | recorded_digests([], open_sites(own)))
    moved = asked | {"server_sites": str(own.rename(tmp_path / "moved"))}
    require_unchanged(record, moved)
    require_same_images(record, [], open_server_sites(moved))
    with pytest.raises(BadInput, match=f"holds trainings with server sites {own}"):
        require_unchanged(record, {"sites": "here", "rounds": 3})
    write_json(record, {"sites": "here", "rounds": 3} | recorded_digests([], []))
    with pytest.raises(BadInput, match="holds trainings with no server sites"):
        require_unchanged(record, moved)
    write_json(record, asked | recorded_digests([], open_server_sites(moved)))
    prepare_again(tmp_path / "moved" / "S")
    with pytest.raises(BadInput, match=f"moved: S is not what {tmp_path} was started with"):
        require_same_images(record, [], open_server_sites(moved))


@pytest.fixture
def asked(tmp_path):
    """Options of a run of two sites, which is created in ``run``."""
    sites = make_sites(tmp_path / "sites", ("A", "B"), size=32)
    options = {"method": "fedavg", "sites": sites, "rounds": 2, "seed": 1, "engine": "local", "settings": {"lr": "0.1"}}
    runs.create(tmp_path / "run", **options)
    return options


def test_require_same_ignores_preprocessing(tmp_path, asked):
    file = tmp_path / "run" / "run.json"
    info = read_json(file)
    assert "preprocessing" not in info["plan"]  # these sites do not say
    info["plan"]["preprocessing"] = Preprocessing((32, 32)).to_dict()
    write_json(file, info)
    require_same(tmp_path / "run", asked, open_sites(asked["sites"]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 3}, r"was started with rounds 2, not 3; resume it with the same, or choose another --out$"),
        ({"settings": {}}, r"settings \{'lr': '0.1'\}, not \{\}; .*, or choose another --out$"),
    ],
)
def test_require_same_rejects_other_options(tmp_path, asked, changes, words):
    with pytest.raises(BadInput, match=words):
        require_same(tmp_path / "run", asked | changes, open_sites(asked["sites"]))


def test_require_same_rejects_other_sites(tmp_path, asked):
    with pytest.raises(BadInput, match=r"started with the sites A, B, .*sites now holds A, B, C; give it the same"):
        require_same(tmp_path / "run", asked, open_sites(make_sites(asked["sites"], ("A", "B", "C"), size=32)))


def test_require_same_rejects_other_defaults(tmp_path, asked):
    """Of settings that nobody gave: the batch."""
    file = tmp_path / "run" / "run.json"
    info = read_json(file)
    assert info["plan"]["training"]["lr"] == 0.1
    info["plan"]["training"]["batch_size"] += 1
    write_json(file, info | {"fedmerit_version": "0.0.9"})
    with pytest.raises(BadInput, match=r"no longer the defaults \(fedmerit 0\.0\.9 wrote it\); choose another --out"):
        require_same(tmp_path / "run", asked, open_sites(asked["sites"]))


def test_require_same_rejects_missing_server_sites(tmp_path, asked):
    own = make_sites(tmp_path / "own", ("S",), size=32)
    folder = tmp_path / "with_server"
    runs.create(folder, **asked, server_sites=own)
    require_same(folder, asked | {"server_sites": own}, open_sites(asked["sites"]))
    with pytest.raises(BadInput, match=f"with_server: was started with --server-sites {own}; give it the same"):
        require_same(folder, asked, open_sites(asked["sites"]))


def test_require_same_accepts_moved_images_of_finished_run(tmp_path, asked, monkeypatch):
    folder, own = tmp_path / "with_server", make_sites(tmp_path / "own", ("S",), size=32)
    runs.create(folder, **asked, server_sites=own)
    monkeypatch.setattr(resumption, "is_finished", lambda run, rounds: True)
    before = (folder / "run.json").read_bytes()
    moved = asked | {
        "sites": asked["sites"].rename(tmp_path / "moved"),
        "server_sites": own.rename(tmp_path / "moved_own"),
    }
    require_same(folder, moved, open_sites(moved["sites"]))
    assert (folder / "run.json").read_bytes() == before
    prepare_again(moved["server_sites"] / "S")
    with pytest.raises(BadInput, match=f"was started with server_sites '{own}', not"):
        require_same(folder, moved, open_sites(moved["sites"]))
