"""One nnU-Net plan for all hospitals, from aggregates of each: sums and medians over its patients, no patient's values.

At each hospital, then once at the coordinator:

    python plan.py summarize /data/Dataset005_Prostate summary.json
    python plan.py merge plan A/summary.json B/summary.json C/summary.json
"""

import argparse
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from client import FILES, digest, list_cases
from nnunetv2.experiment_planning.dataset_fingerprint.fingerprint_extractor import DatasetFingerprintExtractor
from nnunetv2.experiment_planning.experiment_planners.default_experiment_planner import ExperimentPlanner
from nnunetv2.imageio.reader_writer_registry import determine_reader_writer_from_dataset_json
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.label_handling.label_handling import determine_num_input_channels
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmerit.errors import BadInput
from fedmerit.schema.survey import LEAST

AGREED = ("channel_names", "labels", "regions_class_order", "file_ending", "overwrite_image_reader_writer")
STATISTICS = ("mean", "std", "median", "percentile_00_5", "percentile_99_5")  # not min and max, of single voxels
SAMPLED = 10_000  # foreground voxels of each case for statistics of intensities; nnU-Net's are 10**8 in all
NAME, PLANS = "Dataset001_Federated", "nnUNetPlans"  # as nnU-Net wants them


def summarize(data: Path) -> dict[str, Any]:
    """What leaves a hospital: aggregates of nnU-Net's fingerprint of its training cases.

    Args:
        data: nnU-Net's raw folder, with dataset.json, imagesTr and labelsTr.

    Raises:
        BadInput: fewer patients than the floor of FedMerit's surveys.
    """
    described = json.loads((data / "dataset.json").read_text())
    cases = list_cases(data, described["file_ending"])
    if len(cases) < LEAST:
        raise BadInput(f"{data}: has {len(cases)} training cases; a summary needs {LEAST}, so that it is of no patient")
    reader = determine_reader_writer_from_dataset_json(described, next(iter(cases.values()))[0][0], verbose=False)
    analyze = DatasetFingerprintExtractor.analyze_case
    found = [analyze(images, label, reader, SAMPLED) for images, label in cases.values()]
    shapes, spacings, voxels, _, sizes = zip(*found, strict=True)
    return {
        "cases": len(cases),
        "spacing": _rounded(np.median(spacings, axis=0)),  # mm, in nnU-Net's order of axes
        "shape": [round(one) for one in np.median(shapes, axis=0)],
        "relative_size_after_cropping": float(np.median(sizes)),
        "intensities": {  # of foreground voxels, by channel
            str(channel): _statistics(np.concatenate([of_case[channel] for of_case in voxels]))
            for channel in range(len(described["channel_names"]))
        },
        "dataset": {name: described[name] for name in AGREED if name in described},
    }


def _statistics(voxels: NDArray[Any]) -> dict[str, float]:
    low, middle, high = np.percentile(voxels, (0.5, 50.0, 99.5))
    return dict(zip(STATISTICS, _rounded((voxels.mean(), voxels.std(), middle, low, high)), strict=True))


