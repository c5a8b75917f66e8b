"""A provisioned federation on this machine: kits of `deploy init`, processes by their own start scripts, no code."""

import pytest
from federation_factory import federation

NAMES = ["site1", "site2", "site3"]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory, sites):
    """Server and three sites at work, every job with a run folder of its own."""
    with federation(tmp_path_factory.mktemp("federation") / "kits", sites) as running:
        yield running


@pytest.fixture
def job(fedmerit, tmp_path):
    """A job folder as `fedmerit export` writes it; 2 rounds, tiny."""

    def export(*settings, method="fedce", rounds=2, name="job"):
        options = ("--rounds", rounds, "--min-sites", 3, "--set", "width=4", "--set", "depth=3")
        more = [text for setting in settings for text in ("--set", setting)]
        result = fedmerit("export", "--method", method, "--task", "prostate", "--out", tmp_path / name, *options, *more)
        assert result.exit_code == 0, result.output
        return tmp_path / name

    return export


@pytest.mark.parametrize("method", ["fedce", "cgsv"])
def test_deployment_gives_what_the_local_engine_gives(
    hospitals, job, trained, assert_same_model, assert_same_ledger, tmp_path, method
):
    name = hospitals.submit(job(method=method))
    assert hospitals.wait(name) == "FINISHED:COMPLETED"
    run = hospitals.fetch(name, tmp_path / "run")
    expected = trained(method=method, rounds=2)
    for path in sorted((expected / "models").glob("*.pt")):
        assert_same_model(run / "models" / path.name, path)
    assert_same_ledger(run, expected)
