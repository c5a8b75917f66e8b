"""What every method with candidates asks for: mixtures and shares that sum to 1, and no more models than it says."""

import pytest
import torch
from rounds import SOONER, candidates_of, layout, make_rounds

from fedmerit.capabilities import EvaluatesCandidates
from fedmerit.core import Reports
from fedmerit.methods.registry import METHODS

ASKING = [name for name, kind in METHODS.items() if issubclass(kind, EvaluatesCandidates)]


def test_a_site_lets_as_many_models_be_evaluated_as_there_are_sites_unless_a_method_says_more():
    assert EvaluatesCandidates().most_candidates(7) == 7
    assert EvaluatesCandidates().loss_bins == 0
    with pytest.raises(NotImplementedError):
        EvaluatesCandidates().candidates(None, torch.zeros(1, 1), None)


@pytest.mark.parametrize("method", ASKING)
@pytest.mark.parametrize("n", [2, 4])
def test_what_is_asked_for_is_mixtures_and_no_more_than_is_said(method, n):
    """With a site absent as with all there."""
    made = METHODS[method](**SOONER.get(method, {}))
    for there in (n, n - 1):
        rounds = make_rounds(n=n, d=12)
        present = torch.arange(n) < there
        state = made.start(torch.zeros(12), n, layout(12))
        updates = rounds.updates[0] * present[:, None]
        values = {name: torch.full((n,), 0.5, dtype=torch.float64) for name in made.asks}
        reports = Reports(rounds.samples.where(present, 0.0), present, values)
        asked = candidates_of(made, state, updates, reports)
        if asked is None:  # FedSAC, whose candidates are of its rounds alone, after them
            assert method == "fedsac"
            continue
        assert asked.mixtures.shape == (len(asked.mixtures), len(asked.models))
        assert asked.shares.shape == (len(asked.mixtures), n)
        assert asked.bins == made.loss_bins
        assert 0 < len(asked.mixtures) <= made.most_candidates(n)
        torch.testing.assert_close(asked.mixtures.sum(dim=1), torch.ones(len(asked.mixtures), dtype=torch.float64))
        totals = asked.shares.sum(dim=1)
        assert bool(((totals - 1).abs().lt(1e-12) | totals.eq(0)).all())
        assert not asked.shares[:, ~present].any()  # of whom there are no trained statistics
        assert not asked.coalitions or len(asked.mixtures) == 2**there
