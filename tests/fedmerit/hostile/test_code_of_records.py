"""Code that a record names: run folders, models, bundles, plans and sites that somebody hands over run none."""

import json
import shutil
import sys

import pytest

from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.run import RunConfiguration, make_configuration
from fedmerit.schema.configuration.settings import MONAI_NETWORKS, Network
from fedmerit.trainers.factory import build_network
from fedmerit.trainers.monai import networks
from fedmerit.trust import TRUST
from fedmerit_evaluation.models.predictor import open_bundle

HUB = "Project-MONAI_perceptual-models"
CODE = "from pathlib import Path\nPath({marker!r}).write_text('executed')\n"
ARGUMENTS = {"UNETR": {"img_size": 64, "hidden_size": 24, "mlp_dim": 24, "num_heads": 2}, "FlexibleUNet": {}}
ARGUMENTS["FlexibleUNet"]["backbone"] = "efficientnet-b0"


@pytest.fixture
def handed(trained, tmp_path, monkeypatch):
    """A finished run that somebody changed: building its network executes ``hubconf.py`` beside it."""
    run = tmp_path / "run"
    shutil.copytree(trained(rounds=1), run)
    hub = tmp_path / "hub"  # a run folder with code is refused before
    (hub / f"{HUB}_main").mkdir(parents=True)
    (hub / "trusted_list").write_text(f"{HUB}\n")
    (hub / f"{HUB}_main" / "hubconf.py").write_text(CODE.format(marker=str(run / "marker")))
    monkeypatch.delenv(TRUST, raising=False)
    hostile = {
        "architecture": "monai.losses.perceptual:PerceptualLoss",
        "norm": "own",
        "arguments": {
            "network_type": "medicalnet_resnet10_23datasets", "spatial_dims": 3, "is_fake_3d": False,
            "cache_dir": str(hub),
        },
    }  # fmt: skip
    change(run / "models" / "model.json", lambda said: said.update(hostile))
    change(run / "run.json", lambda said: said["plan"]["network"].update(hostile))
    return run


def change(file, how):
    said = json.loads(file.read_text())
    how(said)
    file.write_text(json.dumps(said))


@pytest.mark.parametrize("command", ["report", "evaluate", "predict", "model export", "run --resume"])
def test_no_command_executes_what_lies_in_a_run_folder(handed, sites, fedmerit, tmp_path, command):
    """Even for those that trust its records: of MONAI only networks of a list are built."""
    image = next((sites / "site1").rglob("*.npy"))
    reported = fedmerit(
        *command.split(),
        *{
            "report": (handed, "--out", tmp_path / "report"),
            "evaluate": (handed, "--sites", sites),
            "predict": (handed, image, "--out", tmp_path / "masks"),
            "model export": (handed, "--bundle", tmp_path / "bundle"),
            "run --resume": ("--out", handed),
        }[command],
        "--trust",
    )
    assert not (handed / "marker").exists()
    assert reported.exit_code == 2, reported.output
    assert reported.stderr.startswith("error: ")
    assert "arguments: cache_dir=" in reported.stderr
    assert reported.stderr.count("\n") == 1


