"""Bounds by the median of the others, worked out explicitly; reward groups; the settings of the guard."""

import math

import pytest
import torch

from fedmerit.contract.method import Layout, Reports
from fedmerit.errors import BadInput
from fedmerit.guard.bounds import (
    bound_claims,
    bound_counts,
    bound_statistics,
    clip_norms,
    median_of_others,
    shown_factors,
    shrink_factors,
)
from fedmerit.guard.enrolment import count_once, find_shared_cases
from fedmerit.guard.guard import Enrolled, Guard
from fedmerit.guard.history import History
from fedmerit.guard.reward_groups import find_reward_groups
from fedmerit.methods.fedave import FedAVE
from fedmerit.methods.fedce import FedCE
from fedmerit.methods.registry import build_method
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.configuration.settings import TASKS, GuardSettings

FOUR = torch.ones(4, dtype=torch.bool)
AMOUNTS = torch.tensor([1.0, 2.0, 4.0, 100.0])


def test_a_site_has_no_part_in_the_median_it_is_held_to():
    """Of 2, 4, 100: 4; of 1, 4, 100: 4; of 1, 2, 100: 2; of 1, 2, 4: 2."""
    assert median_of_others(AMOUNTS, FOUR).tolist() == [4, 4, 2, 2]


def test_the_median_is_of_known_sites_and_of_two_the_middle():
    known = torch.tensor([True, True, True, False])
    spoilt = AMOUNTS.where(known, torch.nan)
    assert median_of_others(spoilt, known).tolist() == [3, 2.5, 1.5, 2]


def test_there_is_no_median_of_fewer_than_two_others():
    found = median_of_others(AMOUNTS, torch.tensor([True, True, False, False]))
    assert found.isnan().tolist() == [True, True, False, False]
    assert found[2:].tolist() == [1.5, 1.5]


@pytest.mark.parametrize(
    ("amounts", "known"),
    [
        ([1.0, 1.0, 1.0, 3.0], [True] * 4),  # no more than three times
        ([1.0, 1.0, 1.0, 9.0], [True, True, True, False]),  # nothing is known of it
        ([1.0, 1.0, 1.0, 9.0], [True, False, False, True]),  # of one other there is no median
        ([0.0, 0.0, 0.0, 9.0], [True] * 4),  # three times nothing is no bound
    ],
)
def test_all_else_is_left_unchanged(amounts, known):
    assert shrink_factors(torch.tensor(amounts), torch.tensor(known), 3.0).tolist() == [1, 1, 1, 1]


UNKNOWN = torch.full((6,), torch.nan).double()


def test_an_update_longer_than_three_times_the_median_of_the_others_is_shortened_to_that():
    """The others' median is 1: 50 becomes 3, and 2.9 in its place stays."""
    lengths = torch.tensor([0.8, 1.0, 1.2, 1.0, 50.0]).double()
    factors = clip_norms(lengths, torch.ones(5, dtype=torch.bool), UNKNOWN[:5])
    assert factors.tolist() == pytest.approx([1, 1, 1, 1, 3 / 50])
    lengths[4] = 2.9
    assert (clip_norms(lengths, torch.ones(5, dtype=torch.bool), UNKNOWN[:5]) == 1).all()


SENT = {"running_mean": torch.zeros(3), "running_var": torch.ones(3), "num_batches_tracked": torch.tensor(4)}


def moved(by):
    return {**SENT, "running_mean": torch.full((3,), by), "num_batches_tracked": torch.tensor(9)}


def test_what_moved_over_three_times_the_median_is_brought_back_and_the_rest_kept():
    trained = [moved(1.0), moved(2.0), moved(1.0), None, {**moved(0.0), "running_var": torch.full((3,), 1e11)}]
    bounded, factors = bound_statistics(trained, [SENT] * 5)
    assert [one is two for one, two in zip(bounded[:4], trained[:4], strict=True)] == [True] * 4
    assert factors[:4].tolist() == [1.0] * 4
    variance = bounded[4]["running_var"]
    assert float((variance - 1).norm()) < 3.01 * 3**0.5
    assert (variance >= 1).all()
    assert bounded[4]["num_batches_tracked"] == 9


