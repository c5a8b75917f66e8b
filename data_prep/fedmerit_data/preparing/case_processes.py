"""Worker processes of a preparation; this module imports little, so they can start at once."""

from collections.abc import Sequence

from fedmerit.workers import begin_fork_server

PRELOADED = ("fedmerit_data.kinds", "fedmerit_data.preparing.cases")


def begin_processes(others: Sequence[str] = ()) -> None:
    """Start a process that imports what cases need, and ``others``, while this one continues; workers fork from it."""
    begin_fork_server((*others, *PRELOADED))
