"""Every case of a preparation, here or shared among processes."""

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

from fedmerit.errors import BadInput
from fedmerit.workers import end_with_parent
from fedmerit_data.preparing.case_processes import begin_processes
from fedmerit_data.preparing.cases import CaseOutcome, Finished, Unusable, Work, prepare_case

Report = Callable[[str, int, int], None]  # site, cases done, cases in all
NAMED = 10  # bad cases to name at once


def prepare_cases(
    works: Sequence[Work], jobs: int, skip_unreadable: bool, progress: Report | None
) -> list[CaseOutcome]:
    """Every case with what came of it, in the order of ``works``.

    Raises:
        BadInput: names the cases that cannot be used, up to `NAMED` of them.
    """
    outcomes: dict[int, CaseOutcome] = {}
    bad: dict[int, Unusable] = {}
    done: Counter[str] = Counter()
    totals = Counter(work.site for work in works)
    with _bars(progress) as report, closing(_alone(works) if jobs == 1 else _shared(works, jobs)) as steps:
        for site, total in totals.items():
            report(site, 0, total)
        for position, outcome in steps:
            work = works[position]
            outcomes[position] = work, outcome
            done[work.site] += 1
            report(work.site, done[work.site], totals[work.site])
            if isinstance(outcome, Unusable) and (outcome.readable or not skip_unreadable):
                bad[position] = outcome
                if len(bad) == NAMED:
                    break
    if bad:
        reasons = [bad[position].reason for position in sorted(bad)]
        text = reasons[0]
        if len(reasons) > 1:
            first = "the first " if len(outcomes) < len(works) else ""
            text = "\n  ".join([f"{first}{len(reasons)} cases that cannot be used:", *reasons])
        if not skip_unreadable and not any(unusable.readable for unusable in bad.values()):
            text += "\n--skip-unreadable leaves out such cases and says so"
        raise BadInput(text)
    return [outcomes[position] for position in range(len(works))]


def _alone(works: Sequence[Work]) -> Generator[tuple[int, Finished | Unusable], None, None]:
    """Cases one after the other, on one thread.

    Slices are too small to share between threads: beside other work, waiting for them takes most of the time.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for position, work in enumerate(works):
            yield position, prepare_case(work)
    finally:
        torch.set_num_threads(threads)


def _shared(works: Sequence[Work], jobs: int) -> Generator[tuple[int, Finished | Unusable], None, None]:
    """Cases as they come from a pool of processes, each given out only when a process is free for it."""
    begin_processes()
    context = multiprocessing.get_context("forkserver")  # a fork of this process would copy its threads' locks
    running: dict[Future[Finished | Unusable], int] = {}
    waiting = iter(enumerate(works))
    with ProcessPoolExecutor(min(jobs, len(works)), context, initializer=_serve) as pool:
        try:
            while True:
                for position, work in islice(waiting, jobs - len(running)):
                    running[pool.submit(prepare_case, work)] = position
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    outcome = future.result()
                    yield running.pop(future), outcome
        except BrokenProcessPool as error:
            candidates = ", ".join(str(works[position].case.image) for position in sorted(running.values()))
            raise BadInput(
                f"a process died over one of {candidates}; if memory ran out, use fewer jobs, else fetch these "
                "files again"
            ) from error


def _serve() -> None:
    """Begin a process of the pool: one thread, deaf to Ctrl-C (it ends the case at hand), gone with its parent."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


@contextmanager
def _bars(progress: Report | None) -> Iterator[Report]:
    """``progress`` itself, or one bar per site on the terminal (nothing where there is no terminal)."""
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
