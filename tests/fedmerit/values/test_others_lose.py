"""The model without each site, beside literal ones."""

from dataclasses import replace

import torch
from observing import SAMPLES, models_of, some_rounds, view_of

from fedmerit.observers import LeaveOneOutLoss


def test_the_model_without_a_site_is_the_mean_of_the_others_by_their_weights():
    (view,) = some_rounds(1)
    weights = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    view = view_of(view.began, view.updates, SAMPLES, weights=weights)
    _, observation = LeaveOneOutLoss().observe({}, view)
    for left_out, model in enumerate(models_of(observation)[:-1]):
        rest = [site for site in range(4) if site != left_out]
        trained = sum(weights[site] * (view.began + view.updates[site]) for site in rest)
        torch.testing.assert_close(model, trained / (1 - weights[left_out]))
        assert observation.coalitions[left_out].tolist() == [site != left_out for site in range(4)]
    torch.testing.assert_close(models_of(observation)[-1], view.ended)


def test_what_else_a_server_does_is_in_neither_model():
    """As the step of FedAdam: what that adds to the mean would be multiplied in the model without a site."""
    (view,) = some_rounds(1)
    _, plain = LeaveOneOutLoss().observe({}, view)
    _, stepped = LeaveOneOutLoss().observe({}, replace(view, ended=view.ended + 5))
    torch.testing.assert_close(models_of(stepped), models_of(plain))


def test_nothing_is_without_a_site_that_has_all_the_weight():
    (view,) = some_rounds(1)
    view = view_of(view.began, view.updates, SAMPLES, weights=[1.0, 0, 0, 0])
    _, observation = LeaveOneOutLoss().observe({}, view)
    assert [row.tolist().index(False) if not row.all() else None for row in observation.coalitions] == [1, 2, 3, None]
    assert observation.candidates.mixtures.isfinite().all()


def test_an_absent_site_is_in_no_model_and_none_is_without_it():
    """Of 30, 20 and 40 images: without the first, shares of 20 and 40 in 60."""
    (view,) = some_rounds(1, absent={(0, 1)})
    _, observation = LeaveOneOutLoss().observe({}, view)
    assert observation.coalitions.tolist() == [
        [False, False, True, True],
        [True, False, False, True],
        [True, False, True, False],
        [True, False, True, True],
    ]
    expected = view.began + (20 * view.updates[2] + 40 * view.updates[3]) / 60
    torch.testing.assert_close(models_of(observation)[0], expected)
    assert observation.candidates.shares[0].tolist() == [0, 0, 20 / 60, 40 / 60]
    assert LeaveOneOutLoss().most_models(4) == 5
