"""One run of a study executed to its end in this process: its failure is a text, not the end of the study."""

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedmerit.engines import runs
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import write_text
from fedmerit.records.results import read_run

After = Callable[[Path, Path], None]  # of a run folder, and of the folder in which its sites lie here


class Places(NamedTuple):
    """Where site folders lie by now, or on this machine; None: where run.json says."""

    sites: Path | None = None
    server_sites: Path | None = None


AS_RECORDED = Places()


def execute_one(
    folder: Path,
    on_round: Callable[[Mapping[str, Any]], None],
    after: After | None = None,
    threads: int | None = None,
    places: Places = AS_RECORDED,
) -> str | None:
    """Execute a run from its last complete round.

    Args:
        folder: the run folder.
        on_round: called with every round's ledger record.
        after: called when it has come to its end.
        threads: sites at work at a time; None: as it was created with.
        places: of its site folders.

    Returns:
        Why it failed, or None. What is no `RunFailed` leaves its traceback in ``failed.log`` of the run folder.
    """
    try:
        runs.execute(folder, on_round, threads, *places)
        if after is not None:
            after(folder, places.sites or Path(read_run(folder)["sites_folder"]))
    except (BadInput, RunFailed) as error:
        return str(error)
    except Exception as error:  # such as a GPU out of memory: it would end a night's work at the first run
        log = folder / "failed.log"
        write_text(log, traceback.format_exc())
        return f"{type(error).__name__}: {error}\nlog: {log}"
    return None
