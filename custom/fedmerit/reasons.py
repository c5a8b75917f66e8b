"""The closed list of reasons for which a site sends no answer, and what helps against each.

A reason is all that leaves a hospital of an error there. `reason_of` finds it by the kind of an error and its errno, so
that none depends on a log, which the disk may have no room for.
"""

import errno
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

from fedmerit.errors import BadInput, RunFailed

FULL = (errno.ENOSPC, errno.EDQUOT)
CUT_SHORT = " requested and "  # NumPy says so of an array of which the disk took a part, without a number
UNREADABLE = (errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)
KILLED = -9  # exit code of a process that the system ended, most often for memory
CODE = r"-?[0-9]{1,5}"  # of a process, as a pattern
KIND = "[A-Za-z]{1,60}"  # name of a class of errors, as a pattern
MOST_RULES = 10  # names of a site's rules that a reason has
RULES = f"[a-z_]{{1,40}}(, [a-z_]{{1,40}}){{0,{MOST_RULES - 1}}}"  # such names, as a pattern

DISK_FULL = "its disk is full; the site continues when there is room"
MEMORY_FULL = "its machine is out of memory; the site tries again"
GPU_FULL = "its GPU is out of memory; the site tries again"
UNREADABLE_FILE = "a file of its machine cannot be read or written; the site's own log says which"
SCRIPT_ENDED = "its script ended with code {}; the site's own log has its last lines"
SCRIPT_RAISED = "its script ended with {}; the site's own log has its last lines"
SCRIPT_KILLED = "its script was killed, as if out of memory; the site starts it again"
SCRIPT_LATE = "its script gave no answer in time"
SCRIPT_ANSWER = "its script's answer cannot be used; the site's own log says why"
BAD_DATA = "its images or settings cannot be used; the site's own log says which"
OTHER_VERSION = "cannot read the run's plan, as if its FedMerit were of another version; the site's own log says more"
REFUSED = "refuses the job; the site's own log says why"
REFUSED_BY = "refuses the job by its rules ({}); the site's own log says why"
DATA_CHANGED = "enrolment of other cases or images than before the run was resumed"  # the server's words
CERTIFICATE = "its certificate has ended; it asks the coordinator to renew it"
FAILED = "failed with {}; the site's own log says more"


class Remedy(StrEnum):
    """A kind of help against a reason, by which supervision decides."""

    again = "again"  # a new try
    room = "room"  # room on a disk or in memory, which come back
    hospital = "hospital"  # what only the site's own people can mend


REMEDIES = {
    DISK_FULL: Remedy.room,
    MEMORY_FULL: Remedy.room,
    GPU_FULL: Remedy.room,
    SCRIPT_KILLED: Remedy.room,
    REFUSED: Remedy.hospital,
    REFUSED_BY: Remedy.hospital,
    DATA_CHANGED: Remedy.hospital,
    OTHER_VERSION: Remedy.hospital,
    CERTIFICATE: Remedy.hospital,
    SCRIPT_ANSWER: Remedy.hospital,
    BAD_DATA: Remedy.hospital,
}
FORMS = {SCRIPT_ENDED: CODE, SCRIPT_RAISED: KIND, FAILED: KIND, REFUSED_BY: RULES}  # pattern of what is in the braces
LISTED = (*(one for one in REMEDIES if one not in FORMS), UNREADABLE_FILE, SCRIPT_LATE)
PATTERNS = tuple(re.escape(one).replace(r"\{\}", inside) for one, inside in FORMS.items())
OF_KINDS = {  # by the name of an error's class; a script's own process says no more
    "MemoryError": MEMORY_FULL,
    "OutOfMemoryError": GPU_FULL,
}
OF_WORDS = {  # by the words of an error without a class of its own, of torch, JAX and others
    "No space left on device": DISK_FULL,
    "Disk quota exceeded": DISK_FULL,
    "PytorchStreamWriter failed writing": DISK_FULL,
    "unexpected pos ": DISK_FULL,  # what torch.save says after that
    "DefaultCPUAllocator": MEMORY_FULL,
    "std::bad_alloc": MEMORY_FULL,
    "Cannot allocate memory": MEMORY_FULL,
    "insufficient shared memory": MEMORY_FULL,
    "is killed by signal: Killed": MEMORY_FULL,  # of a worker that loads data
    "CUDA error: out of memory": GPU_FULL,
    "CUDA out of memory": GPU_FULL,
    "HIP out of memory": GPU_FULL,
    "CUDNN_STATUS_ALLOC_FAILED": GPU_FULL,
    "RESOURCE_EXHAUSTED": GPU_FULL,
}


