"""Readers of the worked numbers of values from one run: multi-round Shapley, leave-one-out, leave-one-out losses."""

from itertools import compress

import numpy as np
import torch
from observing import Rounds, evaluated, game_of, view_of
from oracles import assert_equal, contains, tensor

from fedmerit.contract.observers import MultiRoundReconstruction
from fedmerit_evaluation.valuation.estimators import MultiRoundValues, leave_one_out_matrix
from fedmerit_lab.valuation.estimators import LeaveOneOutLossValues, leave_one_out_losses
from fedmerit_lab.valuation.observers import LeaveOneOutLoss


def utility_of(given):
    """u_j(w) = exp(-1/2 Σ_k G_jk (w_k - b_jk)²), of all testers j."""
    centres, curvature = tensor(given["centres"]), tensor(given["curvature"])
    return lambda model: torch.exp(-0.5 * (curvature * (model - centres) ** 2).sum(dim=1))


def check_multi_round(content, entry):
    given, games = content[entry], []
    sites = [str(place) for place in range(len(given["num_samples"]))]
    of = utility_of(given)
    for number, round in enumerate(given["rounds"]):
        view = view_of(tensor(round["model"]), tensor(round["updates"]), given["num_samples"], round=number,
                       rounds=len(given["rounds"]))  # fmt: skip
        state, observation = MultiRoundReconstruction().observe({}, view)
        assert state == {}
        utilities = evaluated(observation, of)
        for row, members in enumerate(observation.coalitions.tolist()):
            assert_equal(utilities[row], round["utilities"]["".join(compress(sites, members))], "utilities")
        games.append(game_of(observation, utilities, sites, number))
        single = Rounds(games[-1:], sites, given["num_samples"])
        assert_values(single, round)
    assert_values(Rounds(games, sites, given["num_samples"]), given)


def assert_values(run, expected):
    kinds = {"shapley": {}, "shapley_others": {"voice": "others"}, "leave_one_out": {"kind": "leave_one_out"}}
    for name, parameters in kinds.items():
        assert_equal(MultiRoundValues(**parameters).values(run)[:, 0], expected[name], name)


def check_leave_one_out_losses(content, entry):
    """The aggregate's weights are not the shares of images, which weigh those who lose."""
    given = content[entry]
    began, trained = torch.zeros(5, dtype=torch.float64), tensor(given["trained"])
    view = view_of(began, trained, given["num_samples"], weights=given["weights"])
    assert_equal(view.ended, given["model"], "model")
    _, observation = LeaveOneOutLoss().observe({}, view)
    game = game_of(observation, evaluated(observation, utility_of(given)), list("012"))
    run = Rounds([game], list("012"), given["num_samples"])
    assert_equal(LeaveOneOutLossValues().values(run)[:, 0], given["value"], "value")
    same = leave_one_out_losses(
        leave_one_out_matrix(game, list("012")), np.array(given["num_samples"]), np.eye(3, dtype=bool)
    )
    assert_equal(same[:, 0], given["value"], "value")


READERS = [  # method, whether a file's entry is what is read here, its name, how it is compared
    ("multi_round", contains, "in_run", check_multi_round),
    ("leave_one_out_loss", contains, "others_lose", check_leave_one_out_losses),
]
