"""Privacy filters: what they do to an update, and what site and server make of it."""

import json
from functools import cache

import numpy as np
import pytest
import torch

from fedmerit.contract import flat
from fedmerit.engines.nvflare.components import class_path
from fedmerit.engines.nvflare.egress import EgressFilter
from fedmerit.engines.nvflare.privacy import build_answer_filter, find_own_decimals
from fedmerit.engines.nvflare.recipe import build_site_policy
from fedmerit.evidence.ledger import Ledger
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.configuration.settings import TASKS
from fedmerit.schema.messages import Reply
from fedmerit.schema.run_info import read_run
from fedmerit.trainers.factory import initial_network

PERCENTILE = "percentile:percentile=50,gamma=0.01"


@pytest.fixture(scope="module")
def network():
    config = make_configuration(
        "fedce", "prostate", 1, 0, TASKS["prostate"], {"architecture": "unet", "width": 4, "depth": 2}
    )
    return initial_network(config.network, 0)


@pytest.fixture
def reply(network):
    update = torch.randn(len(flat.get_parameters(network)), generator=torch.Generator().manual_seed(0)) / 50
    return Reply(0, update, flat.get_buffers(network), 12, ())


def sent(spec, reply, network):
    answer = build_answer_filter([spec], network)(reply)
    assert isinstance(answer, Reply)
    assert (answer.update.dtype, answer.update.shape) == (reply.update.dtype, reply.update.shape)
    assert all(torch.equal(answer.buffers[name], value) for name, value in reply.buffers.items())
    return answer.update


def test_percentile_drops_what_is_small_and_clips_what_is_large(network, reply):
    update = sent(PERCENTILE, reply, network)
    cutoff = np.percentile(reply.update.abs().numpy(), 50)
    expected = reply.update.clamp(-0.01, 0.01).where(reply.update.abs() >= cutoff, 0.0)
    assert torch.allclose(update, expected, rtol=0, atol=1e-9)
    assert 0.45 < float((update == 0).double().mean()) < 0.55


def test_gaussian_cuts_to_a_norm_and_adds_noise(network, reply):
    quiet = sent("gaussian:clip=0.5,noise=1e-9", reply, network)
    assert float(quiet.double().norm()) == pytest.approx(0.5, rel=1e-5)
    assert torch.allclose(quiet / quiet.norm(), reply.update / reply.update.norm(), atol=1e-6)
    noise = sent("gaussian:clip=1000,noise=1e-5", reply, network) - reply.update
    assert float(noise.double().std()) == pytest.approx(0.01, rel=0.1)
    again = sent("gaussian:clip=1000,noise=1e-5", reply, network) - reply.update
    assert not torch.equal(noise, again)  # a seed that the server knows would take the noise away again


def test_export_puts_the_filters_before_the_gate(fedmerit, tmp_path):
    job = ("--method", "fedce", "--task", "prostate", "--out", tmp_path / "job")
    result = fedmerit("job", "export", *job, "--privacy", PERCENTILE, "--privacy", "gaussian:clip=2")
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "job/app/config/config_fed_client.json").read_text())
    chains = {task: group["filters"] for group in config["task_result_filters"] for task in group["tasks"]}
    assert [one["path"].rpartition(".")[2] for one in chains["evaluate"]] == ["EgressFilter"]
    filters = chains["train"]
    assert [one["path"].rpartition(".")[2] for one in filters] == [
        "PercentilePrivacy",
        "GaussianPrivacy",
        "EgressFilter",
    ]
    assert {one["path"] for one in filters} <= set(build_site_policy()["class_allow_list"])
    assert filters[0]["args"]["percentile"] == 50
    assert filters[1]["args"]["clip"] == 2


@pytest.fixture(scope="module")
def filtered(fedmerit, options, tmp_path_factory):
    """A FedCE run of two rounds whose updates pass the percentile filter, on either engine."""

    @cache
    def build(engine):
        run = tmp_path_factory.mktemp("filtered") / "run"
        result = fedmerit("run", "--out", run, *options(rounds=2, engine=engine), "--privacy", PERCENTILE)
        assert result.exit_code == 0, result.output
        return run

    return build


@pytest.mark.slow
def test_both_engines_filter_alike_and_no_honest_site_is_flagged(filtered, trained, assert_same_run, model):
    """FedCE's sites know their own share of the model by what they sent, so that their claims hold."""
    local, simulated = filtered("local"), filtered("sim")
    assert_same_run(local, simulated)
    assert read_run(local)["privacy"] == [PERCENTILE.replace("50", "50.0")]
    records = Ledger(local / "ledger.jsonl").records
    assert [record["flagged"] for record in records] == [[], []]
    assert records[1]["contributions"]["site1"] is not None
    plain = model(trained(rounds=2))
    assert any(not torch.equal(value, plain[name]) for name, value in model(local).items())


def test_resuming_asks_for_the_same_filters(filtered, fedmerit):
    run = filtered("local")
    assert fedmerit("run", "--resume", "--out", run, "--privacy", "percentile:percentile=50").exit_code == 0
    result = fedmerit("run", "--resume", "--out", run, "--privacy", "gaussian")
    assert result.exit_code == 2
    assert "privacy" in result.stderr


def test_decimals_of_a_kit_are_the_fewest_of_its_gates(tmp_path):
    assert find_own_decimals(tmp_path) == 6
    gates = [{"path": class_path(EgressFilter), "args": {"decimals": decimals}} for decimals in (5, 3)]
    scopes = [{"task_result_filters": [gate, {"path": "other.Filter"}]} for gate in gates]
    (tmp_path / "privacy.json").write_text(json.dumps({"scopes": scopes}))
    assert find_own_decimals(tmp_path) == 3
