"""The guard as a whole: what it leaves only, what it withholds, who earns as one; its rules and their page."""

from pathlib import Path

import pytest
import torch
from pulling_sites import updates_of

from fedmerit.contract.method import Outcome, Reports
from fedmerit.contract.vectors import gram
from fedmerit.errors import RunFailed
from fedmerit.guard import bounds, reward_groups, work
from fedmerit.guard.guard import Enrolled, Guard
from fedmerit.guard.history import History
from fedmerit.schema.configuration.settings import GuardSettings

PAGE = Path(__file__).parents[3] / "docs" / "guard.md"


def honest(round, updates):
    return updates


def replaced(row, value):
    def change(round, updates):
        updates[row] = value(round, updates)
        return updates

    return change


def zeros(round, updates):
    return torch.zeros_like(updates[0])


def test_honest_answers_keep_their_bits_and_nobody_is_flagged(play):
    for number, (admission, history) in enumerate(play(honest, 12)):
        assert torch.equal(admission.updates, updates_of(number))
        assert admission.reports.present.all()
        assert not history.evidence.against.any()
        outcome = Outcome(*torch.rand(3, 6).double(), models=torch.zeros(4))
        assert admission.divide_outcome(outcome, torch.zeros(4)) is outcome


@pytest.mark.parametrize("value", [zeros, lambda round, updates: updates_of(0)[5]], ids=["zero", "replay"])
def test_free_riders_are_named_within_ten_rounds_and_only_they(play, value):
    _, history = play(replaced(5, value), 10)[-1]
    assert history.evidence.against.tolist() == [False] * 5 + [True]


def test_who_is_withheld_from_earns_nothing_and_keeps_what_it_trained(play):
    admission, _ = play(replaced(5, zeros), 6)[-1]
    assert admission.reports.present.tolist() == [True] * 5 + [False]
    outcome = Outcome(*torch.ones(3, 6).double(), models=torch.ones(2000), quantities={"quota": torch.ones(6)})
    received = torch.full((2000,), 5.0)
    settled = admission.divide_outcome(outcome, received)
    for values in (settled.contribution, settled.reputation, settled.weights, settled.quantities["quota"]):
        assert values.tolist() == [1.0] * 5 + [0.0]
    assert torch.equal(settled.models[5], received + admission.own[5])
    assert torch.equal(settled.models[0], torch.ones(2000))


def test_a_site_that_stops_is_paid_again_unless_it_was_excluded(play):
    def for_a_while(round, updates):
        return replaced(5, zeros)(round, updates) if round < 6 else updates

    assert play(for_a_while, 6)[-1][1].evidence.against[5]
    assert not play(for_a_while, 12)[-1][1].evidence.against[5]
    assert play(for_a_while, 12, "exclude")[-1][1].evidence.against[5]


def test_a_verdict_that_is_only_shown_changes_nothing(play):
    admission, history = play(replaced(5, zeros), 8, "show")[-1]
    assert history.evidence.against[5]
    assert admission.reports.present.all()


def test_long_updates_are_shortened_to_three_times_the_median(play):
    admission, _ = play(replaced(2, lambda round, updates: 1e6 * updates[2]), 1)[0]
    lengths = admission.updates.norm(dim=1)
    others = lengths[[0, 1, 3, 4, 5]].median()
    assert float(lengths[2]) == pytest.approx(3 * float(others), rel=1e-5)
    assert admission.quantities["clipped"][[0, 1, 3, 4, 5]].tolist() == [1.0] * 5
    assert torch.allclose(admission.reports.products, gram(admission.updates), rtol=1e-5)


def test_a_long_update_is_held_to_the_last_median_where_few_answer(play):
    long, few = replaced(2, lambda round, updates: 1e6 * updates[2]), lambda round: (1, 2) if round else range(6)
    (first, _), (second, _) = play(long, 2, there=few)
    assert float(second.updates[2].norm()) == pytest.approx(float(first.updates[2].norm()), rel=1e-5)
    assert second.quantities["clipped"][1] == 1


def test_a_verdict_is_not_lifted_while_few_answer(play):
    for admission, history in play(replaced(5, zeros), 12, there=lambda round: (0, 5) if round > 6 else range(6))[6:]:
        assert history.evidence.against.tolist() == [False] * 5 + [True]
        assert admission.withheld[5]


