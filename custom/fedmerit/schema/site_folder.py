"""Site folders as everything after the preparation reads them: site.json, datalist.json and memory-mapped arrays.

Per case two ``.npy`` files: image ``(slices, channels, height, width)`` float32 and label
``(slices, labels, height, width)`` uint8 of zeros and ones, one plane per label. A fundus photograph is
a case of one slice.
"""

import copy
import ctypes
import hashlib
import math
import mmap
import re
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, Field

from fedmerit.errors import BadInput, printable, require_known
from fedmerit.files import as_file_name, leads_into, read_json, record_hash, require_file, sha256
from fedmerit.schema.configuration.data import read_data_plan
from fedmerit.schema.declarations import read
from fedmerit.schema.rules import LONGEST_SITE, SITE_NAME
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS

ALIKE = ("task", "labels", "channels", "image_size", "normalisation", "data_plan")  # of sites that train together
IF_STATED = ("channel_names", "modality")  # alike, too, of sites that both state them
FOLDS = (3, 20)  # fewest and most: one tests, one validates, the others train
MOST_UNREADABLE = 0.05  # share of the training cases, rounded down, without which a site trains if they are unreadable
RESERVED = {"admin", "all", "client", "local", "localhost", "relay", "server", "server_parent", "startup", "transfer"}
FARTHEST = 1e6  # mm between neighbours
MOST_ARRAY = 1 << 36  # bytes of a stored case, which is mapped, not read
HEADER_LOCK = threading.Lock()  # NumPy parses one by `ast`; two threads in that at once can fail before CPython 3.11.8
NPY = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
LIBC.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
# whatever reading a spoiled header ends with; EOFError: what NumPy says of a file of zero bytes
UNREADABLE = (OSError, RuntimeError, ValueError, EOFError, OverflowError, SyntaxError, TypeError, TokenError)


@dataclass(frozen=True)
class Case:
    """A volume or photograph of a site."""

    name: str
    patient: str
    image_file: Path
    label_file: Path
    number: str = ""  # pseudonym of the patient at the site, the same in all folds and runs: names do not leave
    slices: tuple[int, ...] | None = None  # those to train on; None: all of them
    spacing: tuple[float, float, float] | None = None  # mm between stored slices, rows, columns; None: not known
    groups: tuple[tuple[str, str], ...] = ()  # of the patient, such as ("sex", "F"); they do not leave the site

    @cached_property
    def image(self) -> NDArray[np.float32]:
        """(slices, channels, height, width) float32, memory-mapped."""
        return load_array(self.image_file)

    @cached_property
    def label(self) -> NDArray[np.uint8]:
        """(slices, labels, height, width) uint8 of 0 and 1, memory-mapped."""
        return load_array(self.label_file)


def require_name(name: str, where: Path | str) -> None:
    """Raise `BadInput` if a site of ``where`` cannot be named so on every engine.

    NVFlare uses names as paths and addresses.

    So nothing that shows a name computes or obeys it either, and no list is cut by it.
    """
    if not isinstance(name, str) or not re.fullmatch(SITE_NAME, name):
        raise BadInput(
            f"{where}: the site's name is {name!r:.120}; expected 1 to {LONGEST_SITE} letters from A to z, digits, "
            "- and _, the first of them no -; rename it"
        )
    if name.lower() in RESERVED:
        raise BadInput(
            f"{where}: the site's name is {name!r}, which is reserved: NVFlare calls its own parts so; rename it"
        )


class _Stated(BaseModel):
    """The fields of site.json that everything rests on."""

    name: Any  # `require_name`
    task: str
    labels: tuple[Annotated[str, AfterValidator(as_file_name)], ...] = Field(min_length=1, max_length=64)
    channels: int = Field(ge=1, le=64)
    image_size: tuple[Annotated[int, Field(ge=1, le=16384)], Annotated[int, Field(ge=1, le=16384)]]
    channel_names: tuple[str, ...] | None = None  # in order; None: not stated
    modality: str | None = None  # DICOM's code; None: not stated
    normalisation: str | None = None
    folds: int = Field(0, ge=0, le=FOLDS[1])


class _Entry(BaseModel):
    """A case in datalist.json."""

    case: str
    patient: str
    image: str
    label: str
    slices: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    spacing: Any = None
    fold: Annotated[int, Field(ge=0)] | None = None
    groups: dict[str, str] = Field(default_factory=dict)


