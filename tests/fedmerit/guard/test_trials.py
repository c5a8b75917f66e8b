"""What is rated: models without each site, candidates of sites, coalitions."""

import pytest
import torch

from fedmerit.capabilities import Candidates
from fedmerit.core import Reports
from fedmerit.games import all_but_one, coalition_candidates, coalition_values, leave_one_out_values, shapley
from fedmerit.guard import cross_evaluation
from fedmerit.guard.cross_evaluation import aggregate_ratings, voices


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
    values = coalition_values(judged_reports, 0.0) if members is None else leave_one_out_values(judged_reports)
    assert torch.allclose(values[present], judged[present], atol=1e-9)
    assert values[2].isnan()
