"""A federation's startup kits, as provisioned and made ready, and what the preflight says of them."""

import shutil

import pytest


@pytest.fixture(scope="session")
def provisioned(tmp_path_factory):
    """A project of a server and two sites, kits and keys and all: never change it."""
    from fedmerit.engines.nvflare.poc import find_free_port
    from fedmerit_deploy.provisioning import init, make_project

    out, port = tmp_path_factory.mktemp("preflight") / "federation", find_free_port()
    project = make_project(
        {"site1": "lead", "site2": "lead"},
        "localhost",
        "lead",
        {"a@lead.org": "project_admin"},
        "fedmerit",
        (port, port),
    )
    init(out, project)
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
