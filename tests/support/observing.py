"""Rounds as observers see them, and observed runs synthetic, for tests of values."""

import numpy as np
import torch

from fedmerit.contract.method import Reports
from fedmerit.contract.observers import RoundView
from fedmerit_evaluation.valuation.observed_run import RoundGame

SAMPLES = (30.0, 50.0, 20.0, 40.0)  # of `some_rounds`


def view_of(began, updates, samples, *, round=0, rounds=1, present=None, weights=None):
    """A round aggregated by images, unless ``weights`` say otherwise; everyone is there, unless ``present`` says."""
    samples = torch.as_tensor(samples, dtype=torch.float64)
    present = torch.ones(len(samples), dtype=torch.bool) if present is None else torch.tensor(present)
    reports = Reports(torch.where(present, samples, 0.0), present)
    weights = reports.data_share if weights is None else torch.as_tensor(weights, dtype=torch.float64)
    ended = began + weights @ updates
    return RoundView(round, rounds, began, ended, updates, weights, reports)


def some_rounds(count, absent=(), seed=0, n=4, d=7):
    """Views of rounds that follow from each other; ``absent`` names (round, site)."""
    generator = torch.Generator().manual_seed(seed)
    began = torch.randn(d, generator=generator, dtype=torch.float64)
    for number in range(count):
        present = [(number, site) not in absent for site in range(n)]
        updates = torch.randn(n, d, generator=generator, dtype=torch.float64) * torch.tensor(present)[:, None]
        view = view_of(began, updates, SAMPLES[:n], round=number, rounds=count, present=present)
        yield view
        began = view.ended


def models_of(observation):
    """(k, d) the models to evaluate."""
    return observation.candidates.mixtures @ observation.candidates.models


def evaluated(observation, utility_of):
    """(k, n) what n testers say of the observation's k models; ``utility_of`` (d,) a model gives (n,)."""
    models = observation.candidates.mixtures @ observation.candidates.models.double()
    return torch.stack([utility_of(model) for model in models])


def game_of(observation, utilities, sites, round=0):
    """The round's game of (k, n) utilities, without draws."""
    names = [frozenset(np.array(sites)[row]) for row in observation.coalitions.numpy()]
    of = {name: line.numpy()[:, None] for name, line in zip(names, utilities, strict=True)}
    return RoundGame(round, of, np.ones(1))


class Rounds:
    """Instead of an `ObservedRun`: games as they are given, and no two sites with the same images."""

    def __init__(self, games, sites, num_samples):
        self._games, self.sites, self.num_samples = games, list(sites), np.array(num_samples, dtype=float)
        self.count = 1
        self.holders = np.ones(len(self.sites))

    def games(self, observer):
        return self._games

    def round_counts(self, number):
        return np.ones((number, self.count))
