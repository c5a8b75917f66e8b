"""Cases from raw files to stored arrays: one, which is done once, and all, in this process or in a pool of them."""

import json
import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedmerit import plugins
from fedmerit.errors import BadInput
from fedmerit.files import read_json, sha256, write_atomically, write_text
from fedmerit.workers import end_with_parent
from fedmerit_data.preparing.case_processes import begin_processes
from fedmerit_data.preparing.sources import describe_source
from fedmerit_data.raw_cases import Decoded, RawCase, blank_remarks, list_files, require_file
from fedmerit_data.readers.kind import Kind
from fedmerit_data.spatial.preprocessing import Box, box_around, central_box, count_slices, preprocess, window_remarks
from fedmerit_data.spatial.readings import read_case
from fedmerit_data.spatial.volumes import voxel_file

ProgressReport = Callable[[str, int, int], None]  # site, cases done, cases in all
MAX_NAMED = 10  # unusable cases in one error
ORGANS = ("prostate",)  # tasks of volumes whose labels are in one piece; lesions need not be


@dataclass(frozen=True)
class CaseTask:
    """A case to prepare: arrays go below ``folder``/sites, the file that records it as done below ``folder``/done.

    ``crop_multiple`` is the side of a square about the disc, in its extents; `None` for central boxes;
    ``slice_distance`` that of prepared slices in mm, `None` for the case's own.
    """

    kind: Kind
    source: Path
    site: str
    case: RawCase
    folder: Path
    size: int
    field_of_view: float | None
    crop_multiple: float | None
    slice_distance: float | None = None

    @property
    def done_file(self) -> Path:
        """The JSON file that records the case as done, written last."""
        return self.folder / "done" / self.site / f"{self.case.name}.json"

    def array(self, name: str) -> Path:
        """Return the path of one of `arrays`."""
        return self.folder / "sites" / self.site / name

    @property
    def arrays(self) -> dict[str, str]:
        """The stored image and label, relative to the site folder."""
        return {key: f"cases/{self.case.name}_{key}.npy" for key in ("image", "label")}


@dataclass(frozen=True)
class PreparedCase:
    """A stored case: its source, checksums of raw files and arrays, and its entries in datalist.json and site.json."""

    source: dict[str, Any]  # as of `describe_source`
    raw: dict[str, str]
    checksums: dict[str, str]
    slices: int
    organ: list[int]  # the slices that show any label
    crop: dict[str, int]
    spacing: list[float] | None  # mm between stored slices, rows and columns
    remarks: list[str]
    reading: dict[str, Any]  # `Reading`


@dataclass(frozen=True)
class UnusableCase:
    """A case that could not be stored; ``readable`` if the options are the cause, not its files."""

    reason: str
    readable: bool


CaseOutcome = tuple[CaseTask, PreparedCase | UnusableCase]


