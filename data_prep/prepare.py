"""Raw public data sets and generated sites to site folders: ``fedmerit prepare``."""

import math
import multiprocessing
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from data_prep.cases import Finished, Unusable, Work, raw_files, work_off
from data_prep.folders import holds_something, partial_folder, partial_of, require_free
from data_prep.kinds import GENERIC, KINDS, Kind, generic_kind
from data_prep.patients import read_patients, with_patients
from data_prep.raw import RawCase, RawSite
from data_prep.readers.generic import ANY, LabelMap
from data_prep.split import split_patients
from fedmerit.errors import BadInput
from fedmerit.files import read_json, sha256, write_json
from fedmerit.training.data import SERVER_SPLIT, SPLITS
from fedmerit.workers import end_with_parent

Report = Callable[[str, int, int], None]  # site, cases done, cases in all
Outcome = tuple[Work, Finished | Unusable]
OVERVIEW = "overview"  # the folder of pictures beside the site folders
LONGEST_NAME = 200  # bytes, of a site or a case: what is stored adds endings
TOLD = 10  # bad cases to name at once
DISC_MULTIPLE = 3.0


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
    crop: str | None = None,
    crop_multiple: float | None = None,
    patients: int | None = None,
    labels: LabelMap | None = None,
    channels: int | None = None,
    task: str | None = None,
    server_share: float = 0.0,
    patient_table: Path | None = None,
    skip_unreadable: bool = False,
    jobs: int = 1,
    pictures: bool = False,
    progress: Report | None = None,
) -> list[Path]:
    """Write one site folder per site below ``out`` and return them, sorted by name; all of them or none.

    Cases are finished one by one in a hidden folder beside ``out``, which outlives an interruption or a bad case:
    the same call then goes on from there. What is written does not depend on ``jobs``.

    Args:
        kind: A key of `KINDS`.
        out: Folder to make; must be absent or empty.
        source: Folder of raw sites. For synthetic kinds, where to keep the generated raw files, absent or
            empty, by default ``<out>-raw``.
        ratios: Shares of patients for training, validation and testing; sum 1. One of 0 leaves that split empty: with
            0, 0, 1 all are tested on, by `evaluate`; no run takes such a site.
        size: Pixels of the stored square slices.
        seed: Moves the split, and what synthetic kinds generate.
        slices: ``organ`` trains only on slices that show the organ; validation and testing stay whole.
        field_of_view: Side in mm of the central square that is kept; the kind's own where not given.
        crop: ``disc``, a square about the disc's middle, or ``whole``; the kind's own where not given.
        crop_multiple: Side of that square in larger extents of the disc, 1 to 20; 3 where not given.
        patients: Mean number of patients per site, for synthetic kinds alone.
        labels: For the generic kind alone, the mask values of each label; every value above 0 is ``mask`` where not
            given. Values under ``ignore`` are background.
        channels: For the generic kind alone, of an image; 3 where not given.
        task: For the generic kind alone, its name in site.json; ``generic`` where not given.
        server_share: Share of each site's training patients, 0 to 0.5, set aside as the split that the server
            evaluates models on; where it is positive, at least one patient per site.
        patient_table: CSV file with the columns site, case, patient: whose images they are, where names do not tell.
        skip_unreadable: Leave cases out whose files cannot be read, and say so in site.json, instead of stopping.
        jobs: Processes to share the cases among. A script that asks for more than one has to guard its own start
            by ``if __name__ == "__main__"``, since they import it.
        pictures: Draw ``out``/overview, which shows images and is as private as they are.
        progress: Called with site, cases done and cases in all; bars on the terminal where not given.

    Raises:
        BadInput: an argument or a raw file is unusable, or an interrupted call had other options.
    """
    chosen = _choose(kind, source, patients, labels, channels, task)
    _require_options(chosen, ratios, size, seed, slices, field_of_view, server_share, jobs)
    crop, crop_multiple = _crop(kind, chosen, crop, crop_multiple)
    known_patients = {} if patient_table is None else read_patients(patient_table)
    out = Path(out)
    raw = out.with_name(f"{out.name}-raw") if source is None else Path(source)
    fields: dict[str, Any] = {
        "source": kind,
        "ratios": list(ratios),
        "seed": seed,
        "slices": slices,
        "server_share": server_share,
        "patient_table": None if patient_table is None else sha256(patient_table),
        "field_of_view": chosen.field_of_view if field_of_view is None else field_of_view,
        "crop": crop,
        "crop_multiple": crop_multiple,
    }
    if kind == GENERIC:
        label_values = ANY if labels is None else labels
        fields |= {"label_values": {name: list(values) for name, values in label_values.items()}}
    lists_alone = ("ratios", "seed", "slices", "server_share", "patient_table")
    shaping = {name: value for name, value in fields.items() if name not in lists_alone} | {"size": size}
    meaning = {"task": chosen.task, "labels": list(chosen.labels), "channels": chosen.channels}
    shaping |= meaning
    if chosen.generate is not None:
        _require_apart(raw, out)
        shaping |= {"seed": seed, "patients": patients, "raw": str(raw.resolve())}
    shaping |= {"fedmerit_version": version("fedmerit")}
    if not partial_of(out).exists():
        require_free(out)
    with partial_folder(out) as folder:
        if not _published(folder, out, fields | meaning, size):
            require_free(out)
            resumed = _begin(folder, out, shaping)
            with _kept_if_worth_it(folder) as new:
                if chosen.generate is not None and not (resumed and holds_something(raw)):
                    _generate(chosen, raw, seed, patients)
                    new.append(raw)
                sites = chosen.find_sites(raw)
                if patient_table is not None:
                    sites = with_patients(sites, known_patients, patient_table)
                for site in sites:
                    _split(site, site.cases, fields)  # too few patients: better told now than after hours
                works = [
                    Work(chosen, raw, site.name, case, folder, size, fields["field_of_view"], crop_multiple)
                    for site in sites
                    for case in site.cases
                ]
                outcomes = _work_off_all(works, jobs, skip_unreadable, progress)
                _sweep(folder / "sites", works, outcomes)
                for site in sites:
                    _write_lists(chosen, site, [step for step in outcomes if step[0].site == site.name], size, fields)
                if pictures:
                    from data_prep.pictures import draw  # imports matplotlib

                    draw(folder / "sites", folder / "sites" / OVERVIEW)
            (folder / "sites").replace(out)
        shutil.rmtree(folder)
    return sorted(file.parent for file in out.glob("*/site.json"))


