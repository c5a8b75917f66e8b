"""All of a partition: patients, links, label noise, twins, and nothing left after an error."""

import json
import re
import shutil
from collections import Counter

import pytest
from layouts import prepare, prostate_site
from one_in import one_in

from fedmerit.errors import BadInput
from fedmerit.files import sha256
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS
from fedmerit.schema.site_folder import open_sites
from fedmerit_data.check import check
from fedmerit_lab.partitioning import site_writer
from fedmerit_lab.partitioning.partition import partition
from fedmerit_lab.partitioning.scheme import Scheme

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
    return prepared(folder, server_share=0.3, seed=15)


def patients(folder):
    """(site, split) of every patient; each is in one place only."""
    places = {}
    for site in open_sites(folder):
        for split, cases in site.splits.items():
            for case in cases:
                assert places.setdefault(case.patient, (site.name, split)) == (site.name, split)
    return places


def sizes(folder, split):
    counts = Counter(site for site, there in patients(folder).values() if there == split)
    return [counts[site.name] for site in open_sites(folder)]


def checksums(folder):
    return {path.relative_to(folder): sha256(path) for path in folder.rglob("*") if path.is_file()}


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.mark.parametrize("scheme", one_in(2, SCHEMES), ids=str)
def test_every_patient_is_split_once_and_stays_in_its_split(sources, tmp_path, scheme):
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


@pytest.mark.parametrize(
    ("out", "options", "message"),
    [
        ("out", {"label_noise": {"HK": 0.2}}, "label noise HK: no such site; there are site-1, site-2, site-3"),
        ("out", {"inverted": ["site-1"]}, "inverted site-1: no such site"),
        ("sources/out", {}, "need separate folders, neither within the other"),
        ("full", {}, "full: is not empty"),
    ],
)
def test_unusable_options_and_folders_are_refused_before_anything_is_written(sources, tmp_path, out, options, message):
    shutil.copytree(sources, tmp_path / "sources")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("keep")
    before = checksums(tmp_path)
    with pytest.raises(BadInput, match=message):
        partition(tmp_path / "sources", tmp_path / out, UNIFORM, **options)
    assert checksums(tmp_path) == before


def test_sites_of_other_spacing_or_without_an_array_are_refused(sources, tmp_path):
    shutil.copytree(sources, tmp_path / "sources")
    lost = next((tmp_path / "sources" / "UCL" / "cases").glob("*_label.npy"))
    lost.rename(tmp_path / "label.npy")
    with pytest.raises(BadInput, match=re.escape(f"{lost}: file not found")):
        partition(tmp_path / "sources", tmp_path / "out", UNIFORM)
    edit(tmp_path / "sources" / "UCL" / "site.json", lambda info: info.update(spacing=[2.0, 2.0]))
    with pytest.raises(BadInput, match=r"UCL: has spacing \[2.0, 2.0\] mm, but HK \[1.0, 1.0\]; prepare sites alike"):
        partition(tmp_path / "sources", tmp_path / "out", UNIFORM)
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing(sources, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(site_writer, "write_json", fail)
    with pytest.raises(BadInput, match=r"out: cannot be written \(.*No space left on device\); make room"):
        partition(sources, tmp_path / "out", UNIFORM)
    assert list(tmp_path.iterdir()) == []


# Folds


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    """HK with 12 and UCL with 9 patients in three folds."""
    folder = tmp_path_factory.mktemp("folded")
    prostate_site(folder / "raw" / "HK", cases=12, seed=1)
    prostate_site(folder / "raw" / "UCL", cases=9, seed=2)
    return prepared(folder, folds=3)


def fold_tests(folder, fold):
    return {case.patient: site.name for site in open_sites(folder, fold=fold) for case in site.cases("testing")}


@pytest.mark.parametrize("scheme", [UNIFORM, Scheme("powerlaw", 3), Scheme("uniform", 2, outlier=("UCL",))])
def test_partition_with_folds_keeps_each_patient_at_one_site_and_in_its_fold(folded, tmp_path, scheme):
    partition(folded, tmp_path / "out", scheme, folds=True)
    home = {}
    for fold in range(3):
        assert fold_tests(tmp_path / "out", fold).keys() == fold_tests(folded, fold).keys()
        for site in open_sites(tmp_path / "out", fold=fold):
            for split in SPLITS:
                assert site.cases(split)
                for case in site.cases(split):
                    assert home.setdefault(case.patient, site.name) == site.name
    assert len(home) == 21
    if scheme.outlier:
        ucl = {case.patient for cases in open_sites(folded, ["UCL"])[0].splits.values() for case in cases}
        assert {site for patient, site in home.items() if patient in ucl} == {"site-2"}
    assert check(tmp_path / "out") == []
    listed = {case.patient for site in open_sites(tmp_path / "out") for case in site.cases("testing")}
    assert listed == fold_tests(folded, 0).keys()


@pytest.mark.parametrize(
    ("options", "words"), [({"label_noise": {"site-1": 1.0}}, "label noise"), ({"duplicate": ["site-1"]}, "duplicate")]
)
def test_partition_with_folds_refuses_what_would_be_tested_as_it_was_trained(folded, tmp_path, options, words):
    with pytest.raises(BadInput, match=f"folds: {words}"):
        partition(folded, tmp_path / "out", UNIFORM, folds=True, **options)
    assert not (tmp_path / "out").exists()


def test_partition_with_folds_of_sites_without_says_so(sources, tmp_path):
    with pytest.raises(BadInput, match="folds: HK none, UCL none"):
        partition(sources, tmp_path / "out", UNIFORM, folds=True)
