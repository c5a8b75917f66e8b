"""Signs, each by hand or beside vectors: who shows one, and when nobody does."""

import math

import pytest
import torch

from fedmerit.guard import indicators

NAN = math.nan
ALL = torch.ones(4, dtype=torch.bool)
NOBODY = ~ALL
UNKNOWN = torch.full((4,), NAN).double()


def numbers(*values):
    return torch.tensor(values).double()


@pytest.mark.parametrize(("length", "short"), [(0.0, True), (0.09, True), (0.11, False), (50.0, False)])
def test_an_update_under_a_twentieth_of_the_others_median_is_short(length, short):
    assert indicators.is_too_short(numbers(1, 2, 3, length), ALL).tolist() == [False, False, False, short]


def test_who_is_absent_or_has_one_other_to_compare_with_is_not_short():
    assert not indicators.is_too_short(numbers(1, 2, 3, 0), torch.tensor([True, True, True, False])).any()
    assert not indicators.is_too_short(numbers(1, 0, 0, 0), torch.tensor([True, False, False, True])).any()


@pytest.mark.parametrize(
    ("cosines", "last"),
    [
        ((0.1, 0.1, 0.2, 0.9), True),  # 0.1 away, the others 0.9
        ((0.1, 0.1, 0.2, 0.5), False),  # as near as half of what there is
        ((0.85, 0.85, 0.8, 0.9), False),  # all go on as before
        ((0.1, 0.1, 0.2, NAN), False),
    ],
)
def test_the_step_that_the_model_last_took_is_stale(cosines, last):
    assert indicators.is_stale(numbers(*cosines), UNKNOWN, UNKNOWN, ALL).tolist() == [False, False, False, last]


def test_an_update_sent_again_is_stale():
    to_own = numbers(0.5, 0.98, NAN, 0.995)
    assert indicators.is_stale(UNKNOWN, to_own, UNKNOWN, ALL).tolist() == [False, False, False, True]
    assert not indicators.is_stale(UNKNOWN, to_own, UNKNOWN, NOBODY).any()


def test_who_has_nothing_in_common_with_its_own_last_update_is_stale_where_the_others_have():
    """A quarter of 0.2 is 0.05; of 0.04, nothing can be told."""
    assert indicators.is_stale(UNKNOWN, UNKNOWN, numbers(0.2, 0.2, 0.2, 0.04), ALL).tolist() == [
        False,
        False,
        False,
        True,
    ]
    assert not indicators.is_stale(UNKNOWN, UNKNOWN, numbers(0.2, 0.2, 0.2, 0.06), ALL).any()
    assert not indicators.is_stale(UNKNOWN, UNKNOWN, numbers(0.04, 0.04, 0.04, -0.3), ALL).any()


@pytest.mark.parametrize(
    ("direction", "accused", "sign"),
    [(0.09, False, True), (0.11, False, False), (0.11, True, True), (0.21, True, False), (NAN, True, False)],
)
def test_under_a_quarter_of_the_others_is_elsewhere_and_under_a_half_while_a_verdict_stands(direction, accused, sign):
    against = torch.tensor([False, False, False, accused])
    found = indicators.is_other_direction(numbers(0.4, 0.4, 0.4, direction), ALL, against)
    assert found.tolist() == [False, False, False, sign]


def test_where_the_others_have_nothing_in_common_nobody_is_elsewhere():
    late = numbers(0.01, 0.02, 0.01, -0.5)
    assert not indicators.is_direction_comparable(late, ALL).any()
    assert not indicators.is_other_direction(late, ALL, NOBODY).any()
    some = torch.tensor([True, True, True, False])
    assert indicators.is_direction_comparable(numbers(0.4, 0.4, 0.4, NAN), some).tolist() == some.tolist()


def test_new_directions_are_cosines_to_the_mean_of_the_others_without_the_step():
    """Updates (5, 40), the last one that step but for a trace, so nothing of it is new; the fourth is in no mean."""
    random = torch.Generator().manual_seed(0)
    step = torch.randn(40, generator=random).double()
    updates = torch.randn(5, 40, generator=random).double() + step
    updates[4] = 3 * step + 1e-4 * updates[0]
    count = torch.tensor([True, True, True, False, True])
    for before in (None, step):
        inner, squared = (None, 0.0) if before is None else (updates @ before, float(before @ before))
        found = indicators.residual_cosines(updates @ updates.T, inner, squared, count)
        new = updates if before is None else updates - torch.outer(updates @ step, step) / (step @ step)
        some = [i for i in range(5) if new[i].norm() > 1e-3 * updates[i].norm()]
        assert some == (list(range(5)) if before is None else list(range(4)))
        for i in range(5):
            others = sum(new[j] / new[j].norm() for j in some if j not in (i, 3))
            expected = float(torch.cosine_similarity(new[i], others, dim=0)) if i in some else 0.0
            assert float(found[i]) == pytest.approx(expected, abs=1e-9)


def test_beside_its_own_step_is_what_is_new_since_the_sites_last_update():
    """Sites 0 and 1 in the plane: (1, 1) after (1, 0) brings (0, 1), (0, 2) and a trace after (0, 1) nothing.

    To the first the others' mean is (0, 1): a cosine of 1. The third is none of the others, and brings (1, 0) after
    (0, 1) beside their (1, 1) / √2 + (0, 1): 0.7071 / √(0.5 + 1.7071²) = 0.3827.
    """
    before, now = numbers([1, 0], [0, 1], [0, 1]), numbers([1, 1], [1e-5, 2], [1, 0])
    found = indicators.residual_own_cosines(now, before, torch.tensor([True, True, False]))
    assert found.tolist() == pytest.approx([1, 0, math.cos(math.radians(67.5))], abs=1e-5)
