"""Costs: seconds of a round by method and engine, seconds and memory by the size of a run, preparation and decoding."""

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pydicom
import torch
from PIL import Image

from fedmerit.child_processes import python_command
from fedmerit.engines import runs
from fedmerit.engines.image_sites import configure_images
from fedmerit.errors import BadInput, require_known
from fedmerit.files import read_json, write_json
from fedmerit.machine import pick_device
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.site_folder import open_sites
from fedmerit.trainers.factory import build_network
from fedmerit.trainers.monai.local_training import train
from fedmerit.trainers.monai.samples import build_samples
from fedmerit_data.folders import new_folder
from fedmerit_data.preparation import Preparation
from fedmerit_data.prepare import prepare
from fedmerit_data.raw_cases import list_visible
from fedmerit_data.readers.image_files import name_and_suffix
from fedmerit_data.spatial.dicom import is_slice
from fedmerit_data.spatial.volumes import ITK, ITK_SUFFIXES, NIFTI
from fedmerit_data.synthetic import prostate
from fedmerit_lab.benchmarks.benchmark import Benchmark, Measure, measure_command, timed

BASE = "fedavg"
STEPS = "steps"  # instead of a method: the optimiser's steps of a round, on the images of all sites pooled, only
SECONDS, WALL, GPU_MEMORY = "CPU seconds per round", "seconds per round", "GPU memory [MB]"
SETTINGS: Mapping[str, Mapping[str, Any]] = {  # so that the rounds after the first are those of the method proper
    "fedsac": {"importance": "taylor", "standalone_rounds": 1},
    "cycle": {"warmup": 0},
}


def method_costs(
    out: Path,
    sites: Path,
    methods: Sequence[str],
    rounds: int,
    repetitions: int,
    settings: Mapping[str, Any],
    on: Any,
    threads: int = 1,
) -> Benchmark:
    """Measure short trainings in this process; a round's is the mean of all but the first.

    Args:
        out: folder of the measurements.
        sites: folder of site folders, with images set aside for the server if a method needs them.
        methods: beside `BASE`, which always is among them; or `STEPS`.
        rounds: of each training.
        repetitions: of every method, interleaved.
        settings: of all of them, beneath `SETTINGS`.
        on: called before every measurement.
        threads: sites at work at a time.

    Raises:
        BadInput: an unknown method, or fewer than two rounds.
    """
    require_known("--methods", methods, (*METHODS, STEPS))
    if rounds < 2:
        raise BadInput(f"--rounds {rounds}: expected 2 or more, as the first is not counted")
    names = list(dict.fromkeys([BASE, *methods]))
    asked = {"sites": str(sites), "methods": names, "rounds": rounds, "settings": dict(settings), "of": SETTINGS}
    cases = {
        name: _steps_of(sites, settings)
        if name == STEPS
        else rounds_of(
            out / "work" / name, name, sites, rounds, {**settings, **SETTINGS.get(name, {})}, threads=threads
        )
        for name in names
    }
    return _measured("methods", asked | {"threads": threads}, cases, repetitions, on, out)


def _measured(
    name: str, asked: Mapping[str, Any], cases: Mapping[str, Measure], repetitions: int, on_case: Any, out: Path
) -> Benchmark:
    """Return a benchmark of the options ``asked`` with all cases measured, and write it."""
    benchmark = Benchmark(name, asked)
    benchmark.measure(cases, repetitions, on_case, out)
    benchmark.write(out)
    return benchmark


class _RoundsDone(Exception):
    """A signal after the last round: what a run does then is not measured, and not done."""


