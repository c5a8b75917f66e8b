"""Seconds of `prepare` compared with only decoding the same raw files, in this process with everything imported."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pydicom
import torch
from PIL import Image

from fedmerit.errors import BadInput
from fedmerit_data.folders import new_folder
from fedmerit_data.preparation import Preparation
from fedmerit_data.prepare import prepare
from fedmerit_data.raw_cases import list_visible
from fedmerit_data.readers.image_files import name_and_suffix
from fedmerit_data.spatial.dicom import is_slice
from fedmerit_data.spatial.volumes import ITK, ITK_SUFFIXES, NIFTI
from fedmerit_data.synthetic import prostate
from fedmerit_lab.benchmarks.benchmark import Benchmark, Measure, bars, timed

BASE = "decode"
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
    files = [file for case in cases for path in case.paths
             for file in _files(path)]  # fmt: skip
    plain = replace(asked, pictures=False)
    measured: dict[str, Measure] = {
        "read": timed(lambda: [file.read_bytes() for file in files]),
        BASE: timed(lambda: [decode(file) for file in files]),
        "reader": timed(lambda: [asked.layout.decode(case) for case in cases]),
        "prepare": _prepared(out, plain, 1),
        "prepare, pictures": _prepared(out, replace(asked, pictures=True), 1),
    }
    if jobs > 1:
        measured[f"prepare, {jobs} processes"] = _prepared(out, plain, jobs)
    settings = {**asked.record(), "size": asked.size, "cases": len(cases), "files": len(files), "jobs": jobs}
    benchmark = Benchmark("preparation", settings)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        benchmark.measure(measured, repetitions, on_case)
    finally:
        torch.set_num_threads(threads)
    benchmark.write(out, {"preparation": bars(benchmark.table, "seconds", "seconds")})
    return benchmark


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
