"""What an engine carries out: a run that is open, the sites that train in it, and who listens."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedmerit.ciphertexts import SiteKey
from fedmerit.schema.configuration.options import Waiting
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Answer, Work
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.site.peers import AskPeer
from fedmerit.site.site import Site

OnRound = Callable[[Mapping[str, Any]], None]  # is called with the ledger record of every round
OnExchange = Callable[[Mapping[str, Work], Mapping[str, Answer]], None]  # with its tasks and answers, by site
NO_LIMIT = Waiting(1, 0.0)  # rounds take as long as they take, and one usable answer is enough


class Sites(Protocol):
    """The part of a run that trains at its sites on this machine: prepared images, or a script."""

    @property
    def names(self) -> list[str]:
        """The names of the sites that take part."""

    @property
    def server_folders(self) -> Sequence[SiteFolder]:
        """The site folders of the server."""

    @property
    def failures(self) -> Mapping[str, str]:
        """The reasons, by site, why last answers failed, of sites whose failure does not end the run."""

    def device(self, name: str) -> str:
        """Return the device of a site or the server."""

    def count_processes(self, config: RunConfiguration, threads: int | None) -> int:
        """Return how many sites work at the same time in processes of their own."""

    def environment(self) -> dict[str, str]:
        """Return the variables that tell processes of sites and server on this machine where their data is."""

    def open_site(
        self, name: str, config: RunConfiguration, memory: Path, ask_peer: AskPeer, key: SiteKey | None
    ) -> AbstractContextManager[Site]:
        """Start a site in this process, and end it when the context is left."""


@dataclass(frozen=True)
class Laboratory:
    """A replacement of a run's sites for studies: none of it can be configured, the laboratory passes the code."""

    wrap_site: Callable[[Site], Site] = lambda site: site  # on the local engine
    simulator: str = "fedmerit.engines.nvflare.simulator"  # module of the program that simulates the run on NVFlare


@dataclass(frozen=True)
class OpenRun:
    """A run folder that this process holds, with all that carrying it out takes."""

    folder: Path
    config: RunConfiguration
    sites: Sites
    lock: int  # the file descriptor that holds the folder
    on_round: OnRound
    privacy: Sequence[str] = ()  # specs of the privacy filters
    waiting: Waiting = NO_LIMIT
    threads: int | None = None  # sites at work at a time; None: as many as the machine has cores for
    contexts: tuple[bytes, bytes] | None = None  # TenSEAL's, of sites and server, if updates leave encrypted
    on_exchange: OnExchange = lambda tasks, answers: None
    laboratory: Laboratory = Laboratory()


class Engine(Protocol):
    """A way to carry out a run: in this process, or by NVFlare."""

    def __call__(self, run: OpenRun) -> None:
        """Start the sites, carry out the exchanges after the last complete round, and end the sites.

        Raises:
            RunFailed: the run did not finish; the message says why, or where the log is.
        """