class _Lists(BaseModel):
    """The lists of datalist.json, without those that are no split's."""

    training: tuple[_Entry, ...]
    validation: tuple[_Entry, ...]
    testing: tuple[_Entry, ...]
    server_validation: tuple[_Entry, ...] = ()


class SiteFolder:
    """A prepared site. With ``folds``, its splits are those of datalist.json, which are fold 0's, or `in_fold`'s.

    Raises:
        BadInput: site.json or datalist.json is missing, unreadable or lacks a field, or lists a file that lies
            outside the folder.
    """

    fold: int | None = None  # whose splits these are; None: as datalist.json lists them

    def __init__(self, path: Path):
        self.path = Path(path)
        if not self.path.is_dir():
            raise BadInput(f"{self.path}: no such site folder; make one with `fedmerit prepare`")
        self.info: Mapping[str, Any] = read_json(self._within("site.json"))
        stored: Any = read_json(self._within("datalist.json"))
        said = read(_Stated, self.info, self.path / "site.json")
        lists = read(_Lists, stored, self.path / "datalist.json")
        self.name, self.task, self.labels, self.channels = said.name, said.task, said.labels, said.channels
        self.channel_names, self.modality = said.channel_names, said.modality
        self.image_size, self.normalisation, self.folds = said.image_size, said.normalisation, said.folds
        self.data_plan = read_data_plan(self.info, str(self.path / "site.json"))
        require_name(self.name, self.path / "site.json")
        self._numbers = _number_patients(lists)
        listed = {split: getattr(lists, split) for split in (*SPLITS, SERVER_SPLIT)}
        self.splits = {
            split: tuple(_with_slices(self._case(entry), split) for entry in entries)
            for split, entries in listed.items()
        }
        everyone = [entry for entries in listed.values() for entry in entries] if self.folds else []
        self._tested: tuple[tuple[Case, int], ...] = tuple(
            (self._case(entry), self._fold(entry)) for entry in sorted(everyone, key=lambda entry: entry.case)
        )

    @property
    def digest(self) -> str:
        """The one SHA-256 of site.json, which holds those of its arrays, and datalist.json."""
        files = (self.path / "site.json", self.path / "datalist.json")
        return hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()

    def in_fold(self, fold: int | None, missing_ok: bool = False) -> Self:
        """Return this site with the splits of a fold, cases by name.

        It tests that fold, validates the next, trains the rest.

        Unchanged if that is None, or is missing and may be.

        Raises:
            BadInput: the site has no such fold.
        """
        if fold is None or fold == self.fold or (missing_ok and fold >= self.folds):
            return self
        if not 0 <= fold < self.folds:
            there = f"0 to {self.folds - 1}" if self.folds else "none: `fedmerit prepare --folds 5` makes some"
            raise BadInput(f"site {self.name}: has no fold {fold}; its folds are {there}")
        other, places = copy.copy(self), {fold: "testing", (fold + 1) % self.folds: "validation"}
        vars(other).pop("_training", None)
        other.fold, found = fold, [(case, places.get(tested, "training")) for case, tested in self._tested]
        other.splits = {
            split: tuple(_with_slices(case, split) for case, of_case in found if of_case == split)
            for split in (*SPLITS, SERVER_SPLIT)
        }
        return other

    def patients_by_fold(self) -> dict[str, set[int]]:
        """Return the folds that test each patient: one, as the preparation writes it; {} without folds."""
        found: dict[str, set[int]] = {}
        for case, fold in self._tested:
            found.setdefault(case.patient, set()).add(fold)
        return found

    def _fold(self, entry: "_Entry") -> int:
        if entry.fold is None or entry.fold >= self.folds:
            raise BadInput(
                f"{self.path / 'datalist.json'}: case {entry.case} is in fold {entry.fold}, expected 0 to "
                f"{self.folds - 1}, as site.json has {self.folds} folds; run `fedmerit prepare` again"
            )
        return entry.fold

    def _case(self, entry: "_Entry") -> Case:
        return Case(
            name=entry.case,
            patient=entry.patient,
            number=self._numbers[entry.patient],
            image_file=self._within(entry.image),
            label_file=self._within(entry.label),
            slices=entry.slices,
            spacing=read_spacing(entry.spacing),
            groups=tuple(entry.groups.items()),
        )

    def _within(self, entry: str) -> Path:
        """Return a listed file; `BadInput` if its path leads out of the site folder, be it by a symbolic link."""
        path = self.path / entry
        if not leads_into(self.path, path):
            raise BadInput(
                f"{self.path / 'datalist.json'}: lists {entry}, which lies outside the site folder; a site reads "
                "nothing else: run `fedmerit prepare` again"
            )
        return path

    def cases(self, split: str) -> tuple[Case, ...]:
        """Return the cases of one of `SPLITS`, or of `SERVER_SPLIT`, in the order of datalist.json.

        Without training cases that cannot be read, if they are few: they are named on standard error, for the site.
        """
        require_known("split", [split], self.splits)
        return self._training if split == "training" else self.splits[split]

    @cached_property
    def _training(self) -> tuple[Case, ...]:
        """The training cases that can be read; all of them if too many cannot: then the first use of one says why."""
        cases, faults = self.splits["training"], dict[str, str]()
        most = int(MOST_UNREADABLE * len(cases))
        for case in cases if most else ():
            try:
                _ = case.image, case.label
            except BadInput as error:
                faults[case.name] = str(error)
            if len(faults) > most:
                return cases
        for name, why in faults.items():
            print(printable(f"ERROR: site {self.name}: trains without case {name}: {why}"), file=sys.stderr, flush=True)
        return tuple(case for case in cases if case.name not in faults)

    def require_cases(self) -> None:
        """Raise `BadInput` if a split is empty, so that the site cannot take part in a run."""
        for split in SPLITS:
            if not self.splits[split]:
                raise BadInput(
                    f"site {self.name}: its {split} split is empty; prepare it with ratios above 0, add cases or "
                    "leave the site out"
                )

    def require_arrays(self) -> None:
        """Raise `BadInput` naming the first array that is unreadable or not of the stated type and shape."""
        for case in (case for split in self.splits for case in self.cases(split)):
            for file, array, kind, planes in (
                (case.image_file, case.image, np.float32, self.channels),
                (case.label_file, case.label, np.uint8, len(self.labels)),
            ):
                expected = (*case.image.shape[:1], planes, *self.image_size)
                if array.dtype != kind or array.shape != expected:
                    raise BadInput(
                        f"{file}: {array.dtype} of shape {array.shape}, expected {np.dtype(kind)} of shape {expected}; "
                        "run `fedmerit prepare` again"
                    )


