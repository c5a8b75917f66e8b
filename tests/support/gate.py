"""Runs in processes of their own that wait before their end, so that no kill comes too late."""

import os
from pathlib import Path

PROGRAM = """\
import math, os, time
def limit(gate):
    try:
        with open(gate) as file:
            return int(file.read() or 0)
    except FileNotFoundError:
        return math.inf
original = os.fsync
def fsync(file):
    original(file)
    path = os.readlink(f"/proc/self/fd/{{file}}") if isinstance(file, int) else ""
    if path.startswith({below!r}) and path.endswith("/ledger.jsonl"):
        with open(path) as ledger:
            count = len(ledger.readlines())
        while count >= limit({gate!r}):
            time.sleep(0.05)
os.fsync = fsync
"""


class Gate:
    """Stops every run below a folder once its ledger has got a number of records, while it is closed.

    Args:
        folder: new folder of its own.
        below: the runs are those below this folder.
        records: of a ledger, from which on no run goes further; None: it is open.
    """

    def __init__(self, folder: Path, below: Path, records: int | None = None):
        folder.mkdir()
        self.folder, self.file = folder, folder / "records"
        program = PROGRAM.format(below=f"{below.resolve()}{os.sep}", gate=str(self.file))
        (folder / "sitecustomize.py").write_text(program)
        if records is not None:
            self.close(records)

    @property
    def environment(self) -> dict[str, str]:
        """What the processes that it is to stop are started with, beside this one's own."""
        return {"PYTHONPATH": os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])}

    def close(self, records: int) -> None:
        """From now on runs stop there."""
        self.file.write_text(str(records))

    def open(self) -> None:
        """Nothing waits any longer."""
        self.file.unlink()
