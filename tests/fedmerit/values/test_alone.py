"""What is observed of sites that train alone: each one's model, once."""

import torch
from observing import models_of, some_rounds

from fedmerit.observers import LocalOnly, RoundView


def lone(views):
    """The views as of sites that have a model each."""
    models = torch.arange(28, dtype=torch.float64).reshape(4, 7)
    for view in views:
        began, models = models, models + view.updates
        yield RoundView(view.round, view.rounds, began, models, view.updates, view.weights, view.reports)


def test_each_sites_model_is_evaluated_once_in_the_end_with_its_own_statistics():
    views = list(lone(some_rounds(3, absent={(2, 1)})))
    seen = [LocalOnly().observe({}, view)[1] for view in views]
    assert seen[:2] == [None, None]
    torch.testing.assert_close(models_of(seen[2]), views[2].ended)
    assert torch.equal(seen[2].coalitions, torch.eye(4, dtype=torch.bool))
    here = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    assert torch.equal(seen[2].candidates.shares, torch.diag(here))
    assert torch.equal(seen[2].candidates.received, torch.eye(4, dtype=torch.float64))  # of whoever trained nothing


def test_a_site_evaluates_one_model_of_each():
    assert [LocalOnly().most_models(sites) for sites in (1, 6, 100)] == [1, 6, 100]
    assert [view.round for view in lone(some_rounds(5)) if LocalOnly(every=2).observe({}, view)[1]] == [0, 2, 4]
