"""Where the files of a release lie: a table of patterns, from which sites, patients and channels of cases follow."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import (
    Channel,
    RawCase,
    RawSite,
    add_left_out,
    find_site_folders,
    group_by_site,
    list_files,
    note_file,
    pair_files,
    require_folder,
)
from fedmerit_data.readers.image_files import is_detached
from fedmerit_data.tables import SPREADSHEETS, read_table

ANY = ".*"  # pattern of every file
NO_PART = "not an image or mask of this release"
Table = Mapping[str, Mapping[str, str]]  # rows by case
FindSite = Callable[[str, str, Table], str]  # of a case by its name, the path of its image, and the table


@dataclass(frozen=True)
class Layout:
    """A table of where a release's files lie, and of which site each case is.

    Patterns are of a file's path below the source, or below the site's folder if each folder is a site, with "/"
    between its parts. Those of images and masks have a group ``case``, which pairs them, perhaps a group ``within``:
    folders, with "/" at the end, beyond which names of cases repeat; the group ``channel`` of ``image`` names a channel
    if there are several, its group ``site`` the site.
    """

    expected: str  # the layout in words, for messages
    image: str  # pattern of images
    masks: Mapping[str, str]  # pattern of each mask that an image needs, by name
    strays: Mapping[str, str] = field(default_factory=lambda: {ANY: NO_PART})  # why a file is left out, by its pattern
    site: str | FindSite = (
        ""  # the only site, or what finds that of a case; "": stated by `image`, or each folder is one
    )
    aliases: Mapping[str, str] = field(default_factory=dict)  # name of a site, by the upper-case name of its folder
    case: Callable[[str], str] = str  # the case's name, made of the group ``case``
    patient: Callable[[str], str] = str  # the patient's name, made of the case's
    channels: tuple[str, ...] = ()  # in order; (): one image
    table: tuple[str, ...] = ()  # names that the table of cases may have, also as a spreadsheet; (): there is none
    columns: tuple[str, ...] = ()  # of the table, whose values joined by _ are the case
    times: tuple[str, ...] = ()  # columns with the number of each time that is a case; (): a case has one time

    def find_sites(self, source: Path) -> list[RawSite]:
        """Return the sites below ``source``, sorted by name; the first also lists what is left out of all.

        Raises:
            BadInput: there is no case, an image or mask lacks the other, two folders are of one site, or the table or
                a row of it is missing.
        """
        if self.site or "(?P<site>" in self.image:
            return group_by_site(*self._read(source))
        folders, strays = find_site_folders(source, self.expected)
        sites: dict[str, tuple[Path, RawSite]] = {}
        for folder in folders:
            name = self.aliases.get(folder.name.upper(), folder.name)
            if name in sites:
                raise BadInput(f"{folder}: {sites[name][0]} is site {name} under another name; keep one of them")
            cases, left_out = self._read(folder, name)
            sites[name] = (folder, RawSite(name, tuple(case for _, case in cases), tuple(left_out)))
        return add_left_out([sites[name][1] for name in sorted(sites)], strays)

    def _read(self, source: Path, name: str = "") -> tuple[list[tuple[str, RawCase]], list[tuple[str, str]]]:
        """Return the cases, each with its site (``name``, unless the layout states it), and what is left out."""
        require_folder(source, self.expected)
        found: dict[str, dict[str, Path]] = {part: {} for part in (*self._images, *self.masks)}
        left_out, files = list[tuple[str, str]](), [path for path in list_files(source) if not is_detached(path)]
        for path in files:
            relative = path.relative_to(source).as_posix()
            part, case = self._role(relative)
            if part:
                note_file(found[part], case, path)
            else:
                left_out.append((relative, case))
        if not any(found.values()):
            raise BadInput(f"{source}: has no cases in this layout; expected {self.expected}")
        rows = self._read_rows(source, files)
        cases = list[tuple[str, RawCase]]()
        first, *others = self.masks
        _require_equal(found, self._images, "image")
        _require_equal(found, [*self.masks], "mask")
        for key, image, mask in pair_files(found[self._images[0]], found[first], source):
            case, relative = key.rpartition("/")[2], image.relative_to(source).as_posix()
            stated = _groups(self.image, relative).get("site") or self.site or name
            site = stated(case, relative, rows) if callable(stated) else stated
            more = tuple(found[part][key] for part in others)
            channels = tuple(Channel(found[part][key], part) for part in self.channels)
            raw = RawCase(case, f"{site}-{self.patient(case)}", image, mask, more, channels=channels)
            cases += [(site, one) for one in self._at_times(raw, rows)]
        return cases, left_out

    @property
    def _images(self) -> tuple[str, ...]:
        return self.channels or ("image",)

    def _role(self, path: str) -> tuple[str, str]:
        """Return a file's part, an image's or a mask's, and what pairs it; "" and the reason if it is left out."""
        for part, pattern in {"image": self.image, **self.masks}.items():
            if groups := _groups(pattern, path):
                return groups.get("channel") or part, f"{groups.get('within', '')}{self.case(groups['case'])}"
        return "", next(why for pattern, why in self.strays.items() if re.fullmatch(pattern, path, re.DOTALL))

    def _read_rows(self, source: Path, files: Sequence[Path]) -> Table:
        """Return the rows of the table of cases, by case; none if there is no table."""
        if not self.table:
            return {}
        stems = [name.removesuffix(".csv") for name in self.table]
        named = [path for path in files if path.stem in stems and path.suffix.lower() in (".csv", *SPREADSHEETS)]
        if not named:
            raise BadInput(f"{source}: has no {' or '.join(self.table)}, which states the site of each case; add it")
        return {"_".join(column(row, name) for name in self.columns): row for _, row in read_table(named[0], ())}

    def _at_times(self, case: RawCase, rows: Table) -> list[RawCase]:
        """Return the case, or of several times the case at each."""
        cases = []
        for name in self.times:
            number = column(rows[case.name], name)
            if not number.isdigit():
                raise BadInput(f"{case.image}: the table has no number in column {name.upper()} of case {case.name}")
            channel = Channel(case.image, index=int(number))
            cases.append(replace(case, name=f"{case.name}_{name}", channels=(channel,)))
        return cases or [case]


def _groups(pattern: str, path: str) -> dict[str, str]:
    match = re.fullmatch(pattern, path, re.DOTALL)
    return match.groupdict() if match else {}


def _require_equal(found: Mapping[str, Mapping[str, Path]], parts: Sequence[str], what: str) -> None:
    """Raise `BadInput` unless these parts are those of the same cases."""
    first, *others = parts
    for part in others:
        for case in sorted(found[first].keys() ^ found[part].keys()):
            single = found[first].get(case) or found[part][case]
            missing = part if case in found[first] else first
            raise BadInput(
                f"{single}: the {missing} {what} of {case} is missing; add it or move the case out of the source"
            )


def column(row: Mapping[str, str], *names: str) -> str:
    """Return the value of the first of these columns that a row has, in any case of letters; "" if it has none."""
    folded = {name.casefold(): value for name, value in row.items()}
    return next((folded[name] for name in names if folded.get(name)), "")


def by_column(*names: str, prefix: str = "") -> FindSite:
    """Return what finds the site of a case in the columns ``names`` of the table."""
    return partial(_site_in_table, names=names, prefix=prefix)


def _site_in_table(case: str, path: str, table: Table, names: tuple[str, ...], prefix: str) -> str:
    if site := column(table.get(case, {}), *names):
        return f"{prefix}{site}"
    raise BadInput(f"{path}: the table of the release has no {names[0]} of case {case}; complete it")
