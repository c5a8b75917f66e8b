"""Results, a site's log, and a server's key, for tests of what is compared with them."""

from collections.abc import Callable, Iterable
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
