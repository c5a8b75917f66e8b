"""A run executed in a process of its own, to be measured: ``python -m evaluation.benchmarks.one_run RUN ENDS``.

Into the file ENDS goes a line for every round: the time at its end, and this process's memory (PSS) in bytes.
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from fedmerit.engines import runs


def main(run: str, ends: str) -> None:
    """Execute the run."""
    with Path(ends).open("a", buffering=1) as file:

        def note(record: Mapping[str, Any]) -> None:
            file.write(f"{time.time()} {psutil.Process().memory_full_info().pss}\n")

        runs.execute(Path(run), note)


if __name__ == "__main__":
    main(*sys.argv[1:])