def counted(counts, reward_group=None, parts=None, copies=None):
    n = len(counts)
    found = bound_counts(
        torch.tensor(counts).double(),
        torch.arange(n) if reward_group is None else torch.tensor(reward_group),
        torch.ones(n).double() if parts is None else torch.tensor(parts).double(),
        torch.zeros(n, dtype=torch.bool) if copies is None else torch.tensor(copies),
    )
    return pytest.approx(found.tolist())


def test_ordinary_counts_stay_as_they_are_and_an_invented_one_is_three_times_the_median():
    assert counted([10, 20, 30, 40]) == [10, 20, 30, 40]
    assert counted([10, 20, 30, 1e9]) == [10, 20, 30, 60]


def test_a_count_that_is_not_known_is_nothing_and_bounds_nobody():
    """Known are 10, 20 and 100: to the last, the others' median is 15."""
    assert counted([10, 20, 0, 100]) == [10, 20, 0, 45]


def test_an_organisation_is_bounded_as_one_and_divides_what_it_counts():
    """600 and 400 images earn as one: 1000 are over three times the others' median of 20."""
    assert counted([10, 20, 30, 600, 400], [0, 1, 2, 3, 3], [1, 1, 1, 0.6, 0.4]) == [10, 20, 30, 36, 24]


def test_the_images_of_copies_count_once():
    """Of 50 and 40 the larger only, half for each."""
    copies = [True, True, False, False]
    assert counted([50, 40, 60, 70], [0, 0, 2, 3], [0.5, 0.5, 1, 1], copies) == [25, 25, 60, 70]


def test_a_reward_group_is_bounded_whichever_of_its_sites_is_not_known():
    """Sites 0 and 1 earn as one; with 1e9 images they count three times the median, 60, of the other three."""
    reward_group, parts = torch.tensor([0, 0, 2, 3, 4]), torch.tensor([0.5, 0.5, 1, 1, 1], dtype=torch.float64)
    nobody = torch.zeros(5, dtype=torch.bool)
    for counts in ([0, 1e9, 50, 60, 70], [1e9, 0, 50, 60, 70]):
        found = bound_counts(torch.tensor(counts, dtype=torch.float64), reward_group, parts, nobody)
        assert found.sum() == pytest.approx(90 + 50 + 60 + 70)


PRESENT = torch.ones(4, dtype=torch.bool)


def test_a_claimed_error_gives_way_to_what_others_measured():
    claims = {"minus_error": torch.tensor([1.0, 0.2, 0.3, 0.1]).double(), "cosine": torch.ones(4).double()}
    measured = torch.tensor([0.2, 0.2, torch.nan, 0.3]).double()
    held = bound_claims(claims, PRESENT, measured)
    assert held["minus_error"] is measured
    assert held["cosine"] is claims["cosine"]


def test_what_a_site_measures_of_itself_counts_at_most_the_largest_of_the_others():
    invented = {"minus_error": 1.0, "error": 0.0, "cosine": -1.0}
    claims = {name: torch.tensor([one, 0.25, 0.5, 0.125]).double() for name, one in invented.items()}
    held = bound_claims(claims, PRESENT, None, unseen=True)
    assert held["minus_error"].tolist() == [0.5, 0.25, 0.5, 0.125]
    assert held["error"].tolist() == [0.125, 0.25, 0.5, 0.125]
    assert held["cosine"].tolist() == [0.125, 0.25, 0.5, 0.125]
    assert bound_claims(claims, PRESENT, None)["cosine"] is claims["cosine"]  # the server has its own


@pytest.mark.parametrize("claims", [[1.0, 0.2, math.nan, math.nan], [math.nan, 1.0, 0.2, math.nan]])
def test_two_claims_bound_none(claims):
    held = bound_claims({"minus_error": torch.tensor(claims).double()}, PRESENT, None)["minus_error"]
    assert held.tolist() == pytest.approx(claims, nan_ok=True)


def test_the_error_that_others_measured_is_divided_by_no_claim():
    claims = {"minus_error": torch.full((4,), 0.5).double(), "error": torch.tensor([0.0, 0.4, 0.5, 0.6]).double()}
    measured = torch.tensor([0.2, 0.2, 0.1, 0.3]).double()
    said = Reports(PRESENT.double(), PRESENT, bound_claims(claims, PRESENT, measured))
    asked = {name: FedCE(error=name).data_term(said) for name in ("relative", "absolute")}
    assert torch.equal(asked["relative"], asked["absolute"])