def prepare_case(task: CaseTask) -> PreparedCase | UnusableCase:
    """Store a case, unless that was done before from the same files, read in the same way, and arrays are unchanged."""
    case, source = task.case, describe_source(task.case, task.source)
    try:
        files = raw_files(task)
        for path in files:
            require_file(task.source / path)
        raw = {path.as_posix(): sha256(task.source / path) for path in files}
        if (before := _read_prepared(task)) and (before.source, before.raw) == (source, raw):
            return before
        decoded = task.kind.decode(case)
    except BadInput as error:
        return UnusableCase(str(error), readable=False)
    except Exception as error:  # any error of a library over a damaged file: the message has to name the file
        what = f"{type(error).__name__}: {error}"
        return UnusableCase(
            f"{case.image}: not readable with its mask ({what}); if a file is damaged, fetch both again", readable=False
        )
    try:
        box, remarks = _box(task, decoded)
    except BadInput as error:
        return UnusableCase(f"{case.label}: {error}", readable=True)
    try:
        slices = count_slices(decoded, task.slice_distance)
        image, label = preprocess(decoded, task.size, box, task.kind.normalise, slices)
    except BadInput as error:
        return UnusableCase(f"{case.image}: {error}", readable=True)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        return UnusableCase(f"{case.image}: cannot be resized to {task.size} pixels ({what})", readable=False)
    checksums = {}
    for key, array in (("image", image), ("label", label)):
        name = task.arrays[key]
        write_atomically(task.array(name), partial(np.save, arr=array), flush=False)
        checksums[name] = sha256(task.array(name))
    reading, lost = read_case(case.name, task.kind.labels, decoded, label, box, task.kind.normalisation)
    finished = PreparedCase(
        source=source,
        raw=raw,
        checksums=checksums,
        slices=len(image),
        organ=np.flatnonzero(label.any(axis=(1, 2, 3))).tolist(),
        crop=asdict(box),
        spacing=_spacing(decoded, box, task.size, slices),
        remarks=[
            *decoded.remarks,
            *blank_remarks(decoded),
            *window_remarks(task.kind.normalisation, decoded),
            *lost,
            *_odd(task.kind, decoded),
            *remarks,
        ],
        reading=reading.model_dump(mode="json"),
    )
    write_text(task.done_file, json.dumps(vars(finished)), flush=False)  # read by `_read_prepared` only: not indented
    return finished


def raw_files(task: CaseTask) -> list[Path]:
    """Return every file that a case is read from, sorted, with those of folders and detached voxels.

    Paths are relative to the source if the files are within it.
    """
    files: set[Path] = set()
    for path in task.case.paths:
        files.update(list_files(path) if path.is_dir() else (path, voxel_file(path)))
    return sorted(
        file.relative_to(task.source) if file.is_relative_to(task.source) else file.absolute() for file in files
    )


def _read_prepared(task: CaseTask) -> PreparedCase | None:
    """Return the record of an earlier process, if its arrays are unchanged."""
    try:
        finished = PreparedCase(**read_json(task.done_file))
        whole = all(sha256(task.array(name)) == known for name, known in finished.checksums.items())
    except (OSError, ValueError, TypeError):
        return None
    return finished if whole else None


def _box(task: CaseTask, decoded: Decoded) -> tuple[Box, list[str]]:
    if task.crop_multiple is None:
        return central_box(decoded, task.field_of_view), []
    disc = decoded.label[:, task.kind.labels.index("disc")].max(axis=0)
    if box := box_around(disc, task.crop_multiple):
        return box, []
    return central_box(decoded, None), ["whole frame kept: no disc to crop about"]


def _spacing(case: Decoded, box: Box, size: int, slices: int) -> list[float] | None:
    """Return millimetres between the stored slices, rows and columns, if the file states all of them."""
    if case.spacing is None or case.slice_distance is None:
        return None
    distance = case.slice_distance * len(case.image) / slices
    return [distance, case.spacing[0] * box.height / size, case.spacing[1] * box.width / size]


def _odd(kind: Kind, case: Decoded) -> list[str]:
    """Return remarks: labels that fill a whole case or slice, and organs that slices between others lack."""
    found = []
    full: NDArray[np.bool_] = np.all(case.label, axis=(2, 3))  # (slices, labels)
    shown: NDArray[np.bool_] = np.any(case.label, axis=(2, 3))
    for name, whole, some in zip(kind.labels, full.T, shown.T, strict=True):
        if whole.all():
            found.append(f"{name} everywhere in its mask")
        elif whole.any():
            found.append(f"{name} everywhere in {_slices(whole)} of its mask")
        places = np.flatnonzero(some)
        if kind.task in ORGANS and len(places):
            lacking = ~some
            lacking[: places[0]] = lacking[places[-1] :] = False
            if lacking.any():
                found.append(f"no {name} in {_slices(lacking)} of its mask, between others that show it")
    return found


