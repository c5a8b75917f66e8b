"""Cross evaluation: one vote each, never for itself; rated models; what ratings say of sites."""

import pytest
import torch

from fedmerit.contract.capabilities import Candidates
from fedmerit.contract.games import all_but_one, coalition_candidates, coalition_values, shapley
from fedmerit.contract.method import Reports
from fedmerit.guard import cross_evaluation
from fedmerit.guard.cross_evaluation import aggregate_ratings, distances, find_outlier_raters, voices

NAN = float("nan")
ALL = torch.ones(5, dtype=torch.bool)


def ratings(seed=0):
    """(5, 5) of raters of different levels, sites of different worth, a little noise."""
    random = torch.Generator().manual_seed(seed)
    worth, levels = torch.linspace(0.4, 0.6, 5).double(), 0.2 * torch.rand(5, generator=random).double()
    scores = worth + levels[:, None] + 0.005 * torch.randn(5, 5, generator=random).double()
    return scores.fill_diagonal_(NAN), worth


def judged(scores, heard=ALL):
    voice, offsets = voices(scores, heard)
    return aggregate_ratings(voice, offsets, scores)


def test_raters_of_any_level_find_the_same_differences():
    scores, worth = ratings()
    found = judged(scores)
    assert torch.allclose(found - found.mean(), worth - worth.mean(), atol=0.03)
    moved = judged(scores + torch.tensor([0.0, 0.1, -0.1, 0.2, 0.05]).double()[:, None])
    assert torch.allclose(moved - moved.mean(), found - found.mean(), atol=1e-9)


def test_what_a_site_says_does_not_move_what_the_others_find_of_it():
    scores, _ = ratings()
    lied = scores.clone()
    lied[4, :4] = torch.tensor([0.0, 1.0, 0.0, 0.0]).double()
    share, honest = (one[4] / one.sum() for one in (judged(lied), judged(scores)))
    assert float(share - honest) == pytest.approx(0, abs=0.01)


def test_one_who_lies_stands_apart_and_honest_raters_do_not():
    scores, _ = ratings()
    lied = scores.clone()
    lied[4, :4] = torch.tensor([0.0, 1.0, 0.0, 0.0]).double()
    for given, expected in ((scores, [False] * 5), (lied, [False] * 4 + [True])):
        voice, offsets = voices(given, ALL)
        away = distances(given, offsets, aggregate_ratings(voice, offsets, given), ALL)
        assert find_outlier_raters(away).tolist() == expected


def test_a_raters_distance_is_the_mean_difference_from_what_all_found_once_levels_are_one():
    scores = torch.tensor([[NAN, 0.4, 0.6], [0.7, NAN, 0.8], [0.5, 0.5, NAN]]).double()
    judged, offsets = torch.tensor([0.5, 0.5, 0.6]).double(), torch.tensor([0.0, -0.2, 0.1]).double()
    heard = torch.tensor([True, True, False])  # |-.1|, |0|; |0|, |0|; not heard
    assert distances(scores, offsets, judged, heard).tolist() == pytest.approx([0.05, 0.0, NAN], nan_ok=True, abs=1e-6)


def test_who_is_rated_by_nobody_is_unknown_and_who_is_not_heard_says_nothing():
    scores, _ = ratings()
    scores[:, 2] = NAN
    assert judged(scores).isnan().tolist() == [False, False, True, False, False]
    heard = ALL.clone()
    heard[0] = False
    assert (voices(scores, heard)[0][:, 0] == 0).all()


def test_the_model_without_a_site_is_the_mean_of_the_others():
    trained, received = torch.tensor([[1.0, 2.0], [3.0, 5.0], [9.0, 9.0], [2.0, 0.0]]), torch.tensor([0.5, 1.0])
    weights, there = torch.tensor([0.5, 0.2, 0.0, 0.3]).double(), torch.tensor([True, True, False, True])
    model = (weights @ trained.double()).float()
    share = torch.tensor([0.25, 0.25, 0.0, 0.5]).double()
    found = cross_evaluation.leave_one_out_models(model, received, trained - received, weights, share, there)
    models = found.mixtures @ found.models.double()
    assert models[0].tolist() == pytest.approx([(0.2 * 3 + 0.3 * 2) / 0.5, (0.2 * 5) / 0.5], rel=1e-5)
    assert found.shares[0].tolist() == pytest.approx([0, 1 / 3, 0, 2 / 3])
    assert len(models) == 3
    with_all = cross_evaluation.leave_one_out_models(
        model, received, trained - received, weights, share, there, whole=True
    )
    assert (with_all.mixtures @ with_all.models.double())[-1].tolist() == pytest.approx(model.tolist())
    assert with_all.shares[-1].tolist() == share.tolist()
    assert torch.equal(with_all.mixtures[:3], found.mixtures)


def test_ratings_of_candidates_become_scores_of_the_sites_that_made_them():
    candidates = Candidates(torch.zeros(3, 1), torch.eye(3), torch.tensor([[0.0, 1, 0], [0, 0, 1], [0, 0, 0]]))
    ratings = torch.tensor([[0.5, 0.6, 0.1], [torch.nan] * 3, [0.7, 0.8, 0.2]]).double()
    scores = cross_evaluation.rating_matrix(candidates, ratings, torch.tensor([False, True, True]))
    assert scores[0].tolist()[1:] == pytest.approx([0.5, 0.6])
    assert scores[:, 0].isnan().all()
    assert scores[1].isnan().all()


@pytest.mark.parametrize("members", [None, all_but_one(4)], ids=["Shapley values", "leave-one-out"])
def test_values_as_the_others_judge_are_those_of_the_games_method(members):
    random = torch.Generator().manual_seed(0)
    present = torch.tensor([True, True, False, True, True])
    reports = Reports(torch.full((5,), 10.0).double() * present, present)
    candidates = coalition_candidates(torch.zeros(3), torch.randn(5, 3, generator=random), reports, members)
    ratings = torch.rand(5, len(candidates.shares), generator=random).double()
    ratings[2] = torch.nan
    scores = cross_evaluation.rating_matrix(candidates, ratings, present)
    of_one = shapley(ratings[0]) if members is None else ratings[0, -1] - ratings[0, :-1]
    assert torch.allclose(scores[0, present], of_one)
    scores.fill_diagonal_(torch.nan)
    voice, offsets = voices(scores, present)
    judged = aggregate_ratings(voice, offsets, scores)
    results = cross_evaluation.candidate_results(
        candidates, ratings, torch.zeros(len(candidates.shares), 0), judged, voice, offsets
    )
    judged_reports = Reports(reports.num_samples, present, candidates=results)
    values = coalition_values(judged_reports, 0.0 if members is None else None)
    assert torch.allclose(values[present], judged[present], atol=1e-9)
    assert values[2].isnan()
