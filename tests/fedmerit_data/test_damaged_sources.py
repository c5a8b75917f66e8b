"""Whatever is wrong with a source: it is named, or left out with the reason, or it did not matter.

Each mutation spoils a fresh copy of a tiny source. What may come of it:

1. `BadInput` that names what was spoilt and says what to do;
2. sites without the case, every file of which is among those left out, with a reason;
3. sites with the case just as without the mutation, or, where the mutation asks for it, another with a remark.

In every success the files used and the files left out are all that there are.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from layouts import prepare
from mutations import Mutation, folders, lists
from mutations_of_formats import bombs, mutations
from sources import LAYOUTS, Layout

from fedmerit.errors import BadInput
from fedmerit.files import sha256
from fedmerit_data.preparation import Preparation
from fedmerit_data.preparing.cases import CaseTask, PreparedCase, UnusableCase, prepare_case, raw_files

WHAT_TO_DO = re.compile(r"; \w|expected|fetch|move|export|has to be")
# Each file format at one layout, and of which of its two files: what readers of a format share.
FORMATS = {
    "prostate-multisite": ("image", "mask"),  # NIfTI
    "promise12": ("image",),  # MetaImage
    "generic.nrrd": ("image",),
    "i2cvb": ("image",),  # DICOM series
    "prostatex-seg": ("mask",),  # DICOM-SEG
    "fundus-rois": ("image", "mask"),  # PNG
    "refuge": ("image", "mask"),  # JPEG and BMP
    "generic-photographs": ("mask",),  # TIFF
}
RARE = ("promise12", "generic.nrrd", "i2cvb", "prostatex-seg", "generic-photographs")  # under `make test-all`
# Layouts with a way of their own to find and to pair files.
OWN = [name for name in LAYOUTS if not name.endswith(("-seg", ".nii", ".mhd", ".nrrd"))]
# What each layout may take in a way of its own.
AT_EVERY_LAYOUT = (
    *("image missing", "image hidden", "image empty", "image and mask swapped", "image as mask"),
    *("mask missing", "mask backup", "mask empty", "mask of another case", "mask transposed", "mask high"),
    *("mask halves", "mask half as large", "mask all 60"),
)


def find_tasks(layout: Layout, source: Path, out: Path) -> tuple[list[CaseTask], list[tuple[str, str]]]:
    """Every case as `prepare` would take it, and what it would leave out."""
    asked = Preparation(layout.kind, source, size=16, **layout.options)
    sites = asked.layout.find_sites(source)
    tasks = [
        CaseTask(asked.layout, source, site.name, case, out, asked.size, asked.field_of_view, asked.crop_multiple)
        for site in sites
        for case in site.cases
    ]
    return tasks, [entry for site in sites for entry in site.left_out]


def read_as(task: CaseTask) -> tuple[str, ...]:
    """What identifies a case: the digest of every file that it is read from; none if one is no file."""
    files = [task.source / path for path in raw_files(task)]
    return tuple(sha256(path) for path in files) if all(path.is_file() for path in files) else ()


@dataclass(frozen=True)
class Pristine:
    """A source before it is spoilt."""

    source: Path
    cases: int
    read: set[tuple[str, ...]]
    stored: set[tuple[str, ...]]  # checksums of image and label of each case


class Sources:
    """Sources as written and what is made of them, each once."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.made: dict[str, Pristine] = {}

    def __call__(self, name: str) -> Pristine:
        if name not in self.made:
            source = self.folder / name / "raw"
            source.mkdir(parents=True)
            LAYOUTS[name].write(source)
            tasks, _ = find_tasks(LAYOUTS[name], source, self.folder / name / "out")
            stored = {tuple(prepare_case(task).checksums.values()) for task in tasks}
            self.made[name] = Pristine(source, len(tasks), {read_as(task) for task in tasks}, stored)
        return self.made[name]


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    return Sources(tmp_path_factory.mktemp("sources"))


def files_on_disk(folder: Path) -> list[str]:
    """All that is no folder, hidden ones aside; a link is one if it leads nowhere or to a folder above itself."""
    files = []
    for path in folder.iterdir():
        inner = path.is_dir() and not folder.resolve().is_relative_to(path.resolve())
        if not path.name.startswith("."):
            files += [f"{path.name}/{file}" for file in files_on_disk(path)] if inner else [path.name]
    return files


def covered(files: Iterable[str], left_out: list[tuple[str, str]]) -> set[str]:
    """The files that what is left out, with a reason, stands for; it may be reported from its site's folder on."""
    return {
        file
        for file in files
        for entry, reason in left_out
        if reason and (f"/{file}".endswith(f"/{entry}") or f"/{entry}/" in f"/{file}" or entry.startswith(f"{file}/"))
    }


def names(mutation: Mutation, layout: Layout, source: Path, message: str) -> bool:
    """Whether a message names what was spoilt; of a folder or list that may be any of the files that it spoilt."""
    reported = message.replace(f"{source}/", "")
    known = {layout.case, mutation.target, Path(mutation.target).name, f"site {layout.site}"}
    whole = mutation.target in {layout.listing, *(above.as_posix() for above in Path(layout.image).parents)}
    return (whole and (str(source) in message or "site " in message)) or any(name in reported for name in known)


def require_reported(layout: Layout, mutation: Mutation, source: Path, message: str) -> None:
    assert names(mutation, layout, source, message), message
    assert WHAT_TO_DO.search(message), message


def spoilt(pristine: Pristine, mutation: Mutation, folder: Path) -> Path:
    source = folder / "raw"
    shutil.copytree(pristine.source, source)
    mutation.apply(source)
    return source