def test_a_claimed_loss_counts_at_most_the_median_of_the_others():
    claims = {"loss": torch.tensor([1.0, 0.2, 0.3, 0.1]).double()}
    assert bound_claims(claims, PRESENT, None)["loss"].tolist() == pytest.approx([0.2, 0.2, 0.2, 0.1])


def test_fedave_without_claims_pays_for_dice_only():
    assert FedAVE().guarded_form.distributions == "none"


@pytest.mark.parametrize("name", ["fedce", "fedce_nvflare"])
def test_reversed_signs_are_no_more_novel_than_an_unrelated_update(name):
    """Of equal errors the shares are those of 1 - cosine: at most 1 with the guard."""
    method, claims = build_method(name, {}), torch.full((4,), 0.5).double()
    updates = torch.tensor([[1.0, 0], [0.5, 1], [1, 1], [-1, -1]])  # whose sum is not zero
    said = Reports(PRESENT.double(), PRESENT, {"cosine": claims * torch.nan, "minus_error": claims})
    shares = []
    for one in (method, method.guarded_form):
        state = one.start(torch.zeros(2), 4, Layout.of(2))
        for _ in range(2):
            state, outcome = one.round(state, updates, said)
        novel = 1 - outcome.quantities["cosine"]
        assert novel[3] > 1.5
        if one is not method:
            novel = novel.clamp(max=1)
        shares.append((outcome.contribution / outcome.contribution.sum()).tolist())
        if name == "fedce":
            assert shares[-1] == pytest.approx((novel / novel.sum()).tolist())
    assert shares[1][3] < shares[0][3]


def test_images_beyond_the_median_count_as_far_as_updates_share_more_with_the_others():
    shared = torch.tensor([1.0, 2, 2, 8, -3]).double()
    factors = shown_factors(shared, torch.ones(5).bool())
    assert factors.tolist() == pytest.approx([1, 4 / 3, 4 / 3, 3, 1])  # medians of the others 2, 1.5, 1.5, 1.5, 2
    first, parts = torch.arange(5), torch.ones(5).double()
    counts = torch.tensor([1e9, 100, 130, 100, 80]).double()
    found = bound_counts(counts, first, parts, torch.zeros(5).bool(), factors)
    assert found.tolist() == pytest.approx([100, 100, 130, 100, 80])
    assert shown_factors(torch.zeros(5).double(), torch.ones(5).bool()).tolist() == [1] * 5  # nothing seen yet
    assert shown_factors(shared[:2], torch.ones(2).bool()).tolist() == [1, 1]


@pytest.mark.parametrize(("counts", "most"), [("claimed", 300.0), ("shown", 130.0)])
def test_a_site_that_claims_a_thousand_times_its_images(counts, most):
    """Six sites that share a direction of the round alike."""
    guard, history = Guard(GuardSettings("on", counts=counts), Enrolled.nothing(6)), History.empty(6)
    random = torch.Generator().manual_seed(0)
    claims = torch.tensor([100.0] * 5 + [1e5]).double()
    for _ in range(3):
        updates = torch.randn(6, 400, generator=random) + 0.5 * torch.randn(400, generator=random)
        history, admission = guard.admit(history, updates, Reports(claims, torch.ones(6).bool(), {}))
    images = admission.quantities["counted_images"]
    assert images[:5].tolist() == [100] * 5
    assert 100 <= images[5] <= most


ORGANISATIONS = torch.tensor([0, 1, 1, 1])


def test_find_shared_cases_pairs_sites_with_hardly_any_cases_of_their_own():
    hospital = [f"{number:032x}" for number in range(20)]
    sites = [
        frozenset(hospital),
        frozenset(hospital[:1]),
        frozenset(hospital[:15]),
        frozenset(hospital[:12]),
        frozenset(),
    ]
    shared = torch.tensor(find_shared_cases(sites))
    assert shared.nonzero().tolist() == [[0, 2], [2, 0], [2, 3], [3, 2]]


