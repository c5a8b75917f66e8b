"""Whatever is wrong with a source: `prepare` names it, or leaves it out and says so, or it did not matter.

Each mutation spoils a fresh copy of a tiny source. What may come of it, with and without ``skip_unreadable``:

1. `BadInput` that names what was spoilt and says what to do, with nothing at the output's place;
2. site folders without the case, every file of which is among those left out, with a reason;
3. site folders with the case just as without the mutation, or, where that is told of the mutation, another one
   with a remark.

In every success the files used and the files left out are all that there are.
"""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from mutations import LAYOUTS, Layout, Mutation, bombs, mutations

from data_prep.prepare import prepare
from fedmerit.errors import BadInput

WHAT_TO_DO = re.compile(r"; \w|expected|fetch|move|export|has to be")


@dataclass(frozen=True)
class Prepared:
    """Site folders as far as they matter here."""

    cases: dict[tuple[str, str], tuple[str, str]]  # of (site, case): checksums of image and label
    used_files: int
    left_out: list[tuple[str, str]]
    remarks: set[str]  # cases

    @classmethod
    def read(cls, out: Path) -> "Prepared":
        infos = [json.loads(path.read_text()) for path in sorted(out.glob("*/site.json"))]
        cases = {}
        for info in infos:
            for entries in json.loads((out / info["name"] / "datalist.json").read_text()).values():
                for entry in entries:
                    pair = tuple(info["checksums"][entry[key]] for key in ("image", "label"))
                    cases[info["name"], entry["case"]] = pair
        return cls(
            cases,
            sum(info["used"]["files"] for info in infos),
            [(entry["file"], entry["reason"]) for info in infos for entry in info["left_out"]],
            {remark["case"] for info in infos for remark in info["remarks"]},
        )


class Sources:
    """Sources as written, and what they are prepared to; each made once."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self, name: str) -> tuple[Path, Prepared]:
        layout, source, out = LAYOUTS[name], self.folder / name / "raw", self.folder / name / "out"
        if not out.exists():
            source.mkdir(parents=True)
            layout.write(source)
            prepare(layout.kind, out, source=source, size=16, **layout.options)
        return source, Prepared.read(out)


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


def names(mutation: Mutation, layout: Layout, source: Path, message: str) -> bool:
    """Whether a message names what was spoilt; of a folder or list that may be any of the files that it spoilt."""
    told = message.replace(f"{source}/", "")
    known = {layout.case, mutation.target, Path(mutation.target).name, f"site {layout.site}"}
    whole = mutation.target in {layout.listing, *(above.as_posix() for above in Path(layout.image).parents)}
    return (whole and (str(source) in message or "site " in message)) or any(name in told for name in known)


def judge(layout: Layout, mutation: Mutation, source: Path, out: Path, pristine: Prepared, skip: bool) -> str:
    """How it ended, in a word; fails where it may not end so."""
    try:
        prepare(layout.kind, out, source=source, size=16, skip_unreadable=skip, **layout.options)
    except BadInput as error:
        message = str(error)
        partial = out.with_name(f".{out.name}.partial")
        assert not out.exists()
        assert partial.exists() == ("finished cases are kept in" in message), message
        assert names(mutation, layout, source, message), message
        assert WHAT_TO_DO.search(message), message
        return "unreadable" if "--skip-unreadable" in message else "error"
    prepared = Prepared.read(out)
    disk = [file for file in files_on_disk(source) if file != layout.listing]
    covered = {
        file
        for file in disk
        for entry, reason in prepared.left_out
        if reason and (f"/{file}".endswith(f"/{entry}") or f"/{entry}/" in f"/{file}" or entry.startswith(f"{file}/"))
    }
    assert prepared.used_files + len(covered) == len(disk), (
        f"{prepared.used_files} used, left out {sorted(covered)} as {prepared.left_out}, of {sorted(disk)}"
    )
    assert len(prepared.cases) <= len(pristine.cases)
    known = set(pristine.cases.values())
    for (_, case), arrays in prepared.cases.items():
        if arrays not in known:
            assert case == layout.case, f"{case} came out another"
            assert mutation.changes, "the case came out another"
            assert case in prepared.remarks, "the case came out another without a remark"
    return "success"


@pytest.mark.parametrize(
    ("name", "mutation"),
    [
        # One in five is quick enough for every run, and comes upon every mutation at some layout.
        pytest.param(name, mutation, id=f"{name}: {mutation.name}", marks=[pytest.mark.slow] if number % 5 else [])
        for number, (name, mutation) in enumerate(
            (name, mutation) for name, layout in LAYOUTS.items() for mutation in mutations(layout)
        )
    ],
)
def test_a_spoilt_source_is_named_or_counted_or_does_not_matter(tmp_path, sources, name, mutation):
    layout, (sound, pristine) = LAYOUTS[name], sources(name)
    source = tmp_path / "raw"
    shutil.copytree(sound, source)
    mutation.apply(source)
    how = judge(layout, mutation, source, tmp_path / "out", pristine, skip=False)
    if how == "unreadable":
        judge(layout, mutation, source, tmp_path / "out", pristine, skip=True)


@pytest.mark.parametrize("name", ["refuge", "fundus-rois", "generic-photographs", "msd-prostate"])
def test_a_folder_that_may_not_be_read_is_named(tmp_path, sources, monkeypatch, name):
    layout, (sound, _) = LAYOUTS[name], sources(name)
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
    "prostate-multisite",
    "generic.nii",
    "generic.mhd",
    "generic.nrrd",
    "nci-isbi-2013",
    "refuge",
    "riga-messidor",
)
BOMBED = (*BOMBED, "nvflare-prostate", "generic-decathlon", "generic-pairs")
GUARDED = """
import json, resource, signal, sys
from pathlib import Path
from data_prep.prepare import prepare
from fedmerit.errors import BadInput

pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + 2 * 2**30
resource.setrlimit(resource.RLIMIT_AS, (most, most))
for kind, source, options in json.load(sys.stdin):
    signal.alarm(120)
    try:
        prepare(kind, Path(source).with_name("out"), source=Path(source), size=16, **options)
    except BadInput as error:
        print(json.dumps(str(error)), flush=True)
    else:
        print(json.dumps("prepared"), flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="knows what memory is taken from /proc")
def test_no_file_takes_all_memory_or_forever(tmp_path, sources):
    """Two GiB more than the libraries take, and two minutes of a slow machine, are enough for every bomb."""
    spoilt, asked = [], []
    for name in BOMBED:
        layout, (sound, _) = LAYOUTS[name], sources(name)
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
