"""A run in its own process, to be measured: ``python -m fedmerit_lab.benchmarks.one_run RUN ENDS``.

It writes a line for every round into the file ENDS: the time at its end, this process's memory (PSS) in bytes, and the
part of it that is not mapped from files. Only this part shows leaks: pages of libraries count by the number of
processes that share them.
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
            used = psutil.Process().memory_full_info()
            file.write(f"{time.time()} {used.pss} {used.rss - used.shared}\n")

        runs.execute(Path(run), note)


if __name__ == "__main__":
    main(*sys.argv[1:])
