"""Models carried along a run, beside literal ones."""

import pytest
import torch
from observing import SAMPLES, models_of, some_rounds

from fedmerit.observers import OneRoundReconstruction


def test_carried_models_follow_their_members_alone_round_by_round():
    """Literally w_S <- w_S + Σ_{i in S} n_i/n_S Δ_i, an update that did not come being zero."""
    views = list(some_rounds(3, absent={(1, 2)}))
    observer = OneRoundReconstruction()
    state = observer.start(views[0].began, 4)
    for view in views:
        state, observation = observer.observe(state, view)
        assert (observation is None) == (view.round < 2)
    assert len(observation.coalitions) == 16
    for model, members in zip(models_of(observation), observation.coalitions.tolist(), strict=True):
        chosen = [site for site in range(4) if members[site]]
        expected = views[0].began
        for view in views:
            for site in chosen:
                expected = expected + SAMPLES[site] / sum(SAMPLES[one] for one in chosen) * view.updates[site]
        torch.testing.assert_close(model, expected)
    whole = models_of(observation)[observation.coalitions.all(dim=1)][0]
    assert not torch.allclose(whole, views[-1].ended)  # a site was away: the run shared its part among the others
    everyone = list(some_rounds(3))
    state = observer.start(everyone[0].began, 4)
    for view in everyone:
        state, observation = observer.observe(state, view)
    torch.testing.assert_close(models_of(observation)[-1], everyone[-1].ended)


def test_statistics_are_of_members_that_are_here_and_of_nobody_where_none_is():
    """Of 30, 50, 20 and 40 images; the second site was here in round 0 alone."""
    observer, views = OneRoundReconstruction(), list(some_rounds(2, absent={(1, 1)}))
    state = observer.start(views[0].began, 4)
    for view in views:
        state, observation = observer.observe(state, view)
    shares = {
        tuple(members): pytest.approx(row.tolist())
        for members, row in zip(observation.coalitions.tolist(), observation.candidates.shares, strict=True)
    }
    assert shares[True, True, True, False] == [0.6, 0, 0.4, 0]
    assert shares[False, True, False, True] == [0, 0, 0, 1]
    assert shares[False, True, False, False] == [0, 0, 0, 0]


def test_who_never_came_is_in_no_coalition_and_of_many_sites_some_are_drawn():
    absent = {(number, 0) for number in range(2)}
    for most, expected in ((256, 8), (8, 8)):
        observer, views = OneRoundReconstruction(most=most), list(some_rounds(2, absent=absent))
        state = observer.start(views[0].began, 4)
        for view in views:
            state, observation = observer.observe(state, view)
        assert len(observation.coalitions) == expected
        assert not observation.coalitions[:, 0].any()
    assert [OneRoundReconstruction().most_models(sites) for sites in (3, 8, 9, 31)] == [8, 256, 256, 256]