def _slices(which: NDArray[np.bool_]) -> str:
    """Return the numbers of slices, from 1, in stored order, in words."""
    numbers = [str(place + 1) for place in np.flatnonzero(which)]
    return f"slice {numbers[0]}" if len(numbers) == 1 else f"slices {', '.join(numbers)}"


def prepare_cases(
    tasks: Sequence[CaseTask], jobs: int, skip_unreadable: bool, progress: ProgressReport | None
) -> list[CaseOutcome]:
    """Return every case with its outcome, in the order of ``tasks``.

    Raises:
        BadInput: some cases cannot be used; names up to `MAX_NAMED` of them.
    """
    outcomes: dict[int, CaseOutcome] = {}
    bad: dict[int, UnusableCase] = {}
    done: Counter[str] = Counter()
    totals = Counter(task.site for task in tasks)
    with (
        _bars(progress) as report,
        closing(_in_this_process(tasks) if jobs == 1 else _in_processes(tasks, jobs)) as steps,
    ):
        for site, total in totals.items():
            report(site, 0, total)
        for position, outcome in steps:
            task = tasks[position]
            outcomes[position] = task, outcome
            done[task.site] += 1
            report(task.site, done[task.site], totals[task.site])
            if isinstance(outcome, UnusableCase) and (outcome.readable or not skip_unreadable):
                bad[position] = outcome
                if len(bad) == MAX_NAMED:
                    break
    if bad:
        reasons = [bad[position].reason for position in sorted(bad)]
        if len(reasons) > 1:
            first = "the first " if len(outcomes) < len(tasks) else ""
            reasons = [f"{first}{len(reasons)} cases that cannot be used:", *reasons]
        if not skip_unreadable and not any(unusable.readable for unusable in bad.values()):
            reasons.append("--skip-unreadable leaves such cases out and lists them in site.json")
        raise BadInput(*reasons)
    return [outcomes[position] for position in range(len(tasks))]


def _in_this_process(tasks: Sequence[CaseTask]) -> Generator[tuple[int, PreparedCase | UnusableCase], None, None]:
    """Yield cases one after the other, on one thread.

    Slices are too small to share between threads: under load, waiting for threads takes most of the time.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for position, task in enumerate(tasks):
            yield position, prepare_case(task)
    finally:
        torch.set_num_threads(threads)


def _in_processes(
    tasks: Sequence[CaseTask], jobs: int
) -> Generator[tuple[int, PreparedCase | UnusableCase], None, None]:
    """Yield cases from a pool of processes, in the order in which they finish; a process gets one when it is free."""
    begin_processes()
    context = multiprocessing.get_context("forkserver")  # a fork of this process would copy its threads' locks
    running: dict[Future[PreparedCase | UnusableCase], int] = {}
    waiting = iter(enumerate(tasks))
    with ProcessPoolExecutor(min(jobs, len(tasks)), context, initializer=_serve) as pool:
        try:
            while True:
                for position, task in islice(waiting, jobs - len(running)):
                    running[pool.submit(prepare_case, task)] = position
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    outcome = future.result()
                    yield running.pop(future), outcome
        except BrokenProcessPool as error:
            candidates = ", ".join(str(tasks[position].case.image) for position in sorted(running.values()))
            raise BadInput(
                f"a process died at one of {candidates}; if memory ran out, use fewer jobs; otherwise one of these "
                "files is damaged: fetch it again"
            ) from error


def _serve() -> None:
    """Set up a process of the pool: one thread, ignores Ctrl-C (it finishes its case), ends with its parent."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    plugins.names("readers")  # imports scripts that register readers, before a task names their functions


@contextmanager
def _bars(progress: ProgressReport | None) -> Iterator[ProgressReport]:
    """Provide ``progress`` itself, or one bar per site on the terminal (nothing without a terminal)."""
    if progress is not None:
        yield progress
        return
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def report(site: str, done: int, total: int) -> None:
            if site not in tasks:
                tasks[site] = bars.add_task(site, total=total)
            bars.update(tasks[site], completed=done)

        yield report