def _number_patients(lists: _Lists) -> dict[str, str]:
    """Return numbers of the patients, in an order that follows from all their names together and shows none of them."""
    names = sorted({entry.patient for _, entries in lists for entry in entries})
    whole = hashlib.sha256("\n".join(names).encode()).digest()
    ordered = sorted(names, key=lambda name: hashlib.sha256(whole + name.encode()).digest())
    return {name: f"{number:03d}" for number, name in enumerate(ordered)}


def _with_slices(case: Case, split: str) -> Case:
    """Return a case as one of a split: only training leaves slices out."""
    return case if split == "training" else replace(case, slices=None)


def read_spacing(stated: object) -> tuple[float, float, float] | None:
    """Return three lengths in mm, or None: a folder states only those that its files have."""
    if not isinstance(stated, list) or len(stated) != 3:
        return None
    if not all(isinstance(step, int | float) and 0 < step < FARTHEST for step in stated):
        return None
    slice_distance, row, column = (float(step) for step in stated)
    return slice_distance, row, column


def open_sites(root: Path, only: Sequence[str] | None = None, fold: int | None = None) -> list[SiteFolder]:
    """Return every site folder below ``root``, or those named in ``only``, in a fold; sorted by site name.

    Raises:
        BadInput: there is none, one named is not there or lacks the fold, or they differ in task, labels, channels,
            image size, normalisation or number of folds.
    """
    root = Path(root)
    if not root.is_dir():
        raise BadInput(f"{root}: no such folder; make it with `fedmerit prepare KIND --out {root}`")
    if (root / "site.json").is_file():
        raise BadInput(f"{root}: is one site's folder; name the folder that holds it")
    files = sorted(root.glob("*/site.json"))
    if unknown := sorted(set(only or ()) - {file.parent.name for file in files}):
        there = ", ".join(file.parent.name for file in files)
        raise BadInput(f"{root}: holds no site {', '.join(unknown)}; there are {there or 'none'}")
    sites = [SiteFolder(file.parent) for file in files if only is None or file.parent.name in only]
    if not sites:
        raise BadInput(f"{root}: no site folders in it (none holds a site.json); make them with `fedmerit prepare`")
    for site in sites:
        if site.name != site.path.name:
            raise BadInput(f"{site.path}: site.json names the site {site.name!r}; folder and name have to agree")
        for field in (*ALIKE, "folds") if fold is not None else ALIKE:
            ours, theirs = getattr(sites[0], field), getattr(site, field)
            if ours != theirs:
                raise BadInput(
                    f"site {site.name}: {field} is {theirs}, but site {sites[0].name} has {ours}; "
                    "sites that train together have to be prepared alike"
                )
        for field in IF_STATED:
            for first in sites:
                if fault := unlike(site, first, field):
                    raise BadInput(f"site {site.name}: {fault}")
    return sorted((site.in_fold(fold) for site in sites), key=lambda site: site.name)


