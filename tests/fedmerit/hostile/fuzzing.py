"""Hostile artefacts for each reader: made from a seed, read in a process of their own, and what went wrong there.

The artefact of a reader and an index is always the same, of the same valid file. Nothing but `BadInput` of one line may
come of it; no code runs, nothing is written or connected to, no memory is taken beyond the bound.
"""

import gc
import json
import os
import resource
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from binaries import BY_SUFFIX
from corpus import BESIDE
from messages import MESSAGES, PLAN, WORK, hostile_message, receive, work
from messages import size as message_size
from readers import READERS
from structures import Drawing

from fedmerit.errors import LONGEST_MESSAGE, BadInput
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.site.site import Site

BESIDE_FILE = 256e6  # bytes of memory that reading may take, and four times the file
IMAGES = ("nifti", "itk", "meta image", "photograph", "series", "dicom", "segmentation", "structures")
DECODED = dict.fromkeys(IMAGES, 2e9)  # likewise, of images, which are packed
MOST_ADDRESSES = 1 << 33  # bytes: a bomb ends as MemoryError, not with the machine
FORBIDDEN = (
    "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "socket.getaddrinfo",
    "ctypes.dlopen", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate",
    "urllib.Request"
)  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
OPEN_LINKS = {
    "bytes", "text", "json", "object", "tensors", "state", "array", "options", "certificates", "ledger",
    "ledger records", "ledger schema", "site log", "results table", "manifest", "raw table", "raw list",
    "data lists", "raw labels", "raw channels", "stack", "segments", "survey", "study", "predictions",
    "ground truth", *IMAGES
}  # fmt: skip
# these read whatever file somebody names, be it a link

Attempt = tuple[int, Callable[[], Any], Callable[[], None]]  # bytes of an artefact; reads it; takes it away


class Workplace:
    """A copy of the part of the corpus that a reader takes, in which artefacts are put."""

    def __init__(self, corpus: Path, work: Path, reader: str):
        self.corpus, self.work = corpus, work
        self.marker, self.outside = work / "marker", work / "outside"
        for name in {reader, "site"} & {folder.name for folder in corpus.iterdir()}:
            shutil.copytree(corpus / name, work / "in" / name, symlinks=True)
        self.outside.mkdir()
        for name in ("secret.json", "secret.raw"):
            (self.outside / name).write_text('{"secret": 1}')
        self.site, self.memory = SiteFolder(work / "in" / "site"), work / "memory"
        self.memory.mkdir()
        (work / "modules").mkdir()
        (work / "modules" / "handed_over.py").write_text(f"open({str(self.marker)!r}, 'w')\n")

    def drawing(self, reader: str, index: int) -> Drawing:
        """What is drawn for an artefact."""
        return Drawing(f"{reader} {index}", str(self.marker), str(self.outside))

    def put(self, reader: str, index: int) -> Callable[[], None]:
        """Put an artefact where the reader looks for it; the function that is returned takes it away."""
        draw = self.drawing(reader, index)
        place = draw.random.choice((READERS[reader][0], *BESIDE.get(reader, ())))
        path, valid = self.work / "in" / reader / place, self.corpus / reader / place
        path.unlink()
        if draw.random.random() < 0.03:
            self._put_other(draw, path, valid)
        else:
            path.write_bytes(BY_SUFFIX.get(path.suffix, Drawing.bytes)(draw, valid.read_bytes()))

        def restore() -> None:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
            shutil.copy(valid, path)

        return restore

    def _put_other(self, draw: Drawing, path: Path, valid: Path) -> None:
        """A link, a folder, a pipe, or nothing."""
        match draw.random.randrange(6):
            case 0:
                path.mkdir()
            case 1:
                os.mkfifo(path)
            case 2:
                path.symlink_to("/dev/zero")
            case 3:
                path.symlink_to(path.name)
            case 4:
                copy = self.outside / path.name
                shutil.copy(valid, copy)
                path.symlink_to(copy)


def examine(workplace: Workplace, reader: str, indices: Iterable[int]) -> Iterator[tuple[int, str]]:
    """The artefacts of which anything went wrong, and what; for a process of its own, which it watches and bounds."""
    seen = _watch(workplace, reader)
    for index in indices:
        size, read, restore = _attempt(workplace, reader, index)
        before = _reset_peak()
        seen.clear()
        fault = _read(read)
        taken = 1024 * (_status("VmHWM") - before)
        if seen:
            fault = f"{seen[0]}"
        elif workplace.marker.exists():
            fault = "executed code"
            workplace.marker.unlink()
        elif taken > 4 * size + DECODED.get(reader, BESIDE_FILE):
            fault = f"took {taken / 1e6:.0f} MB, of {size} bytes"
        if taken > 5e7:
            gc.collect()
        restore()
        if fault:
            yield index, fault


