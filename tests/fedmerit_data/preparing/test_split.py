from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmerit.errors import BadInput
from fedmerit.trainers.monai_trainer.data import SERVER_SPLIT, SPLITS
from fedmerit_data.preparing.site_lists import split_patients

RATIOS = (0.5, 0.25, 0.25)


def names(count):
    return [f"p{number}" for number in range(count)]


@given(st.integers(3, 80), st.integers(0, 99), st.sampled_from([RATIOS, (0.8, 0.1, 0.1), (0.98, 0.01, 0.01)]))
def test_shares_are_within_one_patient_of_the_ratios_and_never_empty(count, seed, ratios):
    splits = split_patients("UCL", names(count), ratios, seed)
    counted = Counter(splits.values())
    assert set(splits) == set(names(count))
    for split, ratio in zip(SPLITS, ratios, strict=True):
        assert counted[split] >= 1
        assert counted[split] == 1 or abs(counted[split] - ratio * count) < 2
    assert split_patients("UCL", names(count)[::-1] * 2, ratios, seed) == splits


@given(st.integers(3, 80), st.integers(0, 99), st.floats(0, 0.5))
def test_the_server_takes_its_share_of_training_patients_alone(count, seed, share):
    without = split_patients("UCL", names(count), (0.8, 0.1, 0.1), seed)
    training = {name for name, split in without.items() if split == "training"}
    if share > 0 and len(training) == 1:
        with pytest.raises(BadInput, match="site UCL: 1 training patient\\(s\\), and the server share"):
            split_patients("UCL", names(count), (0.8, 0.1, 0.1), seed, share)
        return
    splits = split_patients("UCL", names(count), (0.8, 0.1, 0.1), seed, share)
    server = {name for name, split in splits.items() if split == SERVER_SPLIT}
    assert server < training
    assert {name: without[name] for name in splits if name not in server} == {
        name: split for name, split in splits.items() if name not in server
    }
    if share == 0:
        assert server == set()
    else:
        assert len(server) == 1 or abs(len(server) - share * len(training)) <= 0.5


def test_who_is_set_aside_moves_with_the_seed():
    def server(seed):
        splits = split_patients("UCL", names(12), RATIOS, seed, 0.5)
        return [name for name, split in splits.items() if split == SERVER_SPLIT]

    assert server(0) == server(0) != server(1)
    assert len(server(0)) == 3


def test_seed_and_site_move_the_split():
    first = split_patients("UCL", names(12), RATIOS, 0)
    assert split_patients("UCL", names(12), RATIOS, 1) != first
    assert split_patients("HK", names(12), RATIOS, 0) != first


@pytest.mark.parametrize(
    ("ratios", "counts"),
    [((0, 0, 1), {"testing": 1}), ((0.5, 0, 0.5), {"training": 1, "testing": 1}), ((1, 0, 0), {"training": 1})],
)
def test_a_ratio_of_0_leaves_a_split_empty(ratios, counts):
    assert Counter(split_patients("UCL", names(len(counts)), ratios, 0).values()) == counts
    many = Counter(split_patients("UCL", names(40), ratios, 0).values())
    assert {split: count / 40 for split, count in many.items()} == {
        split: ratio for split, ratio in zip(SPLITS, ratios, strict=True) if ratio
    }


def test_a_site_to_test_on_alone_has_nothing_for_the_server():
    assert set(split_patients("UCL", names(5), (0, 0, 1), 0, 0.5).values()) == {"testing"}


def test_too_few_patients():
    with pytest.raises(BadInput, match=r"site UCL: 2 patient\(s\), but training, validation and testing need one each"):
        split_patients("UCL", names(2), RATIOS, 0)