def test_excluded_only_sites_make_no_model(play):
    with pytest.raises(RunFailed, match="only sites answered that verdicts have excluded"):
        play(replaced(5, zeros), 8, "exclude", there=lambda round: (5,) if round > 6 else range(6))
    admission, _ = play(replaced(5, zeros), 8, there=lambda round: (5,) if round > 6 else range(6))[-1]
    assert not admission.withheld[5]  # somebody has to continue


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_copies_are_one_site_to_the_method_and_divide_what_it_earns(play, noise):
    def copied(round, updates):
        random = torch.Generator().manual_seed(round)
        scale = noise * float(updates[5].norm()) / 2000**0.5
        twins = [updates[5] + scale * torch.randn(2000, generator=random) for _ in range(2)]
        return torch.cat([updates[:5], torch.stack(twins)])

    admission, _ = play(copied, 3)[-1]
    assert admission.reports.present.tolist() == [True] * 6 + [False]
    assert torch.allclose(admission.updates[5], copied(2, updates_of(2))[5:].mean(dim=0), atol=1e-6)
    weights = torch.tensor([0.16] * 5 + [0.2, 0.0]).double()
    settled = admission.divide_outcome(Outcome(weights, weights, weights, torch.zeros(3)), torch.zeros(3))
    assert settled.weights[5:].tolist() == pytest.approx([0.1, 0.1])
    assert admission.site_reports.num_samples.tolist() == pytest.approx([50.0] * 5 + [25.0, 25.0])


def test_clusters_and_pairs_that_are_somewhat_alike_are_no_copies():
    random, there, find = torch.Generator().manual_seed(0), torch.ones(6).bool(), reward_groups.find_near_copies
    noise, cosines = torch.randn(6, 6, generator=random).double(), torch.full((6, 6), 0.9).double()
    shared = 0.1 + 0.05 * (noise + noise.T)
    found = []
    for pair in (0.3, 0.45, 0.9):  # of which the first is no outlier, the second is less than half
        shared[0, 1] = shared[1, 0] = pair
        found.append(find(cosines, shared, there, 1e-4).nonzero().tolist())
    assert found == [[], [], [[0, 1], [1, 0]]]
    shared[2:4, 2:4] = shared[4:, 4:] = 0.9
    assert not find(cosines, shared, there, 1e-4).any(), "three clusters"


def test_what_two_share_beside_all_others():
    common, own = torch.randn(2, 4, 20000, generator=torch.Generator().manual_seed(0)).double()
    updates = common[0] + own
    updates[1] = updates[0] + 0.5 * common[1]  # a copy with a quarter of noise
    lengths = updates.norm(dim=1)
    found = reward_groups.partial_correlations(updates @ updates.T / torch.outer(lengths, lengths))
    assert float(found[0, 1]) == pytest.approx((16 / 19) ** 0.5, abs=0.02)
    assert float(found[2:, :2].abs().max()) < 0.35


def test_an_organisation_counts_with_all_its_images_as_one_site(play):
    enrolled = Enrolled(
        torch.tensor([50.0, 50, 50, 50, 30, 60]).double(), torch.tensor([0, 1, 2, 3, 4, 4]), torch.zeros(6, 6).bool()
    )
    admission, _ = play(honest, 1, enrolled=enrolled)[0]
    assert admission.reports.num_samples.tolist() == pytest.approx([50, 50, 50, 50, 90, 0])
    assert admission.reward_groups.parts[4:].tolist() == pytest.approx([1 / 3, 2 / 3])


def test_what_a_group_has_earned_stays_when_its_first_site_is_away(play):
    """Sites 1 and 4 are one; round by round one of them is away, and another method's memory is not begun."""
    enrolled = Enrolled(torch.full((6,), 50.0).double(), torch.tensor([0, 1, 2, 3, 1, 5]), torch.zeros(6, 6).bool())
    away = {1: (1,), 2: (4,)}
    rounds = play(honest, 3, enrolled=enrolled, there=lambda round: set(range(6)) - set(away.get(round, ())))
    earned = torch.tensor([0.1, 0.3, 0.2, 0.2, torch.nan, 0.2]).double()  # as the method has it, row by row
    for number, (admission, _) in enumerate(rounds):
        assert admission.reports.present.tolist() == [True, True, True, True, False, True]
        mean = updates_of(number)[[row for row in (1, 4) if row not in away.get(number, ())]].mean(dim=0)
        assert torch.allclose(admission.updates[1], mean, atol=1e-7)
        models = torch.arange(6.0)[:, None].repeat(1, 2)
        quantities = {"cosine": earned}
        settled = admission.divide_outcome(Outcome(earned, earned, earned, models, quantities), torch.zeros(6, 2))
        expected = {0: (0.15, 0.15), 1: (torch.nan, 0.3), 2: (0.3, torch.nan)}[number]
        assert settled.contribution[[1, 4]].tolist() == pytest.approx(expected, nan_ok=True)
        assert settled.weights[[1, 4]].tolist() == pytest.approx([0.0 if one != one else one for one in expected])
        assert settled.quantities["cosine"][[1, 4]].isnan().tolist() == [one != one for one in expected]
        assert settled.models[[1, 4]].tolist() == [[1.0, 1.0]] * 2  # the group has one model
        assert admission.site_reports.num_samples.sum() == pytest.approx(50.0 * admission.counted.sum())