def finished_cases(out: Path) -> int:
    """How many cases an interrupted `prepare` of ``out`` has finished: its next call does not do them again."""
    return sum(1 for _ in _notes(partial_of(Path(out))))


def _notes(folder: Path) -> Iterator[Path]:
    return folder.glob("done/*/*.json")


def _published(folder: Path, out: Path, fields: Mapping[str, Any], size: int) -> bool:
    """Whether an earlier call was cut off between its last rename and its end: ``out`` is whole, and as asked for."""
    asked = {**fields, "image_size": [size, size], "fedmerit_version": version("fedmerit")}
    infos = [read_json(file) for file in out.glob("*/site.json")]
    as_asked = all(info.get(name) == value for info in infos for name, value in asked.items())
    return bool(infos) and as_asked and not (folder / "sites").exists()


def _begin(folder: Path, out: Path, shaping: Mapping[str, Any]) -> bool:
    """Note the options that shape the stored arrays; True where an earlier preparation with the same goes on.

    Raises:
        BadInput: it finished cases with others.
    """
    file = folder / "options.json"
    before = read_json(file) if file.exists() else {}
    if before != shaping and (done := sum(1 for _ in _notes(folder))):
        changed = [
            f"{name.replace('_', ' ')} {before.get(name)} then, {shaping.get(name)} now"
            for name in {**before, **shaping}
            if before.get(name) != shaping.get(name)
        ]
        raise BadInput(
            f"{out}: {done} finished cases of an interrupted preparation with other options are kept in {folder} "
            f"({'; '.join(changed)}); go on with those, remove that folder to begin anew or name another folder"
        )
    (folder / "sites").mkdir(exist_ok=True)
    write_json(file, shaping)
    return bool(before == shaping)


