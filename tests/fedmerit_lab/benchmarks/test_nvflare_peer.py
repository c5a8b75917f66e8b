"""What a user would run instead, on NVFlare alone."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from run_factory import make_sites

from fedmerit.engines import runs
from fedmerit_lab.benchmarks import nvflare_client, nvflare_peer


def test_the_job_is_of_the_runs_network_sites_and_rounds(tmp_path, monkeypatch):
    sites = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=16)
    settings = {"architecture": "unet", "width": "2", "depth": "2"}
    runs.create(tmp_path / "run", "fedce", sites, 3, engine="local", settings=settings)
    asked = {}
    monkeypatch.setattr(
        nvflare_peer,
        "FedCERecipe",
        lambda **given: SimpleNamespace(execute=lambda environment: asked.update(given, environment=environment)),
    )
    monkeypatch.setattr(nvflare_peer, "SimEnv", lambda **given: given)
    nvflare_peer.main(str(tmp_path / "run"), "ends.txt", str(tmp_path / "workspace"), "2")
    description = json.loads((tmp_path / "run" / "run.json").read_text())["plan"]["network"]
    assert json.loads(asked["model"].description) == description
    assert (asked["min_clients"], asked["num_rounds"], asked["fedce_mode"]) == (2, 3, "times")
    assert asked["train_script"] == nvflare_client.__file__
    expected = ["--run", str(tmp_path / "run"), "--ends", str(Path("ends.txt").resolve()), "--threads", "2"]
    assert asked["train_args"].split() == expected
    workspace = str(tmp_path / "workspace")
    assert asked["environment"] == {"clients": ["Alder", "Birch"], "num_threads": 2, "workspace_root": workspace}


def test_the_aggregator_gets_every_sites_update(monkeypatch):
    """Sites that differ alike count alike: the aggregate of (2, 0) and (0, 4) is half of each."""
    found = []

    class Noted(nvflare_peer.FedCEModelAggregator):
        def aggregate_model(self):
            found.append(super().aggregate_model())
            return found[-1]

    monkeypatch.setattr(nvflare_peer, "FedCEModelAggregator", Noted)
    nvflare_peer.aggregate([{"weight": torch.tensor([2.0, 0.0])}, {"weight": torch.tensor([0.0, 4.0])}])
    (aggregate,) = found
    assert torch.as_tensor(aggregate.params["weight"]).tolist() == pytest.approx([1, 2])
    assert aggregate.meta["nr_aggregated"] == 2