def rounds_of(
    work: Path,
    method: str,
    sites: Path,
    rounds: int,
    settings: Mapping[str, Any],
    values: Sequence[str] = (),
    threads: int = 1,
) -> Measure:
    """Return a measure of a round's seconds in this process, the mean of all but the first; ``values`` are observed."""

    def measured() -> Mapping[str, float]:
        shutil.rmtree(work, ignore_errors=True)
        runs.create(work, method, sites, rounds, engine="local", threads=threads, settings=settings, values=values)
        _forget_gpu_memory()
        ends: list[tuple[float, float]] = []

        def note(record: Mapping[str, Any]) -> None:
            ends.append((time.process_time(), time.perf_counter()))
            if len(ends) == rounds:
                raise _RoundsDone

        with suppress(_RoundsDone):
            runs.execute(work, note)
        return _costs(ends)

    return measured


def _steps_of(sites: Path, settings: Mapping[str, Any]) -> Measure:
    """Return seconds of `STEPS`, after a round of them that is not counted."""

    def measured() -> Mapping[str, float]:
        folders, device = open_sites(sites), pick_device("auto", STEPS)
        config = configure_images(folders, RunOptions(method=BASE, rounds=1), settings)
        training = replace(config.training, steps=config.training.steps * len(folders))
        torch.set_num_threads(1)
        cases = [case for folder in folders for case in folder.cases("training")]
        samples, network = build_samples(cases, config.network.patch), build_network(config.network, device)
        _forget_gpu_memory()
        ends = []
        for round in range(2):
            train(network, samples, training, training.lr, seed=round)
            ends.append((time.process_time(), time.perf_counter()))
        return _costs(ends)

    return measured


def _forget_gpu_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _costs(ends: Sequence[tuple[float, float]]) -> Mapping[str, float]:
    """Return the costs of a round by the CPU and wall seconds at the end of each."""
    cpu, wall = ((last - first) / (len(ends) - 1) for first, last in zip(ends[0], ends[-1], strict=True))
    gpu = {GPU_MEMORY: torch.cuda.max_memory_reserved() / 1e6} if torch.cuda.is_available() else {}
    return {SECONDS: cpu, WALL: wall, **gpu}


CASES: Mapping[str, str] = {
    "steps": "forward, backward, optimiser and two validations of the same work, nothing else",
    "local": "FedMerit, local engine",
    "sim": "FedMerit on NVFlare's simulator, all sites concurrent",
    "sim-2": "the same with --threads 2",
    "peer": "NVFlare's FedCERecipe with a client after its documentation, torch's default threads",
    "peer-1": "the same with torch.set_num_threads(1)",
}


def speed(
    out: Path,
    sites: Path,
    rounds: int,
    repetitions: int,
    cases: Sequence[str],
    settings: Mapping[str, str],
    on_case: Any,
) -> Benchmark:
    """Measure `CASES`, each as a process with its child processes, for the same network, loss, optimiser and batches.

    Raises:
        BadInput: an unknown case, or fewer than two rounds.
    """
    require_known("--cases", cases, CASES)
    if rounds < 2:
        raise BadInput(f"--rounds {rounds}: expected 2 or more, as the first is not counted")
    asked = {"sites": str(sites), "rounds": rounds, "cases": list(cases), "settings": dict(settings)}
    measures = {case: _speed_of(case, out, sites, rounds, settings) for case in cases}
    return _measured("speed", asked, measures, repetitions, on_case, out)


def _speed_of(case: str, out: Path, sites: Path, rounds: int, settings: Mapping[str, str]) -> Measure:
    work = out / "work" / case
    engine = "sim" if case.startswith("sim") else "local"
    threads = {"sim": len(open_sites(sites)), "sim-2": 2}.get(case)
    module = "nvflare_peer" if case.startswith("peer") else "bare_steps" if case == "steps" else "one_run"
    more = (str(work / "nvflare"), "1" if case == "peer-1" else "0") if module == "nvflare_peer" else ()
    chosen = {"augmentation": "none", **settings}
    return lambda: measure_run(work, "fedce", sites, rounds, module, more, engine=engine, threads=threads,
                               settings=chosen)  # fmt: skip