def merge(summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The fingerprint of all hospitals: each counts as its median, once for every case.

    Means and standard deviations of intensities are exact for cases of equal weight, as in nnU-Net; percentiles are
    means of the hospitals' percentiles.

    Raises:
        BadInput: hospitals have other channels, labels or file endings.
    """
    names = sorted(summaries)
    first = summaries[names[0]]
    for name in names[1:]:
        for part in AGREED:
            here, there = summaries[name]["dataset"].get(part), first["dataset"].get(part)
            if here != there:
                raise BadInput(f"{name}: {part} is {here}, that of {names[0]} {there}; make dataset.json say the same")
    counts = np.array([summaries[name]["cases"] for name in names])

    def repeated(part: str) -> list[Any]:
        return [summaries[name][part] for name, count in zip(names, counts, strict=True) for _ in range(count)]

    intensities = {}
    for channel in first["intensities"]:
        by_name = {
            part: np.array([summaries[name]["intensities"][channel][part] for name in names]) for part in STATISTICS
        }
        merged = {part: float(np.average(values, weights=counts)) for part, values in by_name.items()}
        squares = np.average(by_name["std"] ** 2 + by_name["mean"] ** 2, weights=counts)
        intensities[channel] = merged | {"std": math.sqrt(max(0.0, squares - merged["mean"] ** 2))}
    return {
        "spacings": repeated("spacing"),
        "shapes_after_crop": repeated("shape"),
        "foreground_intensity_properties_per_channel": intensities,
        "median_relative_size_after_cropping": float(np.median(repeated("relative_size_after_cropping"))),
    }


class SitesPlanner(ExperimentPlanner):
    """nnU-Net's planner where no images are."""

    def determine_reader_writer(self) -> Any:
        """By dataset.json, without an image to try it on."""
        return determine_reader_writer_from_dataset_json(self.dataset_json, None)


def make_plan(
    folder: Path,
    summaries: Mapping[str, Mapping[str, Any]],
    configuration: str = "2d",
    memory: float = 8.0,
    features: int = 32,
) -> str:
    """Write the plan of all hospitals into a folder; the digest by which a run names it.

    Args:
        folder: for plans.json, dataset.json, dataset_fingerprint.json.
        summaries: of `summarize`, by hospital.
        configuration: of nnU-Net that is trained.
        memory: GB of a GPU that nnU-Net plans for.
        features: channels of the network's first level; nnU-Net's are 32.

    Raises:
        BadInput: as of `merge`, or nnU-Net plans no such configuration.
    """
    fingerprint = merge(summaries)
    described = next(iter(summaries.values()))["dataset"] | {"numTraining": len(fingerprint["spacings"])}
    with tempfile.TemporaryDirectory() as below:
        raw, prepared = Path(below, "raw", NAME), Path(below, "preprocessed", NAME)
        for place in (raw, prepared, folder):
            place.mkdir(parents=True, exist_ok=True)
        os.environ |= {"nnUNet_raw": str(raw.parent), "nnUNet_preprocessed": str(prepared.parent)}
        write(raw / "dataset.json", described | {"dataset": {}})
        write(prepared / "dataset_fingerprint.json", fingerprint)
        planner = SitesPlanner(NAME, gpu_memory_target_in_gb=memory, plans_name=PLANS)
        planner.UNet_base_num_features = features
        planner.plan_experiment()
        plans = json.loads((prepared / f"{PLANS}.json").read_text())
        shutil.copy(prepared / "dataset_fingerprint.json", folder)
    if configuration not in plans["configurations"]:
        raise BadInput(f"configuration {configuration!r}: nnU-Net planned {', '.join(plans['configurations'])}")
    plans["configurations"] = {configuration: plans["configurations"][configuration]}
    write(folder / "plans.json", plans)
    write(folder / "dataset.json", described)
    return digest(folder)


class Net(nn.Module):
    """nnU-Net's network of a plan, for `fedmerit run --model plan.py:Net`.

    Its state_dict names each tensor once (nnU-Net's has most of them four times), and the plan's digest, so that a
    hospital with another plan can say so.

    Args:
        plan: folder of the plan; None: of the variable NNUNET_PLAN, else "plan" here.
    """

    def __init__(self, plan: Path | None = None):
        super().__init__()
        folder = plan or Path(os.environ.get("NNUNET_PLAN", "plan"))
        plans, described = (json.loads((folder / name).read_text()) for name in FILES)
        manager = PlansManager(plans)
        configuration = manager.get_configuration(*plans["configurations"])
        self.network = nnUNetTrainer.build_network_architecture(
            manager,
            configuration,
            determine_num_input_channels(manager, configuration, described),
            manager.get_label_manager(described).num_segmentation_heads,
            enable_deep_supervision=True,
        )
        self.register_buffer(f"plan_{digest(folder)}", torch.zeros(1, dtype=torch.int64))

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Each tensor once."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}


def write(file: Path, content: Any) -> None:
    """As JSON."""
    file.write_text(json.dumps(content, indent=2) + "\n")


def _rounded(values: Iterable[float]) -> list[float]:
    """Six significant digits."""
    return [float(f"{value:.6g}") for value in values]


def main(arguments: Sequence[str] | None = None) -> None:
    """One of the two steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    one = steps.add_parser("summarize")
    one.add_argument("dataset", type=Path)
    one.add_argument("file", type=Path)
    two = steps.add_parser("merge")
    two.add_argument("folder", type=Path)
    two.add_argument("summaries", type=Path, nargs="+")
    two.add_argument("--configuration", default="2d")
    two.add_argument("--memory", type=float, default=8.0)
    two.add_argument("--features", type=int, default=32)
    asked = parser.parse_args(arguments)
    if asked.step == "summarize":
        write(asked.file, summarize(asked.dataset))
        print(asked.file.read_text())
    else:
        summaries = {str(file): json.loads(file.read_text()) for file in asked.summaries}
        made = make_plan(asked.folder, summaries, asked.configuration, memory=asked.memory, features=asked.features)
        print(f"plan {made}")


if __name__ == "__main__":
    main()