def test_a_group_claims_the_mean_of_what_its_sites_claim():
    guard = Guard(
        GuardSettings("on"), Enrolled(torch.ones(4).double(), torch.tensor([0, 0, 1, 2]), torch.zeros(4, 4).bool())
    )
    updates = torch.randn(
        4, 1000, generator=torch.Generator().manual_seed(0)
    )  # of nearly one length, none near another
    claimed = torch.tensor([0.1, 0.5, 0.6, 0.7]).double()
    reports = Reports(torch.ones(4).double(), torch.ones(4).bool(), {"loss": claimed}, products=gram(updates))
    _, admission = guard.admit(History.empty(4), updates, reports)
    assert admission.reports.values["loss"].tolist() == pytest.approx([0.3, torch.nan, 0.5, 0.45], nan_ok=True)


def test_sites_that_enrolled_the_same_cases_are_copies_from_the_first_round(play):
    shared = torch.zeros(6, 6).bool()
    shared[0, 1] = shared[1, 0] = True
    admission, _ = play(honest, 1, enrolled=Enrolled(torch.full((6,), 50.0).double(), torch.arange(6), shared))[0]
    assert admission.reports.present.tolist() == [True, False, True, True, True, True]


def test_without_updates_counts_are_bounded_all_the_same():
    guard = Guard(GuardSettings("on"), Enrolled.nothing(4), merges=False, measures=False)
    counts = torch.tensor([50.0, 60.0, 70.0, 1e9]).double()
    reports = Reports(counts, torch.ones(4).bool(), products=gram(torch.zeros(4, 0)))
    _, admission = guard.admit(History.empty(4), torch.zeros(4, 0), reports)
    assert admission.reports.num_samples.tolist() == pytest.approx([50, 60, 70, 180])


NUMBERS = {  # by the name of a rule on the page: those that its row has to have
    "counts": [bounds.COUNT_FACTOR],
    "norms": [bounds.NORM_FACTOR],
    "statistics": [bounds.STATISTICS_FACTOR],
    "reward groups": [reward_groups.EXACT],
    "work": [100 * work.LEAST_WORK, work.REMEMBERED, work.ROUNDS],
}


@pytest.mark.parametrize("rule", NUMBERS)
def test_the_page_has_the_numbers_of_every_rule(rule):
    _, _, section = PAGE.read_text().partition(f"### {rule.capitalize()}\n")
    text = section.partition("\n#")[0]
    assert all(f"{number:g}" in text for number in NUMBERS[rule])


@pytest.mark.parametrize("on_verdict", ["withhold", "show"])
def test_images_count_by_rounds_worked_once_a_verdict_stood(play, on_verdict):
    """Site 5 sends zeros in 10 of 15 rounds; until it is judged, and for all others, all images count."""

    def zeros(round: int, updates: torch.Tensor) -> torch.Tensor:
        updates[5] *= round >= 10
        return updates

    given = play(zeros, 15, on_verdict)
    worked = torch.stack([admission.quantities["worked"] for admission, _ in given])
    assert worked[:, :5].all()
    acts = on_verdict == "withhold"
    assert worked[:, 5].nonzero().flatten().tolist() == ([12, 13, 14] if acts else [10, 11, 12, 13, 14])
    samples = torch.stack([admission.reports.num_samples for admission, _ in given])
    assert (samples[:, :5] == 50).all()
    share = float(given[-1][0].reports.data_share[5])
    assert share == pytest.approx(10 / 260 if acts else 1 / 6)  # of 50 images a fifth count


def test_an_empty_update_shows_no_work_though_nobody_is_judged(play):
    def rests(round: int, updates: torch.Tensor) -> torch.Tensor:
        updates[5] *= round not in (2, 7)
        return updates

    given = play(rests, 9)
    assert [round for round, (one, _) in enumerate(given) if not one.quantities["worked"][5]] == [2, 7]
    assert (given[-1][0].reports.num_samples == 50).all()
