"""Results, a site's log, and a server's key, for tests of what is compared with them."""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedmerit.evidence.signatures import Signer
from fedmerit.evidence.verification.chains import SiteLog
from fedmerit.schema.records import LogEntry
from fedmerit.schema.results import ResultsFile, Row


@pytest.fixture(scope="session")
def own_log() -> Callable[..., SiteLog]:
    """A log of a site with these records, as it would be read from a file of the site's name."""

    def made(site: str, *entries: dict[str, Any]) -> SiteLog:
        defaults = {"site": site, "round": 0, "work": "train"}
        records = tuple(LogEntry.model_validate({**defaults, **entry}) for entry in entries)
        return SiteLog(Path(f"{site}.jsonl"), site, records)

    return made


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    """A server that signs."""
    from certificates import issue

    folder = tmp_path_factory.mktemp("keys")
    issue(folder, "server")
    return Signer(folder / "server.key", folder / "server.crt")


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Iterable[Row]], Path]:
    """A run folder whose results.csv has these rows."""

    def write(rows: Iterable[Row]) -> Path:
        ResultsFile(tmp_path / "results.csv").append(rows)
        return tmp_path

    return write


@pytest.fixture(scope="session")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The startup kits of a server and three hospitals, each its own organisation."""
    from signed_runs import HOST, KIT_SITES

    from fedmerit_deploy.provisioning import init, make_project

    project = make_project({site: site for site in KIT_SITES}, HOST, "org", {"admin@example.org": "project_admin"})
    return init(tmp_path_factory.mktemp("federation") / "out", project)[0].path.parent


@pytest.fixture(scope="session")
def made(
    kits: Path, sites: Path, server_sites_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """A function that makes a signed, guarded run, whose server ``spoil`` makes dishonest.

    ``aside``: the sites set images aside, on which they rate for each other.
    """
    from signed_runs import HOST, kit_signer, run_signed

    from fedmerit.evidence.signatures import read_certificate

    def make(method="fedce", spoil=lambda federation: None, lost=(), aside=False, **more):
        run, root = tmp_path_factory.mktemp("made") / "run", read_certificate(kits / "site1/startup/rootCA.pem")
        keys = kit_signer(kits, HOST), lambda site: kit_signer(kits, site)
        return run_signed(run, server_sites_data if aside else sites, method, *keys, lost, root, spoil, **more)

    return make


@pytest.fixture(scope="session")
def honest(made: Callable[..., Path]) -> Callable[..., Path]:
    """A function that makes the honest run of a method once: never change it."""
    return cache(made)
