"""Splits and folds by a hash of the patient: shares, patients that come later, and `--like`."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import prepare, prostate_site

from fedmerit.errors import BadInput
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS
from fedmerit.schema.site_folder import SiteFolder
from fedmerit_data.splits import BY_PLACE, Earlier, apportion, assign_folds, place, slack, split_patients

RATIOS = (0.5, 0.25, 0.25)


def patients(count, site="UCL"):
    return {f"{site}-p{number}": [f"p{number}"] for number in range(count)}


@given(st.integers(3, 120), st.integers(0, 99), st.sampled_from([RATIOS, (0.8, 0.1, 0.1), (0.98, 0.01, 0.01)]))
def test_split_patients_any_number_keeps_shares_within_the_slack(count, seed, ratios):
    splits = split_patients("UCL", patients(count), ratios, seed)
    counted = Counter(splits.values())
    assert set(splits) == set(patients(count))
    shares = dict(zip(SPLITS, ratios, strict=True))
    nearest = apportion(count, {split: shares[split] for split in BY_PLACE})
    for split, ratio in shares.items():
        assert counted[split] >= 1
        assert abs(counted[split] - nearest[split]) <= slack(count, ratio)
    assert split_patients("UCL", dict(reversed(patients(count).items())), ratios, seed) == splits


def test_slack_small_sites_is_none_and_grows_slower_than_the_site():
    assert [slack(number, 0.25) for number in (3, 5, 8, 20, 100)] == [0, 0, 1, 2, 7]


def test_split_patients_of_many_sites_has_the_shares_on_average():
    counted = Counter[str]()
    for seed in range(300):
        counted.update(split_patients("UCL", patients(12), RATIOS, seed).values())
    for split, ratio in zip(SPLITS, RATIOS, strict=True):
        assert counted[split] / 3600 == pytest.approx(ratio, abs=0.03)


@pytest.mark.parametrize("count", [6, 8, 12, 20, 40])
def test_split_patients_one_more_mostly_moves_none_and_few_over_a_border(count):
    same = 0
    for seed in range(200):
        before = split_patients("UCL", patients(count), RATIOS, seed)
        after = split_patients("UCL", patients(count + 1), RATIOS, seed)
        moved = Counter((before[name], after[name]) for name in before if before[name] != after[name])
        same += not moved
        assert not moved.keys() & {("training", "testing"), ("testing", "training")}  # they have no border
        assert max(moved.values(), default=0) <= 2
    assert same >= 0.5 * 200


def test_split_patients_site_renamed_keeps_the_splits():
    first, second = (split_patients(site, patients(30, site), RATIOS, 3) for site in ("UCL", "London"))
    assert list(first.values()) == [second[name.replace("UCL", "London")] for name in first]
    assert place("UCL", "UCL-p1", 3) == place("London", "p1", 3) != place("UCL", "UCL-p1", 4)


@given(st.integers(3, 80), st.integers(0, 99), st.floats(0, 0.5))
def test_split_patients_server_share_takes_training_patients_only(count, seed, share):
    without = split_patients("UCL", patients(count), (0.8, 0.1, 0.1), seed)
    training = {name for name, split in without.items() if split == "training"}
    if share > 0 and len(training) == 1:
        with pytest.raises(BadInput, match="site UCL: 1 training patient\\(s\\), and the server share"):
            split_patients("UCL", patients(count), (0.8, 0.1, 0.1), seed, share)
        return
    splits = split_patients("UCL", patients(count), (0.8, 0.1, 0.1), seed, share)
    server = {name for name, split in splits.items() if split == SERVER_SPLIT}
    assert server < training
    assert {name: without[name] for name in splits if name not in server} == {
        name: split for name, split in splits.items() if name not in server
    }
    if share == 0:
        assert server == set()
    else:
        assert len(server) == 1 or abs(len(server) - share * len(training)) <= 0.5


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [((0, 0, 1), {"testing": 1}), ((0.5, 0, 0.5), {"training": 1, "testing": 1}), ((1, 0, 0), {"training": 1})],
)
def test_split_patients_ratio_of_0_leaves_the_split_empty(ratios, expected):
    assert Counter(split_patients("UCL", patients(len(expected)), ratios, 0).values()) == expected
    many = split_patients("UCL", patients(40), ratios, 0)
    assert set(many.values()) == {split for split, ratio in zip(SPLITS, ratios, strict=True) if ratio}


def test_split_patients_too_few_raises():
    with pytest.raises(BadInput, match=r"site UCL: 2 patient\(s\), but training, validation and testing need one each"):
        split_patients("UCL", patients(2), RATIOS, 0)


@given(st.integers(3, 8), st.integers(0, 40), st.integers(0, 99))
def test_assign_folds_are_of_one_size_and_one_more_moves_one_over_each_border(folds, more, seed):
    found = assign_folds("UCL", patients(folds + more), folds, seed)
    assert found == assign_folds("UCL", dict(reversed(patients(folds + more).items())), folds, seed)
    sizes = Counter(found.values())
    assert set(sizes) == set(range(folds))
    assert max(sizes.values()) - min(sizes.values()) <= 1
    later = assign_folds("UCL", patients(folds + more + 1), folds, seed)
    assert all(abs(later[name] - fold) <= 1 for name, fold in found.items())
    assert sum(later[name] != fold for name, fold in found.items()) < folds


def earlier(splits, folds=()):
    return Earlier(splits, dict(folds), {name.removeprefix("UCL-"): name for name in splits})


@given(st.integers(8, 30), st.integers(0, 30), st.integers(0, 20))
def test_split_patients_like_keeps_every_patient_and_fills_the_shares(count, more, seed):
    before = split_patients("UCL", patients(count), RATIOS, seed, 0.2)
    after = split_patients("UCL", patients(count + more), RATIOS, seed + 1, 0.2, earlier(before))
    changed = {name for name in before if before[name] != after[name]}
    assert not changed
    if more >= count:
        counted = Counter(after.values())
        trained = counted["training"] + counted[SERVER_SPLIT]
        assert abs(trained - 0.5 * (count + more)) <= 1
        assert abs(counted["testing"] - 0.25 * (count + more)) <= 1


def test_split_patients_like_patient_known_by_cases_keeps_the_split_that_was_trained_on():
    before = earlier({"UCL-acc1": "testing", "UCL-acc2": "training", "UCL-acc3": "validation", "UCL-acc4": "testing"})
    now = {"UCL-PAT0": ["acc1", "acc2"], "UCL-PAT1": ["acc3", "acc4"], "UCL-new": ["acc9"]}
    found = split_patients("UCL", now, RATIOS, 0, 0.0, before)
    assert found == {"UCL-PAT0": "training", "UCL-PAT1": "validation", "UCL-new": "testing"}


def test_assign_folds_like_keeps_every_patient():
    before = assign_folds("UCL", patients(11), 5, 0)
    after = assign_folds("UCL", patients(20), 5, 1, earlier(dict.fromkeys(before, "training"), before))
    assert {name: after[name] for name in before} == before
    assert set(Counter(after.values()).values()) == {4}


def splits_of(folder):
    site = SiteFolder(folder)
    return {case.name: split for split, cases in site.splits.items() for case in cases}


@pytest.mark.parametrize("options", [{}, {"folds": 3}])
def test_prepare_like_keeps_splits_and_folds(tmp_path, options):
    options = {"size": 16, "field_of_view": 24.0, **options}
    prostate_site(tmp_path / "raw" / "UCL", cases=7)
    (first,) = prepare("prostate-multisite", tmp_path / "first", source=tmp_path / "raw", **options)
    prostate_site(tmp_path / "raw" / "UCL", cases=12)
    (later,) = prepare(
        "prostate-multisite", tmp_path / "later", source=tmp_path / "raw", seed=5, like=tmp_path / "first", **options
    )
    assert splits_of(first).items() <= splits_of(later).items()
    assert len(splits_of(later)) == 12
    assert len(SiteFolder(later).info["like"]) == 64
    if options.get("folds"):
        before, after = (SiteFolder(folder).patients_by_fold() for folder in (first, later))
        assert before.items() <= after.items()
        with pytest.raises(BadInput, match="site UCL has 3 folds, this preparation has none; name folders with"):
            prepare(
                "prostate-multisite", tmp_path / "no", source=tmp_path / "raw", like=tmp_path / "first",
                **{**options, "folds": None},
            )  # fmt: skip
    (tmp_path / "raw" / "UCL").rename(tmp_path / "raw" / "HK")
    with pytest.raises(BadInput, match="first: holds the sites UCL, but no patient of HK; name sites and patients as"):
        prepare("prostate-multisite", tmp_path / "no", source=tmp_path / "raw", like=tmp_path / "first", **options)
