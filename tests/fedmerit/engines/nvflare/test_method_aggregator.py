"""Methods with one model for all as NVFlare's workflows take them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

from fedmerit.engines.nvflare.method_aggregator import MethodAggregator
from fedmerit.errors import BadInput, RunFailed
from fedmerit.methods.registry import METHODS
from fedmerit.schema.results import read_results
from fedmerit.trainers.script.trainer import STEPS

ROOT, SIDES = Path(__file__).resolve().parents[4], ("server", "client")
RANDOM = np.random.default_rng(0)
ONE_MODEL = "fedavg fedavgm fedadam median trimmed krum fedmgda"


@pytest.fixture
def aggregator(tmp_path):
    def make(method="fedavg", **settings):
        made = MethodAggregator(method, settings)
        workspace = SimpleNamespace(get_run_dir=lambda job: str(tmp_path))
        engine = SimpleNamespace(get_workspace=lambda: workspace, get_clients=lambda: [])
        made.fl_ctx = SimpleNamespace(
            get_engine=lambda: engine, get_job_id=lambda: "job", get_peer_context=lambda: None
        )
        return made

    return make


def answer(site, steps=1, kind=ParamsType.DIFF, **change):
    params = {
        "first.weight": RANDOM.normal(size=(2, 3)).astype(np.float32),
        "norm.running_var": np.array([-0.5, steps], np.float32),
        "norm.num_batches_tracked": np.array(steps),
        "last.weight": RANDOM.normal(size=(1, 2)).astype(np.float32),
    }
    return FLModel(params=params | change, params_type=kind, meta={"client_name": site, STEPS: steps})


def played(aggregator, *answers):
    aggregator.reset_stats()
    for one in answers:
        aggregator.accept_model(one)
    return aggregator.aggregate_model()


def test_fedavg_adds_the_mean_by_steps_and_records_the_rounds(aggregator, tmp_path):
    made = aggregator(guard="off")
    for _ in range(2):
        answers = [answer("b", 1), answer("a", 3)]
        result = played(made, *answers)
        assert result.params_type == ParamsType.DIFF
        for name in ("first.weight", "last.weight", "norm.running_var"):
            expected = (answers[0].params[name] + 3 * answers[1].params[name]) / 4
            assert np.allclose(result.params[name], expected, atol=1e-6)
        assert result.params["norm.num_batches_tracked"] == 3
    results = read_results(tmp_path / "fedmerit")
    assert results[results["quantity"] == "weight"].groupby("site")["value"].mean().to_dict() == {"a": 0.75, "b": 0.25}
    assert len((tmp_path / "fedmerit" / "ledger.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("spoiled", "words"),
    [
        ({"last.weight": np.full((1, 2), np.nan, np.float32)}, "NaN"),
        ({"last.weight": np.zeros((2, 2), np.float32)}, "another shape"),
        ({"kind": ParamsType.FULL}, "TransferType.DIFF"),
    ],
)
def test_an_answer_that_is_none_is_left_out_and_the_ledger_says_why(aggregator, tmp_path, spoiled, words):
    made, good = aggregator(), answer("a")
    result = played(made, good, answer("b"), answer("c"))
    result = played(made, good := answer("a"), answer("b", **spoiled), other := answer("c"))
    expected = (good.params["last.weight"] + other.params["last.weight"]) / 2
    assert np.allclose(result.params["last.weight"], expected, atol=1e-2)
    last = json.loads((tmp_path / "fedmerit" / "ledger.jsonl").read_text().splitlines()[-1])
    assert words in last["rejected"]["b"]


@pytest.mark.parametrize(
    ("method", "settings"),
    [(name, {}) for name in ONE_MODEL.split()] + [("cgsv", {"reward": "global"}), ("shapfed", {"reward": "global"})],
)
def test_methods_with_one_model_aggregate(aggregator, method, settings):
    result = played(aggregator(method, **settings), *(answer(site) for site in "abcd"))
    assert all(np.isfinite(value).all() for value in result.params.values())
    assert torch.tensor(list(result.meta["weights"].values())).sum() == pytest.approx(1, abs=1e-6)


def test_others_say_why_not():
    for name in {*METHODS.ours} - {*ONE_MODEL.split()}:
        with pytest.raises(BadInput, match=f"{name}: "):
            MethodAggregator(name)
    with pytest.raises(BadInput, match="expected show"):
        MethodAggregator("fedavg", {"on_verdict": "exclude"})


def test_without_an_answer_there_is_no_round(aggregator):
    with pytest.raises(RunFailed, match="no site sent parameters"):
        played(aggregator())


def test_there_is_a_job_folder_for_each_of_these_methods_and_all_else_in_it_is_the_same():
    found = {}
    for job in sorted(ROOT.glob("jobs/nvflare/*")):
        server, client = (json.loads((job / "app/config" / f"config_fed_{side}.json").read_text()) for side in SIDES)
        own = server["components"].pop(-1)
        MethodAggregator(**own["args"])
        assert own["path"] == f"{MethodAggregator.__module__}.{MethodAggregator.__name__}"
        assert job.name == own["args"]["method"]
        found[own["args"]["method"]] = server, client
    assert set(found) == {*ONE_MODEL.split(), "cgsv", "shapfed"}
    assert all(one == found["cgsv"] for one in found.values())


@pytest.mark.slow
def test_a_job_folder_runs_on_nvflares_own_simulator(tmp_path):
    job = shutil.copytree(ROOT / "jobs" / "nvflare" / "cgsv", tmp_path / "job")
    (job / "app" / "custom").mkdir()
    for name in ("client.py", "model.py", "data.py"):
        shutil.copy(ROOT / "examples" / "nvflare_project" / name, job / "app" / "custom" / name)
    server = job / "app" / "config" / "config_fed_server.json"
    server.write_text(server.read_text().replace('"num_rounds": 50', '"num_rounds": 2'))
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(job), "-w", str(tmp_path / "ws"), "-n", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    run = tmp_path / "ws" / "server" / "simulate_job" / "fedmerit"
    assert (run / "ledger.jsonl").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    assert len((run / "ledger.jsonl").read_text().splitlines()) == 2
    assert (read_results(run)["quantity"] == "contribution").sum() >= 4  # NVFlare's workflow waits for two of three
    assert list((tmp_path / "ws").rglob("FL_global_model.pt"))
