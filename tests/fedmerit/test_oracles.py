"""Worked numbers of each method: JSON files in $FEDMERIT_ORACLES, each read by what it holds, compared to 1e-6.

The oracles are float64; so are the models and updates here, which the methods take as they come.
"""

import json
import math
import os
from pathlib import Path

import pytest
import torch

from fedmerit.core import Reports, SiteView
from fedmerit.methods.fedavg import FedAvg
from fedmerit.methods.fedce import FedCE, minus_model
from fedmerit.registry import METHODS

DEFAULT = Path(__file__).resolve().parents[2].parent / "shared" / "oracles"
FOLDER = Path(os.environ.get("FEDMERIT_ORACLES", DEFAULT))
FILES = sorted(FOLDER.glob("*.json"))
CONTENTS = {file.name: json.loads(file.read_text()) for file in FILES}


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def assert_equal(ours, oracle, what):
    assert torch.allclose(torch.as_tensor(ours, dtype=torch.float64), tensor(oracle), rtol=0, atol=1e-6), what


def reports(samples, cosine=None, minus_error=None):
    unknown = torch.full((len(samples),), math.nan, dtype=torch.float64)
    values = {
        "cosine": unknown if cosine is None else tensor(cosine),
        "minus_error": unknown if minus_error is None else tensor(minus_error),
    }
    return Reports(tensor(samples), torch.ones(len(samples), dtype=torch.bool), values)


def stand_in_dice(centre):
    """1 / (1 + ||w - c||²), a Dice with a formula."""
    return lambda model: 1 / (1 + float((model - tensor(centre)).square().sum()))


def check_fedce_at_sites(content, combine):
    """Every round: the sites' claims from what they hold, then the server's weights and model."""
    config, method = content["config"], FedCE(combine=combine)
    state = method.start(tensor(config["w0"]), len(config["n"]))
    received, before, trained = tensor(config["w0"]), None, None
    for round, updates in zip(content[combine], content["updates"], strict=True):
        what = f"round {round['round']}"
        assert_equal(received, round["w_received"], what)
        cosine = minus_error = None
        if round["cosine"] is not None:
            cosine, minus_error = [], []
            for i, weight in enumerate(round["rho_received"]):
                dice = stand_in_dice(config["centres"][i])
                claims = method.report(SiteView(received, before, trained[i], weight, dice))
                cosine.append(claims["cosine"])
                minus_error.append(claims["minus_error"])
                assert_equal(minus_model(received, trained[i], weight), round["minus_model"][i], what)
            assert_equal(cosine, round["cosine"], what)
            assert_equal(minus_error, round["minus_error"], what)
            assert_equal(state.cosine, round["cosine"], what)  # as the server computes it
        state, outcome = method.round(state, tensor(updates), reports(config["n"], cosine, minus_error))
        if cosine is not None:
            assert_equal(outcome.contribution, round["gamma"], what)
            assert_equal(state.gamma_accumulated, round["gamma_accumulated"], what)
            assert not outcome.quantities["flagged"].any()
        assert_equal(outcome.weights, round["weights"], what)
        assert_equal(outcome.models, round["w_next"], what)
        received, before, trained = outcome.models, received, received + tensor(updates)


def check_fedce_at_server(content, combine):
    """The rule of NVFlare 2.9's aggregator; nobody has a minus model in round 0."""
    config, method = content["config"], FedCE(combine=combine, estimate="server")
    state = method.start(tensor(config["w0"]), len(config["n"]))
    received, trained = tensor(config["w0"]), None
    for round, updates in zip(content[f"nvflare_2_9_{combine}"], content["updates"], strict=True):
        what = f"round {round['round']}"
        assert_equal(received, round["w_received"], what)
        minus_error = None if round["minus_model"][0] is None else [1 - dice for dice in round["minus_dice"]]
        if minus_error:
            for i, weight in enumerate(round["coef_received"]):
                without = minus_model(received, trained[i], weight)
                assert_equal(without, round["minus_model"][i], what)
                assert abs(stand_in_dice(config["centres"][i])(without) - round["minus_dice"][i]) < 1e-6
        state, outcome = method.round(state, tensor(updates), reports(config["n"], minus_error=minus_error))
        assert_equal(outcome.quantities["cosine"], round["cos_sim"], what)
        assert_equal(state.minus_error_mean, round["err_score"], what)
        assert_equal(1 - state.cosine_mean, round["one_minus_mean_cos"], what)
        assert_equal(outcome.weights, round["coef"], what)
        assert_equal(outcome.models, round["w_next"], what)
        received, trained = outcome.models, received + tensor(updates)


def check_fedavg(content, combine):
    method = FedAvg()
    state = method.start(tensor(content["w0"]), len(content["n"]))
    _, outcome = method.round(state, tensor(content["delta"]), reports(content["n"]))
    assert_equal(outcome.weights, content["p"], "weights")
    assert_equal(outcome.models, content["FedAvg"]["server_w"], "model")


def at_sites(content, key):
    return isinstance(content.get(key), list) and {"rho_received", "cosine", "minus_error"} <= set(content[key][0])


READERS = {  # what a file holds: (method, entry, its combine, how it is compared)
    "times": ("fedce", "times", check_fedce_at_sites),
    "plus": ("fedce", "plus", check_fedce_at_sites),
    "nvflare_2_9_times": ("fedce", "times", check_fedce_at_server),
    "nvflare_2_9_plus": ("fedce", "plus", check_fedce_at_server),
    "FedAvg": ("fedavg", None, check_fedavg),
}


def entries(content):
    """The entries of a file that some reader knows."""
    return [key for key in READERS if key in content and (key not in ("times", "plus") or at_sites(content, key))]


@pytest.mark.skipif(not FILES, reason=f"no oracles in {FOLDER} (set FEDMERIT_ORACLES)")
@pytest.mark.parametrize(
    ("file", "entry"),
    [(name, entry) for name, content in CONTENTS.items() for entry in entries(content) or [None]],
    ids=lambda value: value or "unread",
)
def test_worked_numbers(file, entry):
    if entry is None:
        named = file.removesuffix(".json").split("_")[0]
        built = f"no entry of {file} has a reader" if named in METHODS else f"method {named} is not built"
        pytest.skip(built)
    _, combine, check = READERS[entry]
    check(CONTENTS[file], combine)


@pytest.mark.skipif(not FILES, reason=f"no oracles in {FOLDER} (set FEDMERIT_ORACLES)")
@pytest.mark.parametrize("method", METHODS)
def test_the_oracle_of_every_built_method_is_read(method):
    """A new method whose worked numbers lie there needs a reader above."""
    content = CONTENTS.get(f"{method}.json")
    if content is None:
        pytest.skip(f"no {method}.json")
    assert method in {READERS[entry][0] for entry in entries(content)}
