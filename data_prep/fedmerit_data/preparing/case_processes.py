"""The processes that share the cases of a preparation; imports next to nothing, so that they can begin at once."""

from collections.abc import Sequence

from fedmerit.workers import begin_fork_server

PRELOADED = ("fedmerit_data.kinds", "fedmerit_data.preparing.cases")


def begin_processes(others: Sequence[str] = ()) -> None:
    """Let them import what cases need, and ``others``, while this one goes on; they wait for cases then."""
    begin_fork_server((*others, *PRELOADED))
