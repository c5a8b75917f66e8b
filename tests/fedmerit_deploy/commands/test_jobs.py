"""`fedmerit job`: exported jobs, and the admin's commands with wrong kits. Sessions: tests of flare."""

import json

import pytest
from made_photographs import write_photographs

from fedmerit.schema.site_folder import images_digest, open_sites


def test_export_accepts_options_of_run(fedmerit, tmp_path):
    options = ("--preset", "paper", "--set", "final_model=selected", "--study", "prostate-x")
    result = fedmerit("job", "export", "--method", "cgsv", "--task", "prostate", "--out", tmp_path / "job", *options)
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "job" / "app" / "config" / "config_fed_server.json").read_text())
    plan = config["workflows"][0]["args"]["plan"]
    training = plan["training"]
    assert (training["optimizer"], training["lr"], training["final_model"]) == ("sgd", 0.015, "selected")
    assert (plan["parameters"]["gamma"], plan["study"]) == (0.15, "prostate-x")


@pytest.mark.parametrize("options", [("--min-sites", 0), ("--rounds", 0), ("--set", "depth=1")])
def test_export_rejects_unusable_parameter(fedmerit, tmp_path, options):
    job = tmp_path / "job"
    result = fedmerit("job", "export", "--method", "fedce", "--task", "prostate", "--out", job, *options)
    assert result.exit_code == 2
    assert "expected" in result.stderr
    assert not job.exists()


@pytest.mark.parametrize("options", [("--set", "last_round=own"), ("--set", "statistics=own", "--privacy", "he")])
def test_export_rejects_what_run_rejects(fedmerit, tmp_path, options):
    method = "fedavg" if "he" in options else "cgsv"
    result = fedmerit("job", "export", "--method", method, "--task", "prostate", "--out", tmp_path / "job", *options)
    assert result.exit_code == 2
    assert "=own: " in result.stderr
    assert "leave it out" in result.stderr
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("options", "enough"),
    [
        (("--method", "cffl"), ("--server-sites", "own")),
        (("--method", "vpdl"), ("--share-models",)),
        (("--method", "fedavg", "--values", "multi_round"), ("--share-models",)),
    ],
)
def test_export_asks_for_consent_to_share_models(fedmerit, sites, tmp_path, options, enough):
    command = ("job", "export", "--task", "prostate", "--out", tmp_path / "job", *options)
    result = fedmerit(*command)
    assert result.exit_code == 2
    assert "add --share-models if all sites agree" in result.stderr
    assert not (tmp_path / "job").exists()
    result = fedmerit(*command, *(sites if word == "own" else word for word in enough))
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "job" / "app" / "config" / "config_fed_client.json").read_text())
    plan = config["executors"][0]["executor"]["args"]["plan"]
    assert plan["share_models"] == ("--share-models" in enough)
    assert plan.get("server_images") == (images_digest(open_sites(sites)) if "own" in enough else None)


def test_export_accepts_sites_of_own_task(fedmerit, tmp_path):
    source = write_photographs(tmp_path / "raw")
    given = ("--labels", "disc=1+2", "--task", "eyes", "--size", 32, "--jobs", 1, "--no-pictures")
    result = fedmerit("prepare", "generic", "--source", source, "--out", tmp_path / "sites", *given)
    assert result.exit_code == 0, result.output
    result = fedmerit("job", "export", "--method", "fedavg", "--sites", tmp_path / "sites", "--out", tmp_path / "job")
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "job" / "app" / "config" / "config_fed_server.json").read_text())
    plan = config["workflows"][0]["args"]["plan"]
    assert (plan["task"], plan["network"]["labels"], plan["network"]["in_channels"]) == ("eyes", ["disc"], 3)
    assert plan["preprocessing"]["size"] == [32, 32]
    for options in ((), ("--task", "prostate", "--sites", tmp_path / "sites"), ("--task", "eyes")):
        result = fedmerit("job", "export", "--method", "fedavg", "--out", tmp_path / "other", *options)
        assert result.exit_code == 2
        assert "--sites" in result.output


@pytest.mark.parametrize("command", [("status",), ("submit", "job"), ("fetch", "id", "--out", "run"), ("abort", "id")])
def test_commands_reject_other_folder_as_kit(fedmerit, tmp_path, command):
    result = fedmerit("job", *command, "--kit", tmp_path)
    assert result.exit_code == 2
    assert "startup kit" in result.stderr
