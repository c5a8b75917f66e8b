"""Starts the processes that execute runs in parallel; imports almost nothing, so they can start at once."""

from fedmerit.workers import begin_fork_server

PRELOADED = [
    "distributed",
    "fedmerit_evaluation.studies.execution",
    "fedmerit.engines.local",
    "torch._dynamo",  # imported by the first step of an optimiser
]


def begin_processes() -> None:
    """Start the process that they are forked from; it imports what runs need while this process continues."""
    begin_fork_server(PRELOADED)
