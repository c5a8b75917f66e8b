"""Resumption of interrupted preparations: what is kept, and when the next call may continue from it."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.version import package_version
from fedmerit_data.folders import partial_path
from fedmerit_data.preparation import Preparation
from fedmerit_data.preparing.cases import CaseOutcome, PreparedCase


def count_finished_cases(out: Path) -> int:
    """Return the number of cases that an interrupted preparation of ``out`` has finished and its next call skips."""
    return _count_finished(partial_path(Path(out)))


def _count_finished(folder: Path) -> int:
    return sum(1 for _ in folder.glob("done/*/*.json"))


def is_published(folder: Path, out: Path, asked: Preparation) -> bool:
    """Return whether an earlier call was cut off after its last rename.

    Then ``out`` is complete, and prepared as ``asked``.
    """
    stated = asked.record() | asked.meaning()
    stated |= {"image_size": [asked.size, asked.size], "fedmerit_version": package_version()}
    infos = [read_json(file) for file in out.glob("*/site.json")]
    as_asked = all(info.get(name) == value for info in infos for name, value in stated.items())
    return bool(infos) and as_asked and not (folder / "sites").exists()


def start_or_resume(folder: Path, out: Path, options: Mapping[str, Any]) -> bool:
    """Record the options that the stored arrays depend on; True if this resumes an earlier call with the same options.

    Raises:
        BadInput: an earlier call finished cases with other options.
    """
    file = folder / "options.json"
    before = read_json(file) if file.exists() else {}
    if before != options and (done := _count_finished(folder)):
        changed = [
            f"{name.replace('_', ' ')} {before.get(name)} then, {options.get(name)} now"
            for name in {**before, **options}
            if before.get(name) != options.get(name)
        ]
        raise BadInput(
            f"{out}: {done} finished cases of an interrupted preparation with other options are kept in {folder} "
            f"({'; '.join(changed)}); use those options, remove that folder to start again or name another folder"
        )
    (folder / "sites").mkdir(exist_ok=True)
    write_json(file, options)
    return bool(before == options)


@contextmanager
def keep_finished_cases(folder: Path) -> Iterator[list[Path]]:
    """Keep ``folder`` after a failure if it has finished cases, and print so; else remove it and what was yielded."""
    new: list[Path] = []
    try:
        yield new
    except BaseException as error:
        done = _count_finished(folder)
        if not done:
            for path in (folder, *new):
                shutil.rmtree(path, ignore_errors=True)
        elif isinstance(error, (BadInput, OSError)):
            kept = f"{done} finished cases are kept in {folder}; the same command continues from there"
            raise BadInput(*str(error).split("\n\t"), kept) from error
        raise


def remove_leftovers(folder: Path, outcomes: Sequence[CaseOutcome]) -> None:
    """Remove what an interrupted call left: partial files, lists, cases that are no longer in the source."""
    wanted = {
        task.array(name)
        for task, finished in outcomes
        if isinstance(finished, PreparedCase)
        for name in finished.checksums
    }
    names = {task.site for task, _ in outcomes}
    for site in folder.iterdir():
        if site.name not in names:
            shutil.rmtree(site)
        else:
            for path in site.rglob("*"):
                if path.is_file() and path not in wanted:
                    path.unlink()