def test_count_once_counts_the_union_of_cases():
    """Two hospitals with the same public set and images of their own; a third, and one under two names."""
    public = {f"public {number}" for number in range(60)}
    sites = [frozenset(public | {f"{site} {number}" for number in range(40)}) for site in "ab"]
    sites += [frozenset({f"c {number}" for number in range(50)}) for _ in range(2)] + [frozenset()]
    shares = count_once(sites)
    assert shares == pytest.approx([0.7, 0.7, 0.5, 0.5, 1.0])
    assert sum(share * len(site) for share, site in zip(shares, sites, strict=True)) == len(frozenset().union(*sites))
    assert torch.tensor(find_shared_cases(sites)).nonzero().tolist() == [[2, 3], [3, 2]]


def test_near_copies_of_the_same_cases_count_for_the_union_and_no_less():
    """50 images under two names with equal updates: 25 each of the union, and the larger of 50 as copies."""
    first, parts = torch.tensor([0, 0, 2, 3]), torch.tensor([0.5, 0.5, 1, 1]).double()
    copies, held = torch.tensor([True, True, False, False]), torch.tensor([50.0, 50, 60, 70]).double()
    counts = torch.tensor([25.0, 25, 60, 70]).double()
    assert bound_counts(counts, first, parts, copies, held=held).tolist() == [25, 25, 60, 70]
    assert bound_counts(held, first, parts, copies, held=held).tolist() == [25, 25, 60, 70]  # of changed images


@pytest.mark.parametrize(
    ("counted", "first", "parts"),
    [
        ([True, True, True, True], [0, 1, 1, 1], [1, 0.25, 0.25, 0.5]),
        ([True, False, True, True], [0, 1, 1, 1], [1, 0, 1 / 3, 2 / 3]),
        ([True, False, False, True], [0, 1, 1, 1], [1, 0, 0, 1]),
        ([True, False, False, False], [0, 1, 2, 3], [1, 1, 1, 1]),
    ],
)
def test_a_group_is_in_the_row_of_its_first_site_while_others_are_away(counted, first, parts):
    counts, none = torch.tensor([50.0, 10.0, 10.0, 20.0]), torch.zeros(4, 4).bool()
    found = find_reward_groups(torch.tensor(counted), counts, none, ORGANISATIONS)
    assert found.first.tolist() == first
    assert found.parts.tolist() == pytest.approx(parts)
    merged = found.averaging_matrix @ torch.tensor([1.0, 5.0, 6.0, 9.0]).double()
    expected = sum(part * value for part, value in zip(parts[1:], (5.0, 6.0, 9.0), strict=True))
    assert float(merged[1]) == pytest.approx(expected if any(counted[1:]) else 5.0)


def test_copies_count_alike_while_others_are_away():
    counts, copied = torch.tensor([50.0, 10.0, 30.0]), torch.zeros(3, 3).bool()
    copied[0, 1] = copied[1, 0] = copied[1, 2] = copied[2, 1] = True
    apart = torch.arange(3)
    assert find_reward_groups(torch.ones(3).bool(), counts, copied, apart).parts.tolist() == pytest.approx([1 / 3] * 3)
    two = find_reward_groups(torch.tensor([True, False, True]), counts, copied, apart)
    assert (two.first.tolist(), two.parts.tolist()) == ([0, 0, 0], pytest.approx([0.5, 0, 0.5]))


def config(**settings):
    return make_configuration("fedavg", "prostate", 2, 0, TASKS["prostate"], settings)


def test_the_guard_is_off_unless_a_run_asks_for_it():
    assert config().guard == GuardSettings("off", "withhold", 0.01, 5)
    assert config(guard="on", rate_every="2").guard == GuardSettings("on", "withhold", 0.01, 2)


@pytest.mark.parametrize("settings", [{"on_verdict": "exclude"}, {"guard": "off", "rate_every": "2"}])
def test_without_a_guard_nothing_is_to_be_set_of_it(settings):
    with pytest.raises(BadInput, match=f"^{list(settings)[-1]}: has no effect with the guard off; leave it out$"):
        config(**settings)
    assert config(guard="off", on_verdict="withhold").guard == GuardSettings()
