"""All cases of a preparation, in this process or in a pool of processes."""

import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from itertools import islice

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedmerit import plugins
from fedmerit.errors import BadInput
from fedmerit.workers import end_with_parent
from fedmerit_data.preparing.case_processes import begin_processes
from fedmerit_data.preparing.cases import CaseOutcome, CaseTask, PreparedCase, UnusableCase, prepare_case

ProgressReport = Callable[[str, int, int], None]  # site, cases done, cases in all
MAX_NAMED = 10  # unusable cases in one error


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
