"""A run in processes of its own that waits before its end, so that whoever kills it cannot come too late."""

import os
from pathlib import Path

PROGRAM = """\
import os, time
original = os.fsync
def fsync(file):
    original(file)
    path = os.readlink(f"/proc/self/fd/{{file}}") if isinstance(file, int) else ""
    if path.startswith({below!r}) and path.endswith("/ledger.jsonl"):
        with open(path) as ledger:
            count = len(ledger.readlines())
        while count >= {records} and os.path.exists({gate!r}):
            time.sleep(0.05)
os.fsync = fsync
"""


class Gate:
    """Stops runs whose ledger has got a number of records, until it is opened.

    Args:
        folder: new folder of its own.
        below: the runs are those below this folder.
        records: of a ledger, from which on the server of that run goes no further.
    """

    def __init__(self, folder: Path, below: Path, records: int):
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(
            PROGRAM.format(below=f"{below.resolve()}{os.sep}", records=records, gate=str(folder / "closed"))
        )
        self.folder = folder
        (folder / "closed").touch()

    @property
    def environment(self) -> dict[str, str]:
        """Of the processes that it stops."""
        path = os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, "PYTHONPATH": path}

    def open(self) -> None:
        """Nothing waits any longer."""
        (self.folder / "closed").unlink()