def unlike(site: SiteFolder, other: SiteFolder, field: str) -> str:
    """Return why two sites cannot train together as they differ in one of `IF_STATED`; "" if they can."""
    ours, theirs = (
        ", ".join(value) if isinstance(value, tuple) else value
        for value in (getattr(site, field), getattr(other, field))
    )
    if not ours or not theirs or ours == theirs:
        return ""
    how = "name them alike, with --channels NAME,NAME" if field == "channel_names" else "leave one of the two out"
    what = field.replace("_", " ")
    return f"{what}: {ours}, but site {other.name} has {theirs}; prepare them alike: {how}"


def read_site_digests(sites: Sequence[SiteFolder]) -> dict[str, str]:
    """Return by name, `SiteFolder.digest`."""
    return {site.name: site.digest for site in sites}


def images_digest(sites: Sequence[SiteFolder]) -> str:
    """Return one SHA-256 over the digests of site folders, as a plan names the server's; "" if they hold no case."""
    return record_hash(read_site_digests(sites)) if any(one for site in sites for one in site.splits.values()) else ""


def require_same_preparation(sites: Sequence[SiteFolder], digests: Mapping[str, str], begun: Path) -> None:
    """Raise `BadInput` naming the sites that are not those with which ``begun``, a run or a study, was started.

    ``digests`` are those noted then; if it is empty, nothing is compared.
    """
    now = read_site_digests(sites)
    changed = [name for name in sorted({**digests, **now}) if digests.get(name) != now.get(name)]
    if digests and changed:
        raise BadInput(
            f"{sites[0].path.parent}: {', '.join(changed)} {'is' if len(changed) == 1 else 'are'} not what {begun} "
            "was started with; prepare the old folder again, or choose another --out"
        )


def load_array(path: Path) -> NDArray[Any]:
    """Memory-map one ``.npy`` file, read-only; `BadInput` naming the file if that fails."""
    try:
        size = require_file(path, MOST_ARRAY)
        with HEADER_LOCK:
            _require_numbers(path, size)
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return _without_descriptor(path, array) if isinstance(array, np.memmap) and array.flags.c_contiguous else array
    except FileNotFoundError:
        raise BadInput(f"{path}: file not found; run `fedmerit prepare` again") from None
    except UNREADABLE as error:
        raise BadInput(f"{path}: not a readable .npy array ({error}); run `fedmerit prepare` again") from error


def _require_numbers(path: Path, size: int) -> None:
    """Raise `ValueError` unless the header of a file promises numbers that are there.

    NumPy itself divides by sizes of 0.
    """
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        if version not in NPY:
            raise ValueError(f"version {version}")
        try:
            shape, _, kind = NPY[version](file)
        except MemoryError as error:  # of Python's parser, in a header of many brackets
            raise ValueError("a header that cannot be parsed") from error
        if kind.kind not in "buif" or not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError(f"{kind} of shape {shape}, expected numbers")
        if math.prod(shape) * kind.itemsize > size - file.tell():
            raise ValueError(f"its header promises {shape}, which it does not hold")


def _without_descriptor(path: Path, array: np.memmap[Any, Any]) -> NDArray[Any]:
    """Return the same array, mapped by the C library: Python's maps keep files open, of which there are 1,024."""
    size = array.offset + array.nbytes
    with path.open("rb") as file:  # a private copy of what is written to, so nothing reaches the file
        place = LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, file.fileno(), 0)
    if place == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"{path} cannot be mapped")
    stored = (ctypes.c_ubyte * size).from_address(place)
    weakref.finalize(stored, LIBC.munmap, place, size).atexit = False  # once no array has it
    mapped: NDArray[Any] = np.frombuffer(memoryview(stored), np.uint8)[array.offset :].view(array.dtype)
    mapped = mapped.reshape(array.shape)
    mapped.flags.writeable = False
    return mapped
