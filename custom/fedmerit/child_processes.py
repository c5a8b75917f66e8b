"""Python processes that this one starts. None imports from the folder in which it happens to be started.

``python -m`` and ``python -c`` put the working folder first on ``sys.path``: a ``psutil.py`` in a run folder, or in a
startup kit, that somebody else sent would be executed. ``-P`` prevents that; the variable does so in the processes
that a child starts in turn.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

SAFE_PATH = "PYTHONSAFEPATH"
PATHS = "PYTHONPATH"
NO_PROXY = ("no_grpc_proxy", "no_proxy")  # hosts, and ends of host names, that gRPC reaches without a proxy


def python_command(*arguments: str) -> list[str]:
    """Return the command that runs this Python interpreter with ``arguments``, such as ``-m`` and a module."""
    return [sys.executable, "-P", *arguments]


def child_environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child process: this process's, with further ``variables``.

    Empty entries of ``PYTHONPATH`` stand for the working folder, and are left out.
    """
    environment = {**os.environ, **(variables or {}), SAFE_PATH: "1"}
    if PATHS in environment:
        environment[PATHS] = os.pathsep.join(filter(None, environment[PATHS].split(os.pathsep)))
    return environment


@contextmanager
def safe_children() -> Iterator[None]:
    """Have processes that other code starts in here, such as that of process pools, import safely, too."""
    before = {name: os.environ.get(name) for name in (SAFE_PATH, PATHS)}
    os.environ.update(child_environment())
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