def judge(layout: Layout, mutation: Mutation, pristine: Pristine, folder: Path) -> None:
    """Find the sites, account for every file, and decode and store the cases that are not what they were."""
    source = spoilt(pristine, mutation, folder)
    try:
        tasks, left_out = find_tasks(layout, source, folder / "out")
        files = [{path.as_posix() for path in raw_files(task)} for task in tasks]
    except BadInput as error:
        require_reported(layout, mutation, source, str(error))
        return
    assert len(tasks) <= pristine.cases
    used: set[str] = set()
    for task, own in zip(tasks, files, strict=True):
        if read_as(task) not in pristine.read:
            outcome = prepare_case(task)
            if isinstance(outcome, UnusableCase):
                require_reported(layout, mutation, source, outcome.reason)
                left_out += [(file, outcome.reason) for file in own]
                continue
            if tuple(outcome.checksums.values()) not in pristine.stored:
                require_odd(layout, mutation, task, outcome)
        used |= own
    disk = {file for file in files_on_disk(source) if file != layout.listing}
    assert used <= disk
    assert disk - used == covered(disk - used, left_out)


def require_odd(layout: Layout, mutation: Mutation, task: CaseTask, outcome: PreparedCase) -> None:
    assert task.case.name == layout.case, f"{task.case.name} came out another"
    assert mutation.changes, "the case came out another"
    assert outcome.remarks, "the case came out another without a remark"


def format_mutations(name: str) -> list[Mutation]:
    return [mutation for mutation in mutations(LAYOUTS[name]) if mutation.name.startswith(FORMATS[name])]


def layout_mutations(name: str) -> list[Mutation]:
    """What only a layout can answer for: its lists, the folders of a case, how files are paired and labels read."""
    layout = LAYOUTS[name]
    nearest = [folder.as_posix() for folder in Path(layout.image).parents[:2]]
    near = [mutation for mutation in folders(layout) if mutation.target in nearest]
    return [*near, *lists(layout), *(one for one in mutations(layout) if one.name in AT_EVERY_LAYOUT)]


def all_mutations(name: str) -> list[Mutation]:
    return mutations(LAYOUTS[name])


SLOW = pytest.mark.slow
CHECKED = [
    *(
        pytest.param(name, format_mutations, id=f"format-{name}", marks=SLOW if name in RARE else ())
        for name in FORMATS
    ),
    *(
        pytest.param(name, layout_mutations, id=f"layout-{name}", marks=SLOW if place % 4 else ())
        for place, name in enumerate(OWN)
    ),
    *(pytest.param(name, all_mutations, id=f"all-{name}", marks=SLOW) for name in LAYOUTS),
]


@pytest.mark.parametrize(("name", "chosen"), CHECKED)
def test_what_is_damaged_is_named_or_left_out_or_does_not_matter(tmp_path, sources, subtests, name, chosen):
    for number, mutation in enumerate(chosen(name)):
        with subtests.test(mutation.name):
            judge(LAYOUTS[name], mutation, sources(name), tmp_path / str(number))


@pytest.mark.parametrize("name", ["refuge", "fundus-rois", "generic-photographs", "msd-prostate"])
def test_a_folder_that_may_not_be_read_is_named(tmp_path, sources, monkeypatch, name):
    layout, sound = LAYOUTS[name], sources(name).source
    folder = (sound / layout.image).parent
    plain = Path.iterdir

    def refuse(path):
        if path == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return plain(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(BadInput, match=rf"{folder.name}: not a readable folder \(.*Permission denied"):
        prepare(layout.kind, tmp_path / "out", source=sound, size=16, **layout.options)
    assert not any(tmp_path.iterdir())


BOMBED = (
    *("prostate-multisite", "generic.nii", "generic.mhd", "generic.nrrd", "nci-isbi-2013", "refuge", "riga-binrushed"),
    *("nvflare-prostate", "generic-decathlon", "generic-pairs"),
)
GUARDED = """
import json, resource, signal, sys
from pathlib import Path
from fedmerit_data.preparation import Preparation
from fedmerit_data.prepare import prepare
from fedmerit.errors import BadInput

pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + 2 * 2**30
resource.setrlimit(resource.RLIMIT_AS, (most, most))
for kind, source, options in json.load(sys.stdin):
    signal.alarm(120)
    try:
        prepare(Preparation(kind, Path(source), size=16, **options), Path(source).with_name("out"))
    except BadInput as error:
        print(json.dumps(str(error)), flush=True)
    else:
        print(json.dumps("prepared"), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="knows what memory is taken from /proc")
def test_no_file_takes_all_memory_or_forever(tmp_path, sources):
    """Two GiB more than the libraries take, and two minutes of a slow machine, are enough for every bomb."""
    spoilt, asked = [], []
    for name in BOMBED:
        layout, sound = LAYOUTS[name], sources(name).source
        for mutation in bombs(layout):
            source = tmp_path / str(len(spoilt)) / "raw"
            shutil.copytree(sound, source)
            mutation.apply(source)
            spoilt.append((layout, mutation, source))
            asked.append((layout.kind, str(source), dict(layout.options)))
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GUARDED], input=json.dumps(asked), capture_output=True, text=True
    )
    ends = [json.loads(line) for line in run.stdout.splitlines()]
    where = spoilt[min(len(ends), len(spoilt) - 1)]
    assert len(ends) == len(spoilt), (
        f"{where[0].kind}, {where[1].name}: ended by signal {-run.returncode}\n{run.stderr[-800:]}"
    )
    for (layout, mutation, source), end in zip(spoilt, ends, strict=True):
        if end != "prepared":
            assert names(mutation, layout, source, end), f"{layout.kind}, {mutation.name}: {end}"
        else:  # with zeros that follow what the header promises, which are never unpacked
            assert "to follow" in mutation.name, f"{layout.kind}, {mutation.name}"
