"""Mixtures of a round's updates, beside literal ones."""

import torch
from observing import SAMPLES, models_of, some_rounds

from fedmerit.observers import MultiRoundReconstruction


def test_mixtures_of_those_present_are_the_model_and_their_mean_update_by_images():
    (view,) = some_rounds(1, absent={(0, 1)})
    _, observation = MultiRoundReconstruction().observe({}, view)
    assert len(observation.coalitions) == 8
    assert not observation.coalitions[:, 1].any()
    for model, members in zip(models_of(observation), observation.coalitions.tolist(), strict=True):
        chosen = [site for site in range(4) if members[site]]
        total = sum(SAMPLES[site] for site in chosen)
        expected = view.began + sum(SAMPLES[site] / total * view.updates[site] for site in chosen)
        torch.testing.assert_close(model, expected)


def test_no_more_models_are_evaluated_than_a_site_was_told():
    assert [MultiRoundReconstruction().most_models(sites) for sites in (3, 8, 9, 31)] == [8, 256, 256, 256]
    assert MultiRoundReconstruction(most=10).most_models(3) == 8
    (view,) = some_rounds(1)
    _, observation = MultiRoundReconstruction(most=10).observe({}, view)
    assert (
        len(observation.coalitions)
        == len(models_of(observation))
        == MultiRoundReconstruction(most=10).most_models(4)
        == 10
    )
    drawn = {tuple(row) for row in observation.coalitions.tolist()}
    assert {tuple(not one for one in row) for row in drawn} == drawn  # with each, its complement
