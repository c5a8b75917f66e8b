"""Patients of each site of a partition, without files."""

from collections import Counter
from pathlib import Path

import pytest

from fedmerit.errors import BadInput
from fedmerit_lab.partitioning.assignment import Patient, assign_patients
from fedmerit_lab.partitioning.scheme import Scheme

SITES = Path("sites")


def patients(training, testing, validation=None, server=0, classes=("x",)):
    """So many of every split, of each class in turn."""
    counts = {"training": training, "validation": training if validation is None else validation, "testing": testing}
    counts |= {"server_validation": server}
    return [
        Patient(f"{split}{number:02d}", split, (), classes[number % len(classes)])
        for split, count in counts.items()
        for number in range(count)
    ]


def assigned(pool, scheme, duplicate=()):
    return assign_patients(SITES, pool, scheme, duplicate)


def names(share, *splits):
    return {patient.name for patient in share.patients if not splits or patient.split in splits}


def sizes(shares, split):
    return {site: sum(patient.split == split for patient in share.patients) for site, share in shares.items()}


def test_everybody_is_split_once_and_names_of_sites_sort_as_their_numbers():
    pool = patients(20, 20, server=10)
    shares = assigned(pool, Scheme("uniform", 10))
    assert list(shares) == [f"site-{number:02d}" for number in range(1, 11)]
    assert Counter(name for share in shares.values() for name in names(share)) == dict.fromkeys(
        (patient.name for patient in pool), 1
    )
    for split, each in (("training", 2), ("testing", 2), ("server_validation", 1)):
        assert set(sizes(shares, split).values()) == {each}
    assert {share.copy_of for share in shares.values()} == {None}


def test_the_scheme_deals_what_sites_own_and_what_all_are_judged_on_is_even():
    """Shares of 1, 2, 3 of six."""
    shares = assigned(patients(12, 9, server=6), Scheme("powerlaw", 3, exponent=1))
    assert sizes(shares, "training") == sizes(shares, "validation") == {"site-1": 2, "site-2": 4, "site-3": 6}
    assert sizes(shares, "testing") == dict.fromkeys(shares, 3)
    assert sizes(shares, "server_validation") == dict.fromkeys(shares, 2)


def test_a_twin_has_the_same_patients_to_train_on_and_others_to_test_on():
    shares = assigned(patients(6, 8), Scheme("uniform", 3), duplicate=["site-2"])
    assert sorted(shares) == ["site-1", "site-2", "site-2-copy", "site-3"]
    twin, first = shares["site-2-copy"], shares["site-2"]
    assert (twin.copy_of, first.copy_of) == ("site-2", None)
    assert names(twin, "training", "validation") == names(first, "training", "validation")
    assert not names(twin, "testing") & names(first, "testing")
    assert sizes(shares, "testing") == dict.fromkeys(shares, 2)
    plain = assigned(patients(6, 8), Scheme("uniform", 3))
    assert names(first, "training") == names(plain["site-2"], "training")


@pytest.mark.parametrize(
    ("pool", "options", "reported"),
    [
        (patients(2, 9), {}, "sites: 2 training patients, but the sites need 3, one each; partition into fewer sites"),
        (patients(9, 3), {"duplicate": ["site-1"]}, "3 testing patients, but the sites need 4"),
        (patients(9, 9, server=2), {}, "2 server_validation patients, but the sites need 3"),
        (patients(9, 9), {"duplicate": ["site-1"] * 2}, "duplicate site-1: named twice"),
    ],
)
def test_too_few_patients_and_sites_that_are_none(pool, options, reported):
    with pytest.raises(BadInput, match=reported):
        assigned(pool, Scheme("uniform", 3), **options)


@pytest.mark.parametrize("by", ["uniform", "powerlaw"])
@pytest.mark.parametrize(("others", "outliers", "into"), [(4, 3, 4), (6, 8, 6), (10, 1, 3)])
def test_a_class_only_is_split_to_the_last_site_and_to_no_other(by, others, outliers, into):
    counts = {"training": (others, outliers), "validation": (others, outliers)}
    pool = [
        Patient(f"{split}{name}{number:02d}", split, (), name)
        for split, pair in counts.items()
        for name, count in zip("ab", pair, strict=True)
        for number in range(count)
    ]
    pool += patients(0, 12, classes=("a", "b"), validation=0)
    shares = assigned(pool, Scheme(by, into, outlier=("b",)))
    for site, share in shares.items():
        own = {patient.patient_class for patient in share.patients if patient.split != "testing"}
        assert own == ({"b"} if site == f"site-{into}" else {"a"})


def test_an_outlier_without_a_patient_in_a_split_is_reported():
    pool = [Patient(f"{split}{number}", split, (), "a") for split in ("training", "validation") for number in range(9)]
    pool += [Patient(f"b{number}", "training", (), "b") for number in range(3)] + patients(0, 9, validation=0)
    with pytest.raises(BadInput, match="0 validation patients of b for one site and 9 others for 2"):
        assigned(pool, Scheme("uniform", 3, outlier=("b",)))
