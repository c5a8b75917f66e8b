"""Sybil attacks: site folders in which one site takes part under two names."""

import pytest

from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites
from fedmerit.trainers.monai.samples import Slices
from fedmerit_lab.attacks.attacked_runs import sybil_names, write_sybils


def arrays(folder) -> set[int]:
    return {case.image_file.stat().st_ino for cases in folder.splits.values() for case in cases}


def test_a_duplicated_site_is_linked(sites, tmp_path):
    write_sybils("duplicate", sites, "site2", tmp_path / "out")
    made, before = ({folder.name: folder for folder in open_sites(root)} for root in (tmp_path / "out", sites))
    assert set(made) == {*before, "site2-copy"}
    for name, folder in made.items():
        original = before[name.removesuffix("-copy")]
        assert arrays(folder) == arrays(original)
        assert folder.info["counts"]["training"] == {"cases": 5, "patients": 5, "slices": 15}
        folder.require_arrays()
    assert made["site2-copy"].info["copy_of"] == "site2"


def test_the_halves_of_a_split_site_share_no_training_patient(sites, tmp_path):
    write_sybils("split", sites, "site2", tmp_path / "out")
    made = {folder.name: folder for folder in open_sites(tmp_path / "out")}
    original = next(folder for folder in open_sites(sites) if folder.name == "site2")
    assert "site2" not in made
    halves = [made["site2-a"], made["site2-b"]]
    patients = [{case.patient for case in half.cases("training")} for half in halves]
    assert not patients[0] & patients[1]
    assert patients[0] | patients[1] == {case.patient for case in original.cases("training")}
    assert all(patients)
    for half in halves:
        assert len(half.cases("testing")) == len(original.cases("testing"))
        assert half.info["counts"]["training"]["slices"] == len(Slices(half.cases("training")))


@pytest.mark.parametrize("fold", range(3))
def test_halves_share_no_training_patient_of_the_fold(folded_sites, tmp_path, fold):
    original = open_sites(folded_sites, fold=fold)[0]
    write_sybils("split", folded_sites, original.name, tmp_path / "out", fold)
    halves = open_sites(tmp_path / "out", sybil_names("split", original.name), fold=fold)
    patients = [sorted(case.patient for case in half.cases("training")) for half in halves]
    assert all(patients)
    assert sorted(patients[0] + patients[1]) == sorted({case.patient for case in original.cases("training")})
    for half in halves:
        for unchanged in ("validation", "testing"):
            assert [case.name for case in half.cases(unchanged)] == [case.name for case in original.cases(unchanged)]
            assert half.info["counts"][unchanged]["cases"] == len(half.cases(unchanged))


@pytest.mark.parametrize("kind", ["duplicate", "split"])
def test_missing_and_taken_names_are_refused(sites, tmp_path, kind):
    with pytest.raises(BadInput, match=r"site9.*site1"):
        write_sybils(kind, sites, "site9", tmp_path / "out")
    write_sybils(kind, sites, "site1", tmp_path / "taken")
    if kind == "duplicate":
        with pytest.raises(BadInput, match="site1-copy already"):
            write_sybils(kind, tmp_path / "taken", "site1", tmp_path / "again")