@contextmanager
def _kept_if_worth_it(folder: Path) -> Iterator[list[Path]]:
    """After a failure, keep what holds finished cases and say so; else remove it and the folders noted as new."""
    new: list[Path] = []
    try:
        yield new
    except BaseException as error:
        done = sum(1 for _ in _notes(folder))
        if not done:
            for path in (folder, *new):
                shutil.rmtree(path, ignore_errors=True)
        elif isinstance(error, (BadInput, OSError)):
            kept = f"{done} finished cases are kept in {folder}; the same command goes on from there"
            raise BadInput(f"{error}\n{kept}") from error
        raise


def _generate(kind: Kind, raw: Path, seed: int, patients: int | None) -> None:
    """Write a synthetic kind's raw files, all of them or none."""
    assert kind.generate is not None
    require_free(raw)
    with partial_folder(raw) as folder:
        try:
            shutil.rmtree(folder / "files", ignore_errors=True)
            (folder / "files").mkdir()
            kind.generate(folder / "files", seed, patients)
            (folder / "files").replace(raw)
        finally:
            shutil.rmtree(folder)


def _require_apart(raw: Path, out: Path) -> None:
    raw, out = raw.resolve(), out.resolve()
    if raw.is_relative_to(out) or out.is_relative_to(raw):
        raise BadInput(f"{raw}: raw files and site folders ({out}) need folders apart, neither within the other")


def _choose(
    kind: str,
    source: Path | None,
    patients: int | None,
    labels: LabelMap | None,
    channels: int | None,
    task: str | None,
) -> Kind:
    if kind not in KINDS:
        raise BadInput(f"kind {kind!r}: expected one of {', '.join(KINDS)}")
    given = {"labels": labels, "channels": channels, "task": task}
    if kind != GENERIC and (unfit := [name for name, value in given.items() if value is not None]):
        raise BadInput(f"{', '.join(unfit)}: kind {kind} has its own; only kind {GENERIC} takes them")
    if KINDS[kind].needs_source and source is None:
        raise BadInput(f"kind {kind}: needs --source, the folder that holds its raw site folders")
    if KINDS[kind].needs_source and patients is not None:
        raise BadInput(f"kind {kind}: the number of patients is what the source holds; only synthetic kinds take it")
    if patients is not None and patients < 5:
        raise BadInput(f"patients {patients}: expected at least 5 per site, so that the smallest can be split")
    if kind == GENERIC:
        default = KINDS[GENERIC]
        return generic_kind(
            ANY if labels is None else labels,
            default.channels if channels is None else channels,
            default.task if task is None else task,
        )
    return KINDS[kind]


def _require_options(
    kind: Kind,
    ratios: tuple[float, float, float],
    size: int,
    seed: int,
    slices: str,
    field_of_view: float | None,
    server_share: float,
    jobs: int,
) -> None:
    if len(ratios) != 3 or not all(ratio >= 0 for ratio in ratios) or not math.isclose(sum(ratios), 1, abs_tol=1e-6):
        shares = ",".join(f"{ratio:g}" for ratio in ratios)
        raise BadInput(f"ratios {shares}: expected three shares with sum 1, such as 0.5,0.25,0.25")
    if not 16 <= size <= 4096:
        raise BadInput(f"size {size}: expected 16 to 4096 pixels")
    if seed < 0:
        raise BadInput(f"seed {seed}: expected 0 or more")
    if slices not in ("all", "organ"):
        raise BadInput(f"slices {slices!r}: expected all or organ")
    if not 0 <= server_share <= 0.5:
        raise BadInput(f"server share {server_share:g}: expected a share of the training patients from 0 to 0.5")
    if jobs < 1:
        raise BadInput(f"jobs {jobs}: expected 1 or more")
    if field_of_view is not None and kind.field_of_view is None:
        raise BadInput(f"field of view {field_of_view:g} mm: {kind.task} images know no millimetres; leave it out")
    if field_of_view is not None and not 10 <= field_of_view <= 1000:
        raise BadInput(f"field of view {field_of_view:g} mm: expected 10 to 1000")


