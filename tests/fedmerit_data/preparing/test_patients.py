"""Patients as a table names them; sites that are only tested on."""

import pytest
from layouts import prepare, prostate_site

from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.trainers.monai_trainer.data import SiteFolder, open_sites
from fedmerit_data.check import examine
from fedmerit_data.checking.findings import Severity
from fedmerit_data.partition import partition
from fedmerit_data.partitioning.scheme import Scheme

FIELD = {"size": 32, "field_of_view": 24.0}
HEADER = "site,case,patient\n"


@pytest.fixture
def source(tmp_path):
    prostate_site(tmp_path / "raw" / "UCL", cases=5)
    return tmp_path / "raw"


def patients(site):
    return {case.name: case.patient for cases in site.splits.values() for case in cases}


def prepared(source, out, **options):
    (folder,) = prepare("prostate-multisite", out, source=source, **FIELD, **options)
    return SiteFolder(folder)


def test_cases_of_one_patient_stay_in_one_split(source, tmp_path):
    names = sorted(patients(prepared(source, tmp_path / "without")))
    table = tmp_path / "patients.csv"
    table.write_text(HEADER + "".join(f"UCL,{name},one\n" for name in names[:3]))
    for seed in range(5):
        site = prepared(source, tmp_path / str(seed), patient_table=table, seed=seed)
        found = patients(site)
        assert [found[name] for name in names[:3]] == ["UCL-one"] * 3
        assert len(set(found.values())) == 3
        homes = {split for split, cases in site.splits.items() for case in cases if case.patient == "UCL-one"}
        assert len(homes) == 1
        assert len(site.info["patient_table"]) == 64


def test_hospitals_that_number_their_patients_alike_share_none(source, tmp_path):
    prostate_site(source / "HK", cases=4, seed=1)
    table = tmp_path / "patients.csv"
    cases = [("UCL", number) for number in range(5)] + [("HK", number) for number in range(4)]
    table.write_text(HEADER + "".join(f"{site},Case{number:02d},{number}\n" for site, number in cases))
    prepare("prostate-multisite", tmp_path / "sites", source=source, patient_table=table, **FIELD)
    hk, ucl = open_sites(tmp_path / "sites")
    assert sorted(patients(hk).values()) == ["HK-0", "HK-1", "HK-2", "HK-3"]
    assert sorted(patients(ucl).values()) == ["UCL-0", "UCL-1", "UCL-2", "UCL-3", "UCL-4"]
    assert not examine(tmp_path / "sites").of(Severity.error)
    partition(tmp_path / "sites", tmp_path / "parts", Scheme("uniform", 2))


def test_a_case_joins_the_patient_of_another_that_is_not_in_the_table(source, tmp_path):
    """By the name in datalist.json."""
    first, second, *_ = sorted(patients(prepared(source, tmp_path / "without")))
    table = tmp_path / "patients.csv"
    table.write_text(HEADER + f"UCL,{second},UCL-{first}\n")
    found = patients(prepared(source, tmp_path / "with", patient_table=table))
    assert found[first] == found[second] == f"UCL-{first}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER + "UCL,Case77,one\n", "site UCL has no case Case77; name cases as datalist.json"),
        (HEADER + "UCL,CASE,one\nUCL,CASE,two\n", "line 3: case CASE of site UCL is listed twice"),
        (HEADER + "UCL,CASE,\n", "line 2: expected a value in each of the columns site, case, patient"),
        ("case,patient\nCASE,one\n", "has no column site; expected the columns site, case, patient"),
        (b"\xff\xfe\x00", "not a readable table"),
        (None, "not a readable table"),
    ],
)
def test_a_table_that_cannot_be_used(source, tmp_path, content, message):
    name = min(patients(prepared(source, tmp_path / "without")))
    table = tmp_path / "patients.csv"
    if isinstance(content, bytes):
        table.write_bytes(content)
    elif content is not None:
        table.write_text(content.replace("CASE", name))
    with pytest.raises(BadInput, match=message.replace("CASE", name)) as error:
        prepared(source, tmp_path / "sites", patient_table=table)
    assert str(table) in str(error.value)
    assert not (tmp_path / "sites").exists()


def test_a_site_that_is_only_tested_on(source, tmp_path):
    site = prepared(source, tmp_path / "sites", ratios=(0.0, 0.0, 1.0), server_share=0.5)
    assert {split: len(cases) for split, cases in site.splits.items() if cases} == {"testing": 5}
    found = examine(tmp_path / "sites")
    assert not found.of(Severity.error)
    noted = {finding.split for finding in found.findings if finding.kind == "no such split"}
    assert noted == {"training", "validation"}
    assert [folder.name for folder in open_sites(tmp_path / "sites")] == ["UCL"]
    with pytest.raises(BadInput, match="site UCL: its training split is empty; prepare it with ratios above 0"):
        runs.create(tmp_path / "run", method="standalone", sites=tmp_path / "sites")
    assert not (tmp_path / "run").exists()
