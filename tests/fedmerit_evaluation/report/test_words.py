"""Numbers and lists as a sentence says them."""

import pytest

from fedmerit_evaluation.report.phrases import between, join_words, percent, points, resampling_units


@pytest.mark.parametrize(
    ("words", "said"), [(["a"], "a"), ([], ""), (["a", "b"], "a and b"), (["a", "b", "c", "d"], "a, b, c and d")]
)
def test_a_list_has_one_and(words: list[str], said: str) -> None:
    assert join_words(words) == said


def test_fractions_are_said_in_percent_and_differences_in_points_with_their_sign() -> None:
    assert percent(0.8154) == "81.5 %"
    assert percent(0.8154, 2) == "81.54 %"
    assert percent(1 / 3, 0) == "33 %"
    assert points(0.015) == "+1.5"
    assert points(-0.0004) == points(0) == "+0.0"
    assert points(-0.0123) == "\N{MINUS SIGN}1.2"
    assert between(-0.003, 0.015) == "\N{MINUS SIGN}0.3 to +1.5"


def test_of_one_seed_nothing_is_known_of_others() -> None:
    assert [resampling_units(seeds) for seeds in (1, 3)] == ["cases, of one seed alone", "cases and seeds"]