def _attempt(workplace: Workplace, reader: str, index: int) -> Attempt:
    if reader in WORK:
        return _work(workplace, reader, index)
    return (_message if reader in MESSAGES else _file)(workplace, reader, index)


def _work(workplace: Workplace, name: str, index: int) -> Attempt:
    """A site does what a task says that came in a hostile message; it may write to its memory."""
    message, memory = hostile_message(WORK[name], workplace.drawing(name, index)), workplace.memory / str(index)
    site = Site(workplace.site, PLAN, memory, "cpu")
    return message_size(message), lambda: work(site, WORK[name], message), lambda: shutil.rmtree(memory, True)


def _file(workplace: Workplace, reader: str, index: int) -> Attempt:
    restore, read = workplace.put(reader, index), READERS[reader][1]
    path = workplace.work / "in" / reader / READERS[reader][0]
    files = (file for file in path.parent.rglob("*") if file.is_file() and not file.is_symlink())
    return sum(file.stat().st_size for file in files), lambda: read(path), restore


def _message(workplace: Workplace, name: str, index: int) -> Attempt:
    message = hostile_message(name, workplace.drawing(name, index))
    return message_size(message), lambda: receive(name, message), lambda: None


def _read(read: Callable[[], Any]) -> str:
    """What went wrong in an attempt to read; "": nothing."""
    try:
        read()
    except BadInput as error:
        text = str(error)
        lines = text.split("\n\t")  # `verify` has a line for each contradiction
        fits = all(line and line.isprintable() and len(line) <= LONGEST_MESSAGE for line in lines)
        return "" if fits else f"says {text!r:.200}"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        own = [
            one
            for one in traceback.extract_tb(error.__traceback__)
            if "fedmerit" in one.filename and "tests" not in one.filename
        ]
        where = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else f"{last.filename}:{last.lineno}"
        return f"{type(error).__name__} at {where}: {error!s:.150}"
    return ""


def _watch(workplace: Workplace, reader: str) -> list[str]:
    """What the process does that no reader may, as it happens."""
    seen = list[str]()
    inside, outside, memory = str(workplace.work), str(workplace.outside), f"{workplace.memory}/"

    def hook(event: str, args: tuple[Any, ...]) -> None:
        named = [
            name for one in args if isinstance(one, str | bytes | os.PathLike) if "/" in (name := os.fsdecode(one))
        ]
        if named and all(name.startswith(memory) for name in named):
            return
        if event in FORBIDDEN:
            seen.append(f"{event} {args!r:.150}")
        elif event == "open" and not isinstance(args[0], int):
            name, flags = os.fsdecode(args[0]), args[2]
            if flags & WRITING and "__pycache__" not in name and name != os.devnull:
                seen.append(f"opened {name} to write")
            elif name.startswith(outside) and reader not in OPEN_LINKS:
                seen.append(f"read {name}")
        elif event == "import" and args[0] == "handed_over":
            seen.append("imported handed_over")

    sys.path.insert(0, f"{inside}/modules")
    sys.addaudithook(hook)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    return seen


def _reset_peak() -> int:
    """Begin to measure the peak of the process's memory again; what it has now, in kB."""
    seen = os.open("/proc/self/clear_refs", os.O_WRONLY)
    os.write(seen, b"5")
    os.close(seen)
    return _status("VmRSS")


def _status(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))


def examine_apart(corpus: Path, work: Path, reader: str, indices: range) -> list[str]:
    """`examine` in a forked process: what went wrong, in sentences; an end of the process, too."""
    workplace, found = Workplace(corpus, work, reader), work / "found"
    found.touch()
    child = os.fork()
    if not child:
        code = 1
        try:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 2)
            with found.open("a", buffering=1) as file:

                def noted() -> Iterator[int]:
                    for index in indices:
                        file.write(json.dumps([index, ""]) + "\n")
                        yield index

                for index, fault in examine(workplace, reader, noted()):
                    file.write(json.dumps([index, fault]) + "\n")
            code = 0
        except BaseException as error:
            with found.open("a") as file:
                file.write(json.dumps([-1, f"the fuzz itself: {error!r} {traceback.format_exc()[-300:]}"]) + "\n")
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    lines = [json.loads(line) for line in found.read_text().splitlines()]
    reported = [f"{reader} {index}: {fault}" for index, fault in lines if fault]
    if status:
        reported.append(f"{reader} {lines[-1][0] if lines else 'start'}: ended the process ({status})")
    return reported
