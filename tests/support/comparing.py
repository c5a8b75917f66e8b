"""What tests of methods against their references share."""

import math

import pytest
import torch
from rounds import as_numbers

from fedmerit.contract.capabilities import Candidates


def expected_of(reference, rounds, **parameters):
    start = [0.0] * rounds.updates.shape[2]
    return reference(start, rounds.samples.tolist(), as_numbers(rounds), **parameters)


def assert_equals(outcome, round):
    """Every column that the reference has; a site that sat out has no contribution."""
    assert outcome.weights.tolist() == pytest.approx(round["weights"], abs=1e-9)
    for i, value in enumerate(outcome.contribution.tolist()):
        assert value == pytest.approx(round["contribution"].get(i, math.nan), abs=1e-9, nan_ok=True)
    if "reputation" in round:
        assert outcome.reputation.tolist() == pytest.approx(round["reputation"], abs=1e-9)
    if "quota" in round:
        assert outcome.quantities["quota"].tolist() == pytest.approx(round["quota"], abs=1e-9)
    for model, numbers in zip(outcome.models, round["models"], strict=True):
        assert model.tolist() == pytest.approx(numbers, abs=1e-9)


def evaluated(rounds, model, bins=0):
    models, single = torch.tensor([model], dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    return rounds.evaluate(Candidates(models, single, torch.zeros(1, len(rounds.samples)), bins))


def dice_of(rounds):
    return lambda model: float(evaluated(rounds, model).dice)


def own_losses_of(rounds):
    return lambda site, model: rounds.losses(site, torch.tensor(model, dtype=torch.float64))().tolist()


def given_to(rounds):
    """Where all sites start, their images, their updates."""
    return [0.0] * rounds.updates.shape[2], rounds.samples.tolist(), as_numbers(rounds)


def assert_at_sites(ours, expected, known):
    """(n,) ``ours`` is what the dictionary says of the sites in ``known``, NaN elsewhere."""
    assert {i for i, value in enumerate(ours.tolist()) if not math.isnan(value)} == set(known)
    for i in known:
        assert ours[i].item() == pytest.approx(expected[i], abs=1e-9)


def assert_models(ours, expected):
    assert torch.allclose(ours, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)
