"""The processes that execute runs side by side; imports next to nothing, so that they can begin at once."""

from fedmerit.workers import begin_fork_server

PRELOADED = [
    "distributed",
    "fedmerit_evaluation.studies.execution",
    "fedmerit.engines.local",
    "torch._dynamo",  # which the first step of an optimiser imports
]


def begin_processes() -> None:
    """Let the one that they are forked from import what runs need, while this one goes on, if it has not begun."""
    begin_fork_server(PRELOADED)
