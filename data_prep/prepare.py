"""Raw public data sets and generated sites to site folders: ``fedmerit prepare``."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from data_prep.folders import whole_folder
from data_prep.frame import frame
from data_prep.kinds import KINDS, Kind
from data_prep.raw import RawSite
from data_prep.split import split_patients
from fedmerit.data import SERVER_SPLIT, SPLITS
from fedmerit.errors import BadInput
from fedmerit.files import sha256, write_json

Report = Callable[[str, int, int], None]  # site, cases done, cases in all


def prepare(
    kind: str,
    out: Path,
    *,
    source: Path | None = None,
    ratios: tuple[float, float, float] = (0.5, 0.25, 0.25),
    size: int = 256,
    seed: int = 0,
    slices: str = "all",
    field_of_view: float | None = None,
    patients: int | None = None,
    server_share: float = 0.0,
    progress: Report | None = None,
) -> list[Path]:
    """Write one site folder per site below ``out`` and return them, sorted by name; all of them or none.

    Args:
        kind: A key of `KINDS`.
        out: Folder to make; must be absent or empty.
        source: Folder of raw sites. For synthetic kinds, where to keep the generated raw files, absent or
            empty, by default ``<out>-raw``.
        ratios: Shares of patients for training, validation and testing; positive, sum 1.
        size: Pixels of the stored square slices.
        seed: Moves the split, and what synthetic kinds generate.
        slices: ``organ`` trains only on slices that show the organ; validation and testing stay whole.
        field_of_view: Side in mm of the central square that is kept; the kind's own where not given.
        patients: Mean number of patients per site, for synthetic kinds alone.
        server_share: Share of each site's training patients, 0 to 0.5, set aside as the split that the server
            evaluates models on; where it is positive, at least one patient per site.
        progress: Called with site, cases done and cases in all; bars on the terminal where not given.

    Raises:
        BadInput: an argument or a raw file is unusable.
    """
    chosen = _choose(kind, source, patients)
    _require_options(chosen, ratios, size, seed, slices, field_of_view, server_share)
    out = Path(out)
    fields: dict[str, Any] = {
        "source": kind,
        "ratios": list(ratios),
        "seed": seed,
        "slices": slices,
        "server_share": server_share,
        "field_of_view": chosen.field_of_view if field_of_view is None else field_of_view,
    }
    with ExitStack() as stack:
        folder = stack.enter_context(whole_folder(out))
        if chosen.generate is not None:
            keep = out.with_name(f"{out.name}-raw") if source is None else Path(source)
            _require_apart(keep, out)
            source = stack.enter_context(whole_folder(keep))
            chosen.generate(source, seed, patients)
        assert source is not None
        sites = chosen.find_sites(Path(source))
        report = stack.enter_context(_bars(progress))
        stack.enter_context(_one_thread())
        for site in sites:
            _write_site(chosen, site, folder / site.name, size, fields, report)
    return [out / site.name for site in sites]


def _require_apart(raw: Path, out: Path) -> None:
    raw, out = raw.resolve(), out.resolve()
    if raw.is_relative_to(out) or out.is_relative_to(raw):
        raise BadInput(f"{raw}: raw files and site folders ({out}) need folders apart, neither within the other")


def _choose(kind: str, source: Path | None, patients: int | None) -> Kind:
    if kind not in KINDS:
        raise BadInput(f"kind {kind!r}: expected one of {', '.join(KINDS)}")
    if KINDS[kind].needs_source and source is None:
        raise BadInput(f"kind {kind}: needs --source, the folder that holds its raw site folders")
    if KINDS[kind].needs_source and patients is not None:
        raise BadInput(f"kind {kind}: the number of patients is what the source holds; only synthetic kinds take it")
    if patients is not None and patients < 5:
        raise BadInput(f"patients {patients}: expected at least 5 per site, so that the smallest can be split")
    return KINDS[kind]


def _require_options(
    kind: Kind,
    ratios: tuple[float, float, float],
    size: int,
    seed: int,
    slices: str,
    field_of_view: float | None,
    server_share: float,
) -> None:
    if len(ratios) != 3 or not all(ratio > 0 for ratio in ratios) or not math.isclose(sum(ratios), 1, abs_tol=1e-6):
        shares = ",".join(f"{ratio:g}" for ratio in ratios)
        raise BadInput(f"ratios {shares}: expected three positive shares with sum 1, such as 0.5,0.25,0.25")
    if not 16 <= size <= 4096:
        raise BadInput(f"size {size}: expected 16 to 4096 pixels")
    if seed < 0:
        raise BadInput(f"seed {seed}: expected 0 or more")
    if slices not in ("all", "organ"):
        raise BadInput(f"slices {slices!r}: expected all or organ")
    if not 0 <= server_share <= 0.5:
        raise BadInput(f"server share {server_share:g}: expected a share of the training patients from 0 to 0.5")
    if field_of_view is not None and kind.field_of_view is None:
        raise BadInput(f"field of view {field_of_view:g} mm: {kind.task} images know no millimetres; leave it out")
    if field_of_view is not None and not 10 <= field_of_view <= 1000:
        raise BadInput(f"field of view {field_of_view:g} mm: expected 10 to 1000")


def _write_site(kind: Kind, site: RawSite, folder: Path, size: int, fields: Mapping[str, Any], report: Report) -> None:
    """Decode, frame and store every case of a site, one at a time, then its datalist.json and site.json."""
    (folder / "cases").mkdir(parents=True)
    patients = [case.patient for case in site.cases]
    splits = split_patients(site.name, patients, tuple(fields["ratios"]), fields["seed"], fields["server_share"])
    entries: dict[str, list[dict[str, Any]]] = {split: [] for split in (*SPLITS, SERVER_SPLIT)}
    counts = {split: {"cases": 0, "patients": 0, "slices": 0} for split in entries}
    for patient_split in splits.values():
        counts[patient_split]["patients"] += 1
    remarks: list[dict[str, str]] = []
    checksums: dict[str, str] = {}
    for done, case in enumerate(site.cases):
        report(site.name, done, len(site.cases))
        decoded = kind.decode(case)
        try:
            image, label = frame(decoded, size, fields["field_of_view"], kind.normalise)
        except BadInput as error:
            raise BadInput(f"{case.label}: {error}") from error
        split = splits[case.patient]
        entry: dict[str, Any] = {"case": case.name, "patient": case.patient}
        for key, array in (("image", image), ("label", label)):
            entry[key] = f"cases/{case.name}_{key}.npy"
            np.save(folder / entry[key], array)
            checksums[entry[key]] = sha256(folder / entry[key])
        used = list(range(len(image)))
        if split == "training" and fields["slices"] == "organ":
            used = entry["slices"] = np.flatnonzero(label.any(axis=(1, 2, 3))).tolist()
        entries[split].append(entry)
        counts[split]["cases"] += 1
        counts[split]["slices"] += len(used)
        remarks += [{"case": case.name, "remark": text} for text in (*decoded.remarks, *_empty(kind, label))]
    report(site.name, len(site.cases), len(site.cases))
    if not counts["training"]["slices"]:
        raise BadInput(f"site {site.name}: no training slice shows the organ; prepare with slices=all or add cases")
    write_json(folder / "datalist.json", entries)
    spacing = None if fields["field_of_view"] is None else [fields["field_of_view"] / size] * 2
    write_json(
        folder / "site.json",
        {
            "name": site.name,
            "task": kind.task,
            "labels": list(kind.labels),
            "channels": kind.channels,
            "image_size": [size, size],
            "spacing": spacing,
            **fields,
            "licence": kind.licence,
            "citation": kind.citation,
            "counts": counts,
            "left_out": [{"case": name, "reason": reason} for name, reason in site.left_out],
            "remarks": remarks,
            "checksums": checksums,
            "fedmerit_version": version("fedmerit"),
        },
    )


def _empty(kind: Kind, label: NDArray[np.uint8]) -> Iterator[str]:
    """A remark for each label that the whole case lacks: such a case is kept, and counted by `check`."""
    for position, name in enumerate(kind.labels):
        if not label[:, position].any():
            yield f"no {name} in its mask"


@contextmanager
def _bars(progress: Report | None) -> Iterator[Report]:
    """``progress`` itself, or one bar per site on the terminal (nothing where there is no terminal)."""
    if progress is not None:
        yield progress
        return
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def report(site: str, done: int, total: int) -> None:
            if site not in tasks:
                tasks[site] = bars.add_task(site, total=total)
            bars.update(tasks[site], completed=done)

        yield report


@contextmanager
def _one_thread() -> Iterator[None]:
    """Slices are too small to share between threads: beside other work, waiting for them takes most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
