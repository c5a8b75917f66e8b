"""Every reader of files in the product, by name: a function of a path that raises `BadInput` or returns.

A fuzz feeds each with hostile files of its kind. `test_readers` fails if the source reads a file anywhere else.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from layouts_prostate import OBLIQUE

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import read_closing
from fedmerit.evidence.ledger import Ledger, read_verified_records
from fedmerit.evidence.signatures import read_certificates
from fedmerit.evidence.verification.chains import read_ledger, read_site_log
from fedmerit.evidence.verification.run import verify_run
from fedmerit.files import read_bytes, read_json, read_object, read_text
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.configuration.run import read_plan
from fedmerit.schema.results import read_results, read_table
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import SiteFolder, load_array
from fedmerit.schema.survey import Survey
from fedmerit.server.checkpoint import read_checkpoint
from fedmerit.site.policy import read_manifest_file
from fedmerit.tensor_files import load_state, load_tensors
from fedmerit.trainers.factory import load_network
from fedmerit.trainers.saved_networks import read_description
from fedmerit_data.checking.integrity import check_readings
from fedmerit_data.readers.labelled_images import read_segments
from fedmerit_data.readers.lists import find_lists, read_list, stated_channels, stated_labels
from fedmerit_data.spatial.dicom import read_dicom
from fedmerit_data.spatial.photographs import load
from fedmerit_data.spatial.stacks import read_stack
from fedmerit_data.spatial.structures import read_regions
from fedmerit_data.spatial.volumes import Volume, read_itk, read_nifti
from fedmerit_data.tables import read_table as read_raw_table
from fedmerit_deploy.job_plan import read_configuration, read_job
from fedmerit_deploy.kit_files import read_name, server_address
from fedmerit_dossier.evidence import EVIDENCE, open_sources
from fedmerit_evaluation.ground_truth.ground_truths import list_preparation_differences, open_ground_truths
from fedmerit_evaluation.ground_truth.reliability import pilot_variances
from fedmerit_evaluation.models.predictor import open_bundle, previous_predictions
from fedmerit_evaluation.results.runs import open_run, open_runs
from fedmerit_evaluation.studies.study import require_same_images, require_unchanged

Reader = Callable[[Path], Any]
PREDICTED = {"model": {"file": "global.pt", "sha256": "0" * 64}, "preprocessing": {"size": 8}}


def _survey(path: Path) -> None:
    try:
        Survey.from_dict(read_json(path))
    except ValueError as error:
        raise BadInput(str(error)) from error


def _study(path: Path) -> None:
    require_same_images(path, [])
    require_unchanged(path, {"rounds": 3, "sites": "sites"})


def _ground_truth(path: Path) -> None:
    open_ground_truths(path.parent, tuple("ABCDE"), (0, 1))
    list_preparation_differences(path.parent, [{"A": "0" * 64}])


def _dossier(path: Path) -> None:
    sources = open_sources(open_runs([path.parent]), None)
    for collect in EVIDENCE.values():
        collect(sources)


GRID = Volume(Path("image"), np.zeros((8, 6, 4), np.float32), OBLIQUE)


def draw_regions(path: Path) -> object:
    """Every region of a DICOM mask on a small image."""
    regions = read_regions(path)
    return regions and [regions.draw(GRID, [number]) for number in regions.names]


# The path is that of the file, in a folder that is otherwise as a run, a site or a bundle has it.
READERS: Mapping[str, tuple[str, Reader]] = {  # by name: the file's name in its folder, and the reader
    "bytes": ("file", read_bytes),
    "text": ("file", read_text),
    "json": ("file.json", read_json),
    "object": ("file.json", read_object),
    "tensors": ("file.pt", load_tensors),
    "state": ("file.pt", load_state),
    "array": ("file.npy", load_array),
    "options": ("file.toml", RunOptions.read_file),
    "certificates": ("file.pem", read_certificates),
    "ledger": ("ledger.jsonl", read_verified_records),
    "ledger records": ("ledger.jsonl", lambda path: Ledger(path).records),
    "ledger schema": ("ledger.jsonl", read_ledger),
    "site log": ("site_log.jsonl", lambda path: read_site_log(path, None)),
    "results table": ("results.csv", read_table),
    "results": ("results.csv", lambda path: read_results(path.parent)),
    "pilot": ("results.csv", lambda path: pilot_variances(path.parent)),
    "run": ("run.json", lambda path: read_run(path.parent)),
    "plan": ("run.json", lambda path: read_plan(path.parent)),
    "run folder": ("run.json", lambda path: open_run(path.parent)),
    "verification": ("checkpoint.pt", lambda path: verify_run(path.parent)),
    "checkpoint": ("checkpoint.pt", lambda path: read_checkpoint(path.parent)),
    "closing record": ("closing.json", lambda path: read_closing(path.parent)),
    "description": ("model.json", lambda path: read_description(path.parent)),
    "network": ("global.pt", lambda path: load_network(path.parent)),
    "bundle": ("configs/inference.json", lambda path: open_bundle(path.parents[1], "cpu")),
    "site": ("site.json", lambda path: SiteFolder(path.parent)),
    "data list": ("datalist.json", lambda path: SiteFolder(path.parent)),
    "readings": ("site.json", lambda path: list(check_readings([SiteFolder(path.parent)]))),
    "manifest": ("fedmerit.json", read_manifest_file),
    "kit": ("startup/fed_client.json", lambda path: (read_name(path.parents[1]), server_address(path.parents[1]))),
    "survey": ("survey.json", _survey),
    "study": ("study.json", _study),
    "ground truth": ("study.json", _ground_truth),
    "dossier": ("run.json", _dossier),
    "predictions": ("prediction.json", lambda path: previous_predictions(path.parent, PREDICTED)),
    "job": ("app/config/config_fed_client.json", lambda path: read_configuration(read_job(path.parents[2]), path)),
    "raw table": ("pairs.csv", lambda path: read_raw_table(path, ("site", "case"))),
    "raw list": ("dataset.json", read_list),
    "data lists": ("site-1.json", lambda path: [read_list(one) for one in find_lists(path.parent)]),
    "raw labels": ("dataset.json", lambda path: stated_labels(path.parent)),
    "raw channels": ("dataset.json", lambda path: stated_channels(path.parent)),
    "stack": ("file.tif", read_stack),
    "segments": ("file.seg.nrrd", read_segments),
    "nifti": ("file.nii.gz", read_nifti),
    "itk": ("file.nrrd", read_itk),
    "meta image": ("file.mha", read_itk),
    "photograph": ("file.png", lambda path: load(path, "L")),
    "series": ("1-01.dcm", lambda path: read_dicom(path.parent)),
    "dicom": ("file.dcm", read_dicom),
    "segmentation": ("file.dcm", draw_regions),
    "structures": ("file.dcm", draw_regions),
}