class SiteError(BadInput):
    """An input that cannot be used at a site, with a reason of the list."""

    reason = BAD_DATA


class OtherVersion(SiteError):
    """A plan that the site's FedMerit cannot read."""

    reason = OTHER_VERSION


class RefusedByRules(SiteError):
    """A job that the rules of a site refuse.

    Args:
        rules: names of the rules, which the reason has.
        sentences: on each, for the site.
    """

    def __init__(self, rules: Sequence[str], *sentences: str):
        super().__init__("the rules of this site refuse the job", *sentences)
        self.reason = REFUSED_BY.format(", ".join(list(dict.fromkeys(rules))[:MOST_RULES]))


class ScriptAnswer(SiteError):
    """An answer of a site's script that cannot be used."""

    reason = SCRIPT_ANSWER


def is_full(error: BaseException) -> bool:
    """Return whether an error says that a disk or a disk quota is full; torch raises other errors than the system."""
    return any(
        (isinstance(one, OSError) and (one.errno in FULL or (one.errno is None and CUT_SHORT in str(one))))
        or (isinstance(one, RuntimeError) and _reason_of_words(str(one)) == DISK_FULL)
        for one in _chain(error)
    )


def reason_of(error: BaseException) -> str:
    """Return the reason of the list that an error at a site is."""
    if is_full(error):
        return DISK_FULL
    for one in _chain(error):
        is_ours = isinstance(one, BadInput | RunFailed)  # others' errors, such as of decoding, have a reason, too
        if is_ours and isinstance(reason := getattr(one, "reason", None), str):
            return reason
        if known := _kind_reason(one):
            return known
    return BAD_DATA if isinstance(error, BadInput) else FAILED.format(_word(type(error).__name__))


def script_reason(code: int | None = None, kind: str = "", number: int | None = None, text: str = "") -> str:
    """Return the reason of a script's end.

    Args:
        code: exit code of its process, negative: by that signal; None: not known.
        kind: name of the class of its last error; "": none.
        number: errno of that error.
        text: of that error.
    """
    if number in FULL:
        return DISK_FULL
    if number == errno.ENOMEM:
        return MEMORY_FULL
    if known := OF_KINDS.get(kind) or _reason_of_words(text):
        return known
    if code == KILLED:
        return SCRIPT_KILLED
    return SCRIPT_RAISED.format(_word(kind)) if kind else SCRIPT_ENDED.format(code or 0)


def remedy(text: str) -> Remedy:
    """Return what helps against the reason in a text, such as a run's error; a new try if it has none of the list."""
    found = {one for reason, one in REMEDIES.items() if reason.partition("{")[0] in text}
    return next((one for one in (Remedy.hospital, Remedy.room) if one in found), Remedy.again)


def _kind_reason(error: BaseException) -> str | None:
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENOMEM:
        return MEMORY_FULL
    if number in UNREADABLE:
        return UNREADABLE_FILE
    if isinstance(error, RuntimeError) and (reason := _reason_of_words(str(error))):
        return reason
    return next((OF_KINDS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in OF_KINDS), None)


def _reason_of_words(text: str) -> str | None:
    return next((reason for words, reason in OF_WORDS.items() if words in text), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _word(name: str) -> str:
    return re.sub("[^A-Za-z]", "", name)[:60] or "Exception"
