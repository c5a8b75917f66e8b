"""All of a partition: patients, links, label noise, twins, and nothing left after an error."""

import json
import os
import re
import shutil
from collections import Counter

import numpy as np
import pytest
from layouts import prepare, prostate_site, save_nifti, volume
from one_in import one_in

from fedmerit.errors import BadInput
from fedmerit.files import sha256
from fedmerit.trainers.monai_trainer.data import SERVER_SPLIT, SPLITS, open_sites
from fedmerit_data.check import check
from fedmerit_data.partition import partition
from fedmerit_data.partitioning import site_writer
from fedmerit_data.partitioning.label_noise import RULES
from fedmerit_data.partitioning.scheme import Scheme

UNIFORM = Scheme("uniform", 3)
SCHEMES = [
    UNIFORM,
    Scheme("powerlaw", 3, seed=1),
    Scheme("powerlaw", 4, exponent=0.5),
    Scheme("dirichlet", 3, alpha=0.1),
    Scheme("dirichlet", 3, alpha=100, classes="size", seed=2),
    Scheme("dirichlet", 2, classes="intensity"),
    Scheme("variety", 3),
]


def prepared(folder, **options):
    prepare("prostate-multisite", folder / "sites", source=folder / "raw", size=24, field_of_view=24, **options)
    return folder / "sites"


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """HK with 14 and UCL with 10 patients; of the 7 and 5 to train on, 2 each are the server's."""
    folder = tmp_path_factory.mktemp("sources")
    prostate_site(folder / "raw" / "HK", cases=14, seed=1)
    prostate_site(folder / "raw" / "UCL", cases=10, seed=2)
    return prepared(folder, server_share=0.3)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """One site of 40 patients: prostates grow from case to case, and are the brighter the later before the 20th."""
    folder = tmp_path_factory.mktemp("single")
    for case in range(40):
        mask = np.zeros((48, 40, 4), np.uint8)
        mask[2 : 4 + case, 3:37, 1:3] = 1
        voxels = volume([5, case], mask.shape) + mask * np.int16(40 * ((case + 20) % 40))
        save_nifti(folder / "raw" / "HK" / f"Case{case:02d}.nii.gz", voxels)
        save_nifti(folder / "raw" / "HK" / f"Case{case:02d}_segmentation.nii.gz", mask)
    prepare("prostate-multisite", folder / "sites", source=folder / "raw", size=48, field_of_view=48)
    return folder / "sites"


def patients(folder):
    """(site, split) of every patient; each stands in one place alone."""
    places = {}
    for site in open_sites(folder):
        for split, cases in site.splits.items():
            for case in cases:
                assert places.setdefault(case.patient, (site.name, split)) == (site.name, split)
    return places


def sizes(folder, split):
    counts = Counter(site for site, there in patients(folder).values() if there == split)
    return [counts[site.name] for site in open_sites(folder)]


def members(site, *splits):
    return {case.patient for split in splits for case in site.cases(split)}


def checksums(folder):
    return {path.relative_to(folder): sha256(path) for path in folder.rglob("*") if path.is_file()}


def about(folder, site):
    return json.loads((folder / site / "site.json").read_text())


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("scheme", one_in(2, SCHEMES), ids=str)
def test_every_patient_is_dealt_once_and_stays_in_its_split(sources, tmp_path, scheme):
    before = checksums(sources)
    folders = partition(sources, tmp_path / "out", scheme)
    assert [folder.name for folder in folders] == [f"site-{site}" for site in range(1, scheme.into + 1)]
    after = {patient: split for patient, (_, split) in patients(tmp_path / "out").items()}
    assert after == {patient: split for patient, (_, split) in patients(sources).items()}
    for split in (*SPLITS, SERVER_SPLIT):
        assert min(sizes(tmp_path / "out", split)) >= 1
    assert check(tmp_path / "out") == []
    assert checksums(sources) == before
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_the_same_seed_gives_the_same_bytes(sources, tmp_path):
    for out in ("first", "again"):
        partition(sources, tmp_path / out, Scheme("dirichlet", 3, seed=4), label_noise={"site-2": 0.5})
    partition(sources, tmp_path / "other", Scheme("dirichlet", 3, seed=5), label_noise={"site-2": 0.5})
    assert checksums(tmp_path / "first") == checksums(tmp_path / "again")
    assert patients(tmp_path / "first") != patients(tmp_path / "other")


def test_a_duplicated_site_trains_on_the_same_and_tests_on_its_own(sources, tmp_path):
    partition(sources, tmp_path / "out", UNIFORM, duplicate=["site-2"])
    by_name = {site.name: site for site in open_sites(tmp_path / "out")}
    tests = [members(site, "testing") for site in by_name.values()]
    assert sum(map(len, tests)) == len(set.union(*tests))
    assert about(tmp_path / "out", "site-2-copy")["partition"]["copy_of"] == "site-2"
    found = check(tmp_path / "out")
    twice = len(members(by_name["site-2"], "training", "validation"))
    assert Counter(finding.kind for finding in found) == {"patient in two sites": twice, "copy": twice}
    assert {(finding.site, finding.split) for finding in found} == {
        ("site-2-copy", split) for split in ("training", "validation")
    }


