"""The raw files that each case of a site folder was read from, ``sources.json``: for the hospital itself.

`fedmerit evaluate --source` reads cases by it as `fedmerit prepare` did, whatever lists, tables or names chose them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from fedmerit.errors import BadInput
from fedmerit.files import read_json, sha256, write_text
from fedmerit.schema.declarations import read
from fedmerit.schema.site_folder import SiteFolder
from fedmerit_data.raw_cases import Channel, RawCase

FILE = "sources.json"


class CaseSource(BaseModel):
    """The raw case that a stored one was read from, with paths relative to the source, and the SHA-256 of its files."""

    case: RawCase
    files: Mapping[str, str]

    def open(self, source: Path) -> RawCase:
        """Return the case with the paths of its files in ``source``.

        Raises:
            BadInput: a file is missing, or another than the stored case was read from.
        """
        for name, digest in self.files.items():
            if not (source / name).is_file():
                raise BadInput(f"{source / name}: file not found; --source is the folder that sites were prepared from")
            if sha256(source / name) != digest:
                raise BadInput(f"{source / name}: another file than the site was prepared from; prepare the site again")
        return _with_paths(self.case, lambda path: source / path)


def describe_source(case: RawCase, source: Path) -> dict[str, Any]:
    """Return how a case is read as JSON, with paths relative to ``source`` if they are within it, else absolute.

    Whose images these are is left out: it changes no pixel.
    """

    def shorten(path: Path) -> Path:
        return path.relative_to(source) if path.is_relative_to(source) else path.absolute()

    nobody = replace(case, patient="", patient_from="", groups=())
    plain: dict[str, Any] = _adapter().dump_python(_with_paths(nobody, shorten), mode="json")
    return plain


@cache
def _adapter() -> TypeAdapter[RawCase]:
    return TypeAdapter(RawCase)


def _with_paths(case: RawCase, change: Any) -> RawCase:
    def of_channel(part: Channel) -> Channel:
        return replace(part, path=change(part.path), files=tuple(map(change, part.files)))

    return replace(
        case,
        image=change(case.image),
        label=change(case.label),
        more=tuple(map(change, case.more)),
        channels=tuple(map(of_channel, case.channels)),
    )


def write_sources(folder: Path, sources: Mapping[str, Any], flush: bool = True) -> None:
    """Write the sources of a site's cases, by case, into its folder: a line each."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(source)}" for name, source in sources.items())
    write_text(folder / FILE, f"{{\n{lines}\n}}\n", flush)


def read_sources(site: SiteFolder) -> dict[str, CaseSource]:
    """Return the sources of a site's cases, by case.

    Raises:
        BadInput: the site folder does not state them.
    """
    file = site.path / FILE
    if not file.is_file():
        raise BadInput(f"{file}: file not found, which states the raw files of each case; prepare the site again")
    stored = read_json(file)
    if not isinstance(stored, Mapping):
        raise BadInput(f"{file}: holds no cases; prepare the site again")
    return {name: read(CaseSource, entry, file) for name, entry in stored.items()}


def copy_sources(folder: Path, cases: Sequence[tuple[str, SiteFolder, str]]) -> None:
    """Write the sources of cases of other site folders into ``folder``: (new name, site folder, its name there) each.

    Nothing is written if a site folder does not state them.
    """
    stored = {site.path: read_json(site.path / FILE) for _, site, _ in cases if (site.path / FILE).is_file()}
    if all(site.path in stored and name in stored[site.path] for _, site, name in cases):
        write_sources(folder, {new: stored[site.path][name] for new, site, name in cases})
