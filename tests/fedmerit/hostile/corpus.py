"""A valid file for every reader, in a folder that is otherwise as a run, a site, a job or a bundle has it."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tifffile
from certificates import issue
from layouts import save_nifti
from layouts_dicom import save_seg, save_structures, square
from layouts_prostate import save_itk, save_series
from noisy_trainings import WORTH, trained
from PIL import Image
from readers import PREDICTED, READERS

from fedmerit.engines.nvflare.recipe import export_job
from fedmerit.files import write_json
from fedmerit.schema.configuration.run import read_plan
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.schema.survey import Question, Survey
from fedmerit.site.policy import Manifest
from fedmerit_deploy.survey import survey_site
from fedmerit_evaluation.models.bundle import write_bundle
from fedmerit_evaluation.models.predictor import open_predictor

OPTIONS = """method = "fedce"
sites = "sites"
rounds = 3
only = ["site1", "site2"]
threads = 1
settings = {architecture = "unet", width = 4, lr = 0.001}
round_timeout = 5.5
"""
KIT = {
    "client": {"fqsn": "site1"},
    "servers": [{"name": "study", "service": {"target": "localhost:8002", "scheme": "grpc"}}],
}
# By reader, what it also reads: a hostile one of these, too.
BESIDE: Mapping[str, tuple[str, ...]] = {
    "verification": (
        "run.json", "ledger.jsonl", "closing.json", "results.csv", "models/model.json", "models/global.pt",
        "cross_site_val/cross_val_results.json",
    ),
    "run folder": ("results.csv",),
    "dossier": ("results.csv", "ledger.jsonl"),
    "ground truth": ("sampling.json", "results.csv"),
    "network": ("model.json",),
    "bundle": ("models/model.pt",),
    "job": ("meta.json",),
    "series": ("1-02.dcm",),
}  # fmt: skip


def make_corpus(root: Path, run: Path, site: Path) -> None:
    """For each reader a folder of its name below ``root``, which it reads; of a finished run and a site folder."""
    for name, (place, read) in READERS.items():
        path = root / name / place
        path.parent.mkdir(parents=True)
        MAKE[name](path, run, site)
        read(path)


def _copy(of: str, from_site: bool = False) -> Callable[[Path, Path, Path], object]:
    return lambda path, run, site: shutil.copy((site if from_site else run) / of, path)


def _whole(of: str = "", from_site: bool = False) -> Callable[[Path, Path, Path], object]:
    def make(path: Path, run: Path, site: Path) -> None:
        shutil.copytree((site if from_site else run) / of, path.parent, dirs_exist_ok=True)

    return make


def _certificate(path: Path, run: Path, site: Path) -> None:
    issue(path.parent, "site1")
    (path.parent / "site1.crt").rename(path)


def _pilot(path: Path, run: Path, site: Path) -> None:
    trained(WORTH, seed_sd=0.05, seeds=2, patients=2).rows.to_csv(path, index=False)


def _voxels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 900, (8, 6, 4)).astype(np.uint16)


def _series(path: Path, run: Path, site: Path) -> None:
    save_series(path.parent, _voxels())


def _dicom(path: Path, run: Path, site: Path) -> None:
    save_series(path.parent / "all", _voxels())
    (path.parent / "all" / "1-01.dcm").rename(path)


def _segmentation(path: Path, run: Path, site: Path) -> None:
    save_seg(path, save_series(path.parent / "all", _voxels()), {"a": _voxels() > 500, "b": _voxels() > 800})


def _structures(path: Path, run: Path, site: Path) -> None:
    slices = save_series(path.parent / "all", _voxels())
    save_structures(path, slices, {"a": [(1, square(1, 1, 5, 5)), (2, square(2, 1, 6, 4))], "b": []})


def _job(path: Path, run: Path, site: Path) -> None:
    shutil.rmtree(path.parents[2])
    export_job(read_plan(run), path.parents[2])


def _bundle(path: Path, run: Path, site: Path) -> None:
    shutil.rmtree(path.parents[1])
    write_bundle(open_predictor(run), path.parents[1], "run")


def _raw_list(path: Path, run: Path, site: Path) -> None:
    for name in ("image", "mask"):
        save_nifti(path.parent / f"{name}_0000.nii.gz", _voxels())
    entry = {"image": ["./image_0000.nii.gz"], "label": "mask_0000.nii.gz"}
    stated = {"modality": {"0": "T2"}, "labels": {"0": "background", "1": "organ"}, "numTraining": 1}
    path.write_text(json.dumps({**stated, "training": [entry], "validation": [], "test": ["x.nii.gz"]}))


def _segments(path: Path, run: Path, site: Path) -> None:
    save_itk(path, _voxels())
    head, voxels = path.read_bytes().split(b"\n\n", 1)
    path.write_bytes(head + b"\nSegment0_Name:=Organ\nSegment0_LabelValue:=1\nSegment0_Layer:=0\n\n" + voxels)


def _survey(path: Path, run: Path, site: Path) -> None:
    write_json(
        path, Survey(5, {"site1": survey_site(SiteFolder(site), Question(floor=2))}, {"site2": "refuses"}).to_dict()
    )


def _ground_truth(path: Path, run: Path, site: Path) -> None:
    made = trained(WORTH, seed_sd=0.05, seeds=2, patients=2, leave_out=[frozenset("BD")])
    made.rows.to_csv(path.parent / "results.csv", index=False)
    write_json(path, {"rounds": 3, "sites": "sites", "site_digests": {"A": "0" * 64}})
    write_json(path.parent / "sampling.json", {"truncation": 0.3, "precision": 0.01, "fewest": 4, "most": 20})


MAKE: Mapping[str, Callable[[Path, Path, Path], object]] = {
    "bytes": _copy("run.json"), "text": _copy("run.json"), "json": _copy("run.json"),
    "object": _copy("models/model.json"), "tensors": _copy("checkpoint.pt"), "state": _copy("models/global.pt"),
    "array": lambda path, run, site: np.save(path, np.zeros((3, 1, 8, 8), np.float32)),
    "options": lambda path, run, site: path.write_text(OPTIONS), "certificates": _certificate,
    "ledger": _copy("ledger.jsonl"), "ledger records": _copy("ledger.jsonl"), "ledger schema": _copy("ledger.jsonl"),
    "site log": _copy("sites/site1/site_log.jsonl"), "results table": _copy("results.csv"),
    "results": _copy("results.csv"), "pilot": _pilot, "run": _copy("run.json"), "plan": _copy("run.json"),
    "run folder": _whole(), "verification": _whole(), "checkpoint": _copy("checkpoint.pt"),
    "closing record": _whole(), "description": _copy("models/model.json"), "network": _whole("models"),
    "bundle": _bundle, "site": _whole(from_site=True), "data list": _whole(from_site=True),
    "readings": _whole(from_site=True),
    "manifest": lambda path, run, site: Manifest(site="site1", site_folder="sites/site1").write(path.parent),
    "kit": lambda path, run, site: write_json(path, KIT), "survey": _survey, "study": _ground_truth,
    "ground truth": _ground_truth, "dossier": _whole(),
    "predictions": lambda path, run, site: write_json(path, PREDICTED | {"images": [{"masks": ["a.nii.gz"]}]}),
    "job": _job, "raw table": lambda path, run, site: path.write_text("site,case\nsite1,000\nsite2,001\n"),
    **dict.fromkeys(("raw list", "data lists", "raw labels", "raw channels"), _raw_list),
    "stack": lambda path, run, site: tifffile.imwrite(path, _voxels(), photometric="minisblack"),
    "segments": _segments, "nifti": lambda path, run, site: save_nifti(path, _voxels()),
    "itk": lambda path, run, site: save_itk(path, _voxels()),
    "meta image": lambda path, run, site: save_itk(path, _voxels()),
    "photograph": lambda path, run, site: Image.fromarray(_voxels()[..., 0].astype(np.uint8)).save(path),
    "series": _series, "dicom": _dicom, "segmentation": _segmentation, "structures": _structures
}  # fmt: skip