def _crop(kind: str, chosen: Kind, crop: str | None, multiple: float | None) -> tuple[str, float | None]:
    """The crop, and the multiple of a disc crop alone; the kind's defaults where not given."""
    allowed = chosen.crops
    if crop is None:
        crop = allowed[0]
    if crop not in allowed:
        raise BadInput(f"crop {crop!r}: kind {kind} allows {' or '.join(allowed)}")
    if crop != "disc":
        if multiple is not None:
            raise BadInput(f"crop multiple {multiple:g}: says how large a disc crop is, but the crop is {crop}")
        return crop, None
    multiple = DISC_MULTIPLE if multiple is None else multiple
    if not 1 <= multiple <= 20:
        raise BadInput(f"crop multiple {multiple:g}: expected 1 to 20 extents of the disc")
    return crop, multiple


def _split(site: RawSite, cases: Sequence[RawCase], fields: Mapping[str, Any]) -> dict[str, str]:
    names = Counter(case.name for case in cases)
    if long := [name for name in (site.name, *names) if len(name.encode()) > LONGEST_NAME]:
        raise BadInput(f"site {site.name}: {long[0]} is too long a name for its files; rename what is called so")
    if twice := [name for name, count in names.items() if count > 1]:
        raise BadInput(f"site {site.name}: {twice[0]} is the name of {names[twice[0]]} cases; keep one of their files")
    patients = [case.patient for case in cases]
    return split_patients(site.name, patients, tuple(fields["ratios"]), fields["seed"], fields["server_share"])


def _work_off_all(works: Sequence[Work], jobs: int, skip: bool, progress: Report | None) -> list[Outcome]:
    """Every case with what came of it, in the order of ``works``; ``skip`` lets unreadable ones pass.

    Raises:
        BadInput: names the bad cases, up to `TOLD` of them.
    """
    outcomes: dict[int, Outcome] = {}
    bad: dict[int, Unusable] = {}
    done: Counter[str] = Counter()
    totals = Counter(work.site for work in works)
    with _bars(progress) as report, closing(_alone(works) if jobs == 1 else _shared(works, jobs)) as steps:
        for site, total in totals.items():
            report(site, 0, total)
        for position, outcome in steps:
            work = works[position]
            outcomes[position] = work, outcome
            done[work.site] += 1
            report(work.site, done[work.site], totals[work.site])
            if isinstance(outcome, Unusable) and (outcome.readable or not skip):
                bad[position] = outcome
                if len(bad) == TOLD:
                    break
    if bad:
        reasons = [bad[position].reason for position in sorted(bad)]
        text = reasons[0]
        if len(reasons) > 1:
            first = "the first " if len(outcomes) < len(works) else ""
            text = "\n  ".join([f"{first}{len(reasons)} cases that cannot be used:", *reasons])
        if not skip and not any(unusable.readable for unusable in bad.values()):
            text += "\n--skip-unreadable leaves out such cases and says so"
        raise BadInput(text)
    return [outcomes[position] for position in range(len(works))]


def _alone(works: Sequence[Work]) -> Generator[tuple[int, Finished | Unusable], None, None]:
    with _one_thread():
        for position, work in enumerate(works):
            yield position, work_off(work)