def measure_run(
    work: Path, method: str, sites: Path, rounds: int, module: str = "one_run", more: Sequence[str] = (), **options: Any
) -> dict[str, float]:
    """Create a run in the folder ``work``, and measure the process that executes it.

    Args:
        work: has the run folder ``run``, and ``ends.txt`` with a line for every round.
        method: of the run.
        sites: folder of site folders.
        rounds: of the run.
        module: of this package, that executes the run.
        more: further arguments of the module.
        **options: of `fedmerit.engines.runs.create`.
    """
    shutil.rmtree(work, ignore_errors=True)
    run, ends = work / "run", work / "ends.txt"
    runs.create(run, method, sites, rounds, **options)
    command = python_command("-m", f"fedmerit_lab.benchmarks.{module}", str(run), str(ends), *more)
    return dict(measure_command(command, ends).quantities)


WARM_UP = 0.2  # of the rounds, which the slope leaves out


def memory(
    out: Path, sites: Path, method: str, rounds: int, repetitions: int, settings: Mapping[str, str], on_case: Any
) -> Benchmark:
    """Measure the process of a run after every round.

    Raises:
        BadInput: there are too few rounds for a slope.
    """
    if rounds < 10:
        raise BadInput(f"--rounds {rounds}: expected 10 or more, to fit a slope")
    work = out / "work" / "memory"

    def measured() -> Mapping[str, float]:
        used = measure_run(work, method, sites, rounds, engine="local", settings=settings)
        own = [float(line.split()[2]) / 1e6 for line in (work / "ends.txt").read_text().splitlines()]
        first = int(WARM_UP * len(own))
        slope = np.polyfit(np.arange(first, len(own)), own[first:], 1)[0]
        return {**used, "growth [MB a round]": float(slope)}

    asked = {"sites": str(sites), "rounds": rounds, "method": method, "settings": dict(settings)}
    return _measured("memory", asked, {method: measured}, repetitions, on_case, out)


@dataclass(frozen=True)
class Work:
    """The size of a run."""

    sites: int = 4
    width: int = 8
    size: int = 64
    rounds: int = 4


def growth(
    out: Path,
    axes: Mapping[str, Sequence[int]],
    method: str,
    repetitions: int,
    settings: Mapping[str, str],
    on_case: Any,
    base: Work = Work(),
    engine: str = "local",
) -> Benchmark:
    """Measure `Work` with one of its numbers changed, for each of ``axes``.

    Args:
        out: folder of what is measured.
        axes: by name of a number of `Work`, its values.
        method: of the runs.
        repetitions: of every case.
        settings: of the method, the training or the network.
        on_case: called before every measurement.
        base: the other numbers.
        engine: local, sim or poc.

    Raises:
        BadInput: a number below 1, fewer than two rounds or sites.
    """
    for axis, values in axes.items():
        for value in values:
            if value < (2 if axis in ("sites", "rounds") else 1):
                raise BadInput(f"--{axis} {value}: too few")
    asked = {"axes": dict(axes), "base": vars(base), "method": method, "engine": engine, "settings": dict(settings)}
    works = {f"{axis} {value}": replace(base, **{axis: value}) for axis, values in axes.items() for value in values}
    cases = {name: _case(out, name, work, method, settings, engine) for name, work in works.items()}
    return _measured("growth", asked, cases, repetitions, on_case, out)


def _case(out: Path, name: str, work: Work, method: str, settings: Mapping[str, str], engine: str) -> Measure:
    def measured() -> Mapping[str, float]:
        folder, sites = out / "work" / name.replace(" ", "-"), generated_sites(out, work.size, work.sites)
        chosen = {**settings, "width": str(work.width)}
        used = measure_run(folder, method, sites, work.rounds, engine=engine, settings=chosen)
        sizes = [file.stat().st_size for file in (folder / "run").rglob("*") if file.is_file()]
        return {**used, "run folder [MB]": sum(sizes) / 1e6}

    return measured


