"""A federation's startup kits, as provisioned and made ready, and what the preflight says of them."""

import shutil

import pytest


@pytest.fixture(scope="session")
def provisioned(tmp_path_factory, fedmerit):
    """A project of a server and two sites, kits and keys and all, by `fedmerit deploy init`: never change it."""
    from fedmerit.engines.nvflare.poc import find_free_port

    out = tmp_path_factory.mktemp("provisioned") / "federation"
    options = ("--sites", "site1,site2:hospital2", "--server", "localhost", "--org", "lead")
    admins = ("--admin", "a@lead.org:project_admin", "--admin", "b@lead.org:member")
    result = fedmerit("deploy", "init", "--out", out, *options, "--ports", find_free_port(), *admins)
    assert result.exit_code == 0, result.output
    for line in ("site1", "hospital2", "project_admin", str(out / "project.yml")):
        assert line in result.output
    return out


@pytest.fixture
def federation(provisioned, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(provisioned, tmp_path / "federation")


@pytest.fixture
def ready(federation, sites):
    """A site's kit, made ready."""
    from fedmerit_deploy.kits import prepare_site

    kit = federation / "fedmerit/prod_00/site1"
    prepare_site(kit, sites / "site1")
    return kit


@pytest.fixture(scope="session")
def found():
    """State and text of the preflight's lines on one matter."""
    from fedmerit_deploy.checks import check_machine

    def lines(kit, what, **options):
        return [(line.state, line.message) for line in check_machine(kit, **options) if line.what == what]

    return lines