def test_a_bundle_executes_nothing(handed, tmp_path):
    said = json.loads((handed / "models" / "model.json").read_text())
    (tmp_path / "bundle" / "configs").mkdir(parents=True)
    fed = said.pop("preprocessing")
    content = {"description": {"network": said, "preprocessing": fed}}
    (tmp_path / "bundle" / "configs" / "inference.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match="no bundle that `fedmerit model export` wrote"):
        open_bundle(tmp_path / "bundle")
    assert not (handed / "marker").exists()


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module that leaves a mark when it is imported."""
    (tmp_path / "handed_over.py").write_text(
        CODE.format(marker=str(tmp_path / "marker")) + "from torch import nn\n\n\n"
        "class Net(nn.Conv2d):\n    def __init__(self, in_channels, out_channels):\n"
        "        super().__init__(in_channels, out_channels, 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv(TRUST, raising=False)
    monkeypatch.setattr(networks.NETWORKS, "_loaded", {})
    monkeypatch.setattr(METHODS, "_loaded", {})
    monkeypatch.delitem(sys.modules, "handed_over", raising=False)
    return tmp_path / "marker"


def test_a_method_that_only_a_record_names_is_not_imported(trained, sites, fedmerit, tmp_path, own_module):
    run = tmp_path / "run"
    shutil.copytree(trained(rounds=1), run)
    change(run / "run.json", lambda said: said.update(method="handed_over:Net"))
    fedmerit("evaluate", run, "--sites", sites)
    assert not own_module.exists()


@pytest.mark.parametrize("command", ["evaluate", pytest.param("report", marks=pytest.mark.slow)])
def test_code_that_only_a_record_names_needs_trust(trained, sites, fedmerit, tmp_path, own_module, command):
    run = tmp_path / "run"
    shutil.copytree(trained(rounds=1), run)
    changed = {"architecture": "handed_over:Net", "arguments": {}, "norm": "own"}
    change(run / "models" / "model.json", lambda said: said.update(changed))
    rest = ("--sites", sites) if command == "evaluate" else ("--out", tmp_path / "report")
    reported = fedmerit(command, run, *rest)
    assert reported.exit_code == 2, reported.output
    assert "'handed_over:Net', code that is not imported only because a record names it" in reported.stderr
    assert "look at it, then give the same command with --trust" in reported.stderr
    assert not own_module.exists()
    fedmerit(command, run, *rest, "--trust")
    assert own_module.exists()


def test_code_in_a_file_of_options_needs_trust(sites, fedmerit, tmp_path, own_module):
    (tmp_path / "o.toml").write_text('method = "fedavg"\n[settings]\narchitecture = "handed_over:Net"\n')
    options = ("--sites", sites, "--rounds", 1, "--engine", "local", "--config", tmp_path / "o.toml")
    reported = fedmerit("run", "--out", tmp_path / "run", *options)
    assert "o.toml: names 'handed_over:Net'" in reported.stderr
    assert not own_module.exists()


def test_who_names_code_on_the_command_line_needs_no_trust(own_module):
    config = make_configuration(
        "fedavg", "prostate", 1, 0, {"in_channels": 1, "labels": ["prostate"]}, {"architecture": "handed_over:Net"}
    )
    assert type(build_network(config.network)).__name__ == "Net"


def test_a_plan_that_only_a_record_holds_needs_trust(own_module, monkeypatch):
    config = make_configuration("fedavg", "prostate", 1, 0, {"in_channels": 1, "labels": ["prostate"]}, {})
    plan = config.to_dict()
    plan["network"] |= {"architecture": "handed_over:Net"}
    with pytest.raises(BadInput, match="--trust"):
        build_network(RunConfiguration.from_dict(plan).network)
    with pytest.raises(BadInput, match="--trust"):
        RunConfiguration.from_dict(plan | {"method": "handed_over:Net"})
    assert not own_module.exists()


@pytest.mark.parametrize("name", MONAI_NETWORKS)
def test_every_listed_network_is_built_without_the_net(name, monkeypatch):
    """Nothing is downloaded, and no layer sees the whole image."""
    monkeypatch.setattr("socket.socket.connect", lambda *args: pytest.fail("a connection"))
    built = build_network(Network(1, ("prostate",), name, arguments=ARGUMENTS.get(name, {})))
    assert sum(one.numel() for one in built.parameters()) > 10_000
    dense = [one for one in built.modules() if type(one).__name__ == "Linear"]
    assert all(one.in_features < 64 * 64 for one in dense)


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"architecture": "Generator", "arguments": {"latent_shape": [8]}}, "'Generator': unknown; expected one of"),
        ({"architecture": "EfficientNetBN", "arguments": {"pretrained": True}}, "pretrained=true: no weights"),
        ({"architecture": "FullyConnectedNet"}, "unknown"),
        ({"architecture": "torch.nn:Linear"}, "of torch and MONAI only"),
        ({"architecture": "VNet", "arguments": {"act": "../../x"}}, "act='../../x': expected numbers"),
        ({"architecture": "VNet", "arguments": {"act": "os"}}, "act='os': expected one of celu"),
        ({"architecture": "VNet", "arguments": {"bias": "hub"}}, "bias='hub': expected no text for VNet"),
        ({"arguments": {"dropout": float("nan")}}, "dropout=nan: expected numbers"),
        ({"arguments": {"filters": [8] * 33}}, "filters=.*: expected numbers"),
        ({"arguments": {"act_name": ["relu", {"inplace": ["relu"]}]}}, "expected numbers"),
        ({"architecture": "mine", "arguments": {"cache_dir": "https://x"}}, "cache_dir='https://x': expected numbers"),
        ({"labels": ["../../prostate"]}, "labels=.*expected 1 to 64 names"),
        ({"labels": ["$import os"]}, "labels=.*expected 1 to 64 names"),
        ({"width": 512, "depth": 9}, "takes more than 1074 MB"),
    ],
)
def test_what_a_description_may_not_say(changes, reported):
    with pytest.raises(BadInput, match=reported):
        build_network(Network.from_dict({"in_channels": 1, "labels": ["prostate"], **changes}))


@pytest.mark.parametrize("engine", ["local", "sim"])
@pytest.mark.parametrize(
    ("hostile", "trust", "reported"),
    [
        ({}, (), "--trust"),
        ({"command": "touch marker"}, ("--trust",), "command"),
        ({"env": "x"}, ("--trust",), "env"),
        ({"file": "nowhere.py"}, ("--trust",), "gone"),
    ],
)
def test_the_script_that_a_handed_run_names_is_not_run(
    fedmerit, tmp_path, monkeypatch, engine, hostile, trust, reported
):
    """The user who created the run here named it; who continues with a folder of others did not."""
    monkeypatch.delenv(TRUST, raising=False)
    (tmp_path / "client.py").write_text(CODE.format(marker=str(tmp_path / "marker")))
    (tmp_path / "model.py").write_text("from torch import nn\n\n\nclass Net(nn.Linear):\n"
                                       "    def __init__(self):\n        super().__init__(2, 1)\n")  # fmt: skip
    options = {"method": "fedavg", "script": tmp_path / "client.py", "model": f"{tmp_path / 'model.py'}:Net"}
    runs.create(tmp_path / "run", **options, engine=engine, rounds=1)
    monkeypatch.delenv(TRUST)
    change(tmp_path / "run" / "run.json", lambda said: said["script"].update(hostile))
    refused = fedmerit("run", "--resume", "--out", tmp_path / "run", *trust)
    assert refused.exit_code == 2, refused.output
    assert reported in refused.stderr
    assert not (tmp_path / "marker").exists()


TRACKER = "mlflow:uri=http://127.0.0.1:9/x"


@pytest.mark.parametrize(("more", "trusted"), [((), False), (("--track", TRACKER), True), (("--trust",), True)])
def test_scalars_go_to_no_address_that_only_a_handed_run_names(
    trained, sites, fedmerit, tmp_path, monkeypatch, more, trusted
):
    """MLflow's client, which a job starts, connects to it."""
    monkeypatch.delenv(TRUST, raising=False)
    monkeypatch.setattr("fedmerit.engines.nvflare.program.run_simulator", lambda *rest: pytest.fail("started"))
    run = tmp_path / "run"
    shutil.copytree(trained(rounds=1), run)
    change(run / "run.json", lambda said: said.update(track=[TRACKER], engine="sim"))
    (run / "checkpoint.pt").unlink()
    if trusted:
        with pytest.raises(pytest.fail.Exception, match="started"):
            fedmerit("run", "--resume", "--out", run, *more)
        return
    reported = fedmerit("run", "--resume", "--out", run, *more)
    assert reported.exit_code == 2, reported.output
    assert f"run.json: names the tracker '{TRACKER}'" in reported.stderr
    assert "--trust" in reported.stderr


def test_an_address_in_a_file_of_options_needs_trust(sites, fedmerit, tmp_path, monkeypatch):
    monkeypatch.delenv(TRUST, raising=False)
    (tmp_path / "o.toml").write_text(f'method = "fedavg"\ntrack = ["{TRACKER}"]\n')
    reported = fedmerit(
        "run", "--out", tmp_path / "run", "--sites", sites, "--engine", "sim", "--config", tmp_path / "o.toml"
    )
    assert f"o.toml: names the tracker '{TRACKER}'" in reported.stderr