def _shared(works: Sequence[Work], jobs: int) -> Generator[tuple[int, Finished | Unusable], None, None]:
    """Cases as they come from a pool of processes, each given out only when a process is free for it."""
    context = multiprocessing.get_context("forkserver")  # a fork of this process would copy its threads' locks
    context.set_forkserver_preload(["data_prep.cases"])
    running: dict[Future[Finished | Unusable], int] = {}
    waiting = iter(enumerate(works))
    with ProcessPoolExecutor(min(jobs, len(works)), context, initializer=_serve) as pool:
        try:
            while True:
                for position, work in islice(waiting, jobs - len(running)):
                    running[pool.submit(work_off, work)] = position
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    outcome = future.result()
                    yield running.pop(future), outcome
        except BrokenProcessPool as error:
            candidates = ", ".join(str(works[position].case.image) for position in sorted(running.values()))
            raise BadInput(
                f"a process died over one of {candidates}; if memory ran out, use fewer jobs, else fetch these "
                "files again"
            ) from error


def _serve() -> None:
    """Begin a process of the pool: one thread, deaf to Ctrl-C (it ends the case at hand), gone with its parent."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def _sweep(folder: Path, works: Sequence[Work], outcomes: Sequence[Outcome]) -> None:
    """Remove what an interrupted preparation left: halves, lists, cases that are no longer in the source."""
    wanted = {
        work.array(name) for work, finished in outcomes if isinstance(finished, Finished) for name in finished.checksums
    }
    names = {work.site for work in works}
    for site in folder.iterdir():
        if site.name not in names:
            shutil.rmtree(site)
        else:
            for path in site.rglob("*"):
                if path.is_file() and path not in wanted:
                    path.unlink()


def _write_lists(kind: Kind, site: RawSite, outcomes: Sequence[Outcome], size: int, fields: Mapping[str, Any]) -> None:
    """A site's datalist.json and site.json."""
    usable = [(work, outcome) for work, outcome in outcomes if isinstance(outcome, Finished)]
    skipped = [(work, outcome) for work, outcome in outcomes if isinstance(outcome, Unusable)]
    splits = _split(site, [work.case for work, _ in usable], fields)
    entries: dict[str, list[dict[str, Any]]] = {split: [] for split in (*SPLITS, SERVER_SPLIT)}
    counts = {split: {"cases": 0, "patients": 0, "slices": 0} for split in entries}
    for patient_split in splits.values():
        counts[patient_split]["patients"] += 1
    for work, finished in usable:
        split = splits[work.case.patient]
        entry: dict[str, Any] = {
            "case": work.case.name,
            "patient": work.case.patient,
            **work.arrays,
            "crop": finished.crop,
            "spacing": finished.spacing,
        }
        used = finished.slices
        if split == "training" and fields["slices"] == "organ":
            entry["slices"] = finished.organ
            used = len(finished.organ)
        entries[split].append(entry)
        counts[split]["cases"] += 1
        counts[split]["slices"] += used
    if counts["training"]["cases"] and not counts["training"]["slices"]:
        raise BadInput(f"site {site.name}: no training slice shows the organ; prepare with slices=all or add cases")
    folder = outcomes[0][0].array("")
    left_out = [*site.left_out]
    for work, unusable in skipped:
        reason = unusable.reason.replace(f"{work.source}/", "")
        left_out += [(path.as_posix(), f"unreadable case: {reason}") for path in raw_files(work)]
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
            "used": {"cases": len(usable), "files": len({path for _, finished in usable for path in finished.raw})},
            "unreadable_cases": len(skipped),
            "left_out": [{"file": name, "reason": reason} for name, reason in left_out],
            "remarks": [{"case": work.case.name, "remark": text} for work, done in usable for text in done.remarks],
            "checksums": {name: known for _, finished in usable for name, known in finished.checksums.items()},
            "fedmerit_version": version("fedmerit"),
        },
    )


@contextmanager
def _bars(progress: Report | None) -> Iterator[Report]:
    """``progress`` itself, or one bar per site on the terminal (nothing where there is no terminal)."""
    if progress is not None:
        yield progress
        return
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
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