@pytest.mark.parametrize("rule", one_in(2, RULES))
def test_label_noise_is_in_the_stated_training_masks_alone(single, tmp_path, rule):
    partition(single, tmp_path / "clean", UNIFORM)
    noise = {"site-1": 0.4, "site-3": 1.0}
    before = checksums(single)
    partition(single, tmp_path / "noisy", UNIFORM, label_noise=noise, noise_rule=rule)
    assert checksums(single) == before
    for clean, noisy in zip(open_sites(tmp_path / "clean"), open_sites(tmp_path / "noisy"), strict=True):
        wrong = {}
        for split, cases in clean.splits.items():
            for case, other in zip(cases, noisy.cases(split), strict=True):
                assert case.name == other.name
                assert os.path.samefile(case.image_file, other.image_file)
                differs = np.flatnonzero((case.label != other.label).any(axis=(1, 2, 3))).tolist()
                assert split == "training" or not differs
                assert os.path.samefile(case.label_file, other.label_file) == (not differs)
                if differs:
                    wrong[case.name] = differs
        share = noise.get(clean.name)
        shown = sum(int(case.label.any(axis=(1, 2, 3)).sum()) for case in clean.cases("training"))
        number = 0 if share is None else int(share * shown + 0.5)
        assert sum(map(len, wrong.values())) == number
        stated = noisy.info["partition"]["label_noise"]
        assert stated == (None if share is None else {"rule": rule, "share": share, "slices": wrong})
    told = {finding.kind for finding in check(tmp_path / "noisy")}
    assert told <= ({"label convention"} if rule == "invert" else set())


def test_bad_options(sources, tmp_path):
    for options, message in (
        ({"label_noise": {"HK": 0.2}}, "label noise HK: no such site; there are site-1, site-2, site-3"),
        ({"inverted": ["site-1"]}, "inverted site-1: no such site"),
    ):
        with pytest.raises(BadInput, match=message):
            partition(sources, tmp_path / "out", UNIFORM, **options)
        assert list(tmp_path.iterdir()) == []


def test_bad_folders(sources, tmp_path):
    with pytest.raises(BadInput, match="no site folders in it"):
        partition(tmp_path, tmp_path.parent / "out", UNIFORM)
    with pytest.raises(BadInput, match="need separate folders, neither within the other"):
        partition(sources, sources / "out", UNIFORM)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("keep")
    with pytest.raises(BadInput, match="full: is not empty"):
        partition(sources, tmp_path / "full", UNIFORM)


def other_spacing(folder):
    edit(folder / "UCL" / "site.json", lambda info: info.update(spacing=[2.0, 2.0]))
    return r"UCL: has spacing \[2.0, 2.0\] mm, but HK \[1.0, 1.0\]; prepare sites alike to partition them together"


def lost_array(folder):
    file = next((folder / "UCL" / "cases").glob("*_label.npy"))
    file.unlink()
    return re.escape(f"{file}: file not found")


@pytest.mark.parametrize("harm", [other_spacing, lost_array])
def test_bad_sources(sources, tmp_path, harm):
    shutil.copytree(sources, tmp_path / "sources")
    message = harm(tmp_path / "sources")
    with pytest.raises(BadInput, match=message):
        partition(tmp_path / "sources", tmp_path / "out", UNIFORM)
    assert list(tmp_path.iterdir()) == [tmp_path / "sources"]


def test_a_full_disk_leaves_nothing(sources, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(site_writer, "write_json", fail)
    with pytest.raises(BadInput, match=r"out: cannot be written \(.*No space left on device\); make room"):
        partition(sources, tmp_path / "out", UNIFORM)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_four_hospitals(real_data, tmp_path):
    """35 patients of four real hospitals: BIDMC 6, HK 9, RUNMC 10, UCL 10."""
    prepare("prostate-multisite", tmp_path / "sites", source=real_data / "prostate", size=32)
    noise = {"site-4": 0.4}
    partition(tmp_path / "sites", tmp_path / "sizes", Scheme("powerlaw", 5), label_noise=noise, split_site=["site-5"])
    partition(tmp_path / "sites", tmp_path / "kinds", Scheme("dirichlet", 4, alpha=0.1))
    tests = {name for name, (_, split) in patients(tmp_path / "sites").items() if split == "testing"}
    for out in (tmp_path / "sizes", tmp_path / "kinds"):
        assert [str(finding) for finding in check(out)] == []
        assert {name for name, (_, split) in patients(out).items() if split == "testing"} == tests
    training = sizes(tmp_path / "sizes", "training")
    assert training[:4] == sorted(training[:4])