def generated_sites(out: Path, size: int, number: int | None = None, server_share: float = 0.0) -> Path:
    """Return the folder of six generated prostate sites of ``size`` pixels, or of ``number`` copies of the first.

    Copies are equal, so that time grows only with their number. ``server_share`` of the training patients is set aside
    for the server.
    """
    kind = f"{size}px-server{server_share:g}" if server_share else f"{size}px"
    six = out / "sites" / kind
    if not six.exists():
        prepare(Preparation("synthetic-prostate", size=size, server_share=server_share), six)
    if number is None:
        return six
    root = out / "sites" / f"{kind}-{number}-alike"
    for place in range(number):
        name = f"site{place + 1:03d}"
        if not (root / name / "site.json").exists():
            skip = shutil.ignore_patterns("site.json")  # written last: the copy is complete
            shutil.copytree(six / "site1", root / name, ignore=skip, dirs_exist_ok=True)
            write_json(root / name / "site.json", {**read_json(six / "site1" / "site.json"), "name": name})
    return root


DECODED = "decode"
GENERATED = "prostate-multisite"  # layout of generated files, without a source


def preparation_costs(out: Path, asked: Preparation, jobs: int, repetitions: int, on_case: Any) -> Benchmark:
    """Measure reading and decoding of all files, the kind's reader, and `prepare` with one process and with ``jobs``.

    Args:
        out: folder of what was measured; site folders are written below it and removed.
        asked: of a kind whose raw files are in its source.
        jobs: processes of the last case, which is left out if they are fewer than two.
        repetitions: of every case, interleaved.
        on_case: called before every measurement.

    Raises:
        BadInput: of a synthetic kind, or as `prepare`.
    """
    if asked.source is None or asked.layout.generate is not None:
        raise BadInput(f"kind {asked.kind}: generates its files; give a kind of raw files and --source")
    cases = [case for site in asked.layout.find_sites(asked.source) for case in site.cases]
    files = [file for case in cases for path in case.paths for file in _files(path)]
    plain = replace(asked, pictures=False)
    measured: dict[str, Measure] = {
        "read": timed(lambda: [file.read_bytes() for file in files]),
        DECODED: timed(lambda: [decode(file) for file in files]),
        "reader": timed(lambda: [asked.layout.decode(case) for case in cases]),
        "prepare": _prepared(out, plain, 1),
        "prepare, pictures": _prepared(out, replace(asked, pictures=True), 1),
    }
    if jobs > 1:
        measured[f"prepare, {jobs} processes"] = _prepared(out, plain, jobs)
    settings = {**asked.record(), "size": asked.size, "cases": len(cases), "files": len(files), "jobs": jobs}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measured("preparation", settings, measured, repetitions, on_case, out)
    finally:
        torch.set_num_threads(threads)


def generated_source(out: Path, patients: int) -> Path:
    """Return the folder of six generated prostate sites' raw files in the layout `GENERATED`, made if missing."""
    raw = out / f"raw-{patients}"
    if not raw.exists():
        with new_folder(raw) as folder:
            prostate.generate(folder, 0, patients)
    return raw


def decode(file: Path) -> np.ndarray[Any, Any]:
    """Return the array of one file, only by its library."""
    suffix = name_and_suffix(file)[1]
    if suffix in NIFTI:
        return np.asarray(nib.load(file).dataobj)
    if suffix in ITK_SUFFIXES:
        return np.asarray(ITK.GetArrayFromImage(ITK.ReadImage(str(file))))
    if is_slice(file):
        return pydicom.dcmread(file).pixel_array
    with Image.open(file) as image:
        return np.asarray(image)


def _files(path: Path) -> list[Path]:
    """Return a file itself, or the slices in the folder of a DICOM series."""
    return [file for file in list_visible(path) if is_slice(file)] if path.is_dir() else [path]


def _prepared(out: Path, asked: Preparation, jobs: int) -> Measure:
    work = out / "work"

    def measured() -> Mapping[str, float]:
        shutil.rmtree(work, ignore_errors=True)
        taken = timed(lambda: prepare(asked, work, jobs=jobs, progress=lambda *_: None))()
        shutil.rmtree(work)
        return taken if jobs == 1 else {"seconds": taken["seconds"]}  # CPU seconds are only of this process

    return measured
