"""A script that is started again after it ended, as a site's own training is."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fedmerit.errors import RunFailed
from fedmerit.reasons import KILLED, script_reason
from fedmerit.trainers.script.trainer import Ask, Question, Said

MOST_STARTS = 4  # starts in a row without an answer; then the script is not started again
LAUNCHER = "ChildFailedError"  # of torchrun
NOT_OF_SCRIPT = re.compile(r'[/\\](nvflare|lib[/\\]python[\d.]*)[/\\]|"<frozen')  # in frames of packages and of Python
TRACEBACK = "Traceback (most recent call last):"
FAULT = re.compile(r"(?P<kind>[A-Za-z_][\w.]*)(?=: |$)", re.MULTILINE)  # how the last line of a traceback begins
RUNPY = '"<frozen runpy>"'  # in the frames between what starts a script and the script's own
LINES = 12  # of a script's output
log = logging.getLogger(__name__)


class ScriptEnded(RunFailed):
    """A site's script ended without an answer.

    Args:
        message: for the site, with the last lines of the script's own traceback.
        reason: of the closed list.
        is_late: whether it was ended since it gave no answer in time, so that it is not asked again at once.
        can_start: whether it can be started again.
    """

    def __init__(self, message: str, reason: str, is_late: bool = False, can_start: bool = True):
        super().__init__(message)
        self.reason, self.is_late, self.can_start = reason, is_late, can_start


def explain_output(text: str, code: int | None = None) -> tuple[str, str]:
    """Return the last lines of a script's own traceback in what it printed, and the reason that they and its exit
    ``code`` are.
    """
    before, *tracebacks = text.split(TRACEBACK)
    mark = next(
        (one for one in reversed(tracebacks) if _is_of_script(one)), tracebacks[-1] if tracebacks and code else ""
    )
    lines = [line.rstrip() for line in (mark or before).splitlines() if line.strip()]
    after = next((line for line in lines if mark and not line.startswith(" ")), "")  # the frames
    fault = FAULT.match(after)
    kind = fault["kind"].rpartition(".")[2] if fault else ""
    number = re.search(r"\[Errno (\d+)\]", fault.string) if fault else None
    if kind == "SystemExit":
        kind = ""
    reason = script_reason(code, kind, int(number[1]) if number else None, after)
    lines = lines[max((place + 1 for place, line in enumerate(lines) if RUNPY in line), default=0) :]
    advice = (
        [] if code or mark else ["it ended by itself or by sys.exit: its loop has to go on while flare.is_running()"]
    )
    advice = ["it was killed, as if out of memory"] if code == KILLED and not mark else advice
    if len(lines) > LINES:
        lines = [*lines[:2], "  ...", *lines[3 - LINES :]] if mark else lines[-LINES:]  # the frame of the script stays
    return "\n".join([*lines, *advice]), reason


def _is_of_script(traceback: str) -> bool:
    """Return whether a traceback has a frame of the script: NVFlare and torchrun print some of their own."""
    frames = [line for line in traceback.splitlines() if line.startswith('  File "')]
    return LAUNCHER not in traceback and not all(NOT_OF_SCRIPT.search(line) for line in frames)


@dataclass
class RestartedScript:
    """A script that is asked, and started again if it ended: once more for the same question, then for the next one.

    What it held in memory, such as its optimizer's state, is lost; the answer says how often that happened.

    Args:
        ask: has the script answer; raises `ScriptEnded`.
        start: starts it again.
    """

    ask: Ask
    start: Callable[[], None]
    ended: ScriptEnded | None = field(default=None, init=False)  # why it is not running
    starts: int = field(default=0, init=False)  # since its last answer

    def __call__(self, question: Question) -> Said:
        """Return the script's answer.

        Raises:
            ScriptEnded: it ended twice at this question, or `MOST_STARTS` times without an answer.
        """
        is_new = True
        while True:
            if self.ended:
                if not self.ended.can_start or self.starts >= MOST_STARTS:
                    raise self.ended
                self.starts += 1
                log.warning("round %d: the script ended and is started again: %s", question.round, self.ended)
                self.start()
                self.ended = None
            try:
                said = self.ask(question)
            except ScriptEnded as error:
                self.ended = error
                if error.is_late or not (is_new and error.can_start):
                    raise
                is_new = False
                continue
            starts, self.starts = self.starts, 0
            return replace(said, restarts=starts)
