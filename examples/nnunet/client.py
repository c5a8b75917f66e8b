"""nnU-Net at one hospital, with NVFlare's Client API: its own preprocessing, augmentation, loss and training steps.

A round is a few of nnU-Net's epochs from the weights that arrive. Optimizer and random numbers begin again in each
round, from (seed, site, round), and the learning rate falls over all rounds as nnU-Net's does over its epochs: a round
depends on nothing else, so a run repeats and resumes to the bit on CPUs.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import nvflare.client as flare
import torch
from nnunetv2.evaluation.evaluate_predictions import compute_tp_fp_fn_tn, region_or_label_to_mask
from nnunetv2.inference.export_prediction import convert_predicted_logits_to_segmentation_with_correct_shape
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager
from nnunetv2.utilities.utils import create_paths_fn, get_identifiers_from_splitted_dataset_folder
from numpy.typing import NDArray
from torch import Tensor

import fedmerit.client as merit

PREFIX = "network."  # of parameters in the run's model
FILES = ("plans.json", "dataset.json")  # what a plan's digest is of
FEWEST = 5  # cases, for nnU-Net's five folds


class Site:
    """A hospital's cases, preprocessed by the run's plan.

    Args:
        name: of the site.
        data: nnU-Net's raw folder, with dataset.json, imagesTr, labelsTr, and splits_final.json if there is one.
        plan: folder of the plan that all sites have.
        work: folder for preprocessed cases and nnU-Net's logs.
    """

    def __init__(self, name: str, data: Path, plan: Path, work: Path):
        self.name, self.data = name, data
        self.plans, self.described = (json.loads((plan / file).read_text()) for file in FILES)
        (self.configuration,) = self.plans["configurations"]
        self.digest = digest(plan)
        self.cases = list_cases(data, self.described["file_ending"])
        if len(self.cases) < FEWEST and not (data / "splits_final.json").exists():
            raise ValueError(
                f"{data}: has {len(self.cases)} cases; nnU-Net's folds need {FEWEST}, or a splits_final.json"
            )
        os.environ["nnUNet_preprocessed"] = str(work / self.digest / "preprocessed")
        os.environ["nnUNet_results"] = str(work / self.digest / "results")
        self.folder = Path(os.environ["nnUNet_preprocessed"], self.plans["dataset_name"])
        self._preprocess()

    def _preprocess(self) -> None:
        """By nnU-Net's preprocessor, in this process, unless it was done with the same files."""
        manager = PlansManager(self.plans)
        configuration = manager.get_configuration(self.configuration)
        done = self.folder / "files.json"
        files = {
            file: [os.stat(file).st_size, os.stat(file).st_mtime_ns]
            for images, label in self.cases.values()
            for file in [*images, label]
        }
        if done.exists() and json.loads(done.read_text()) == files:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        cases = self.folder / configuration.data_identifier
        cases.mkdir(parents=True)
        preprocessor = configuration.preprocessor_class(verbose=False)
        for case, (images, label) in self.cases.items():
            preprocessor.run_case_save(str(cases / case), images, label, manager, configuration, self.described)
        if (splits := self.data / "splits_final.json").exists():
            shutil.copy(splits, self.folder)
        done.write_text(json.dumps(files))

    def require_plan(self, params: Mapping[str, Any]) -> None:
        """`ValueError` if the run's model is of another plan."""
        of_run = next((name for name in params if name.startswith("plan_")), "no plan")
        if of_run != f"plan_{self.digest}":
            raise ValueError(
                f"{self.name}: the run trains by {of_run}, this site has plan_{self.digest}; put the coordinator's "
                "plan folder at --plan"
            )


def list_cases(data: Path, ending: str) -> dict[str, tuple[list[str], str]]:
    """By training case the files of its channels, and that of its labels."""
    folder = data / "imagesTr"
    images = sorted(file.name for file in folder.iterdir())
    return {
        str(case): (create_paths_fn(str(folder), images, ending, case), str(data / "labelsTr" / f"{case}{ending}"))
        for case in get_identifiers_from_splitted_dataset_folder(str(folder), ending)
    }


def digest(plan: Path) -> str:
    """Twelve hexadecimal digits of the SHA-256 of a plan's folder."""
    return hashlib.sha256(b"".join((plan / name).read_bytes() for name in FILES)).hexdigest()[:12]


class RoundTrainer(nnUNetTrainer):
    """nnU-Net's trainer, in one process, driven by rounds instead of by `run_training`."""

    @staticmethod
    def get_training_transforms(*args: Any, **kwargs: Any) -> Any:
        """nnU-Net's, except that blurring never chooses its algorithm by the clock: runs would not repeat."""
        transforms = nnUNetTrainer.get_training_transforms(*args, **kwargs)
        for one in transforms.transforms:
            inner = getattr(one, "transform", one)
            if hasattr(inner, "benchmark"):
                inner.benchmark = False
        return transforms

    def prepare(self) -> None:
        """Build the network, and allow the mirroring that its training will have."""
        self.initialize()
        self.configure_rotation_dummyDA_mirroring_and_inital_patch_size()

    def load(self, params: Mapping[str, Any]) -> None:
        """Take over the weights of a run's model."""
        with torch.no_grad():
            for name, own in self.network.named_parameters():
                own.copy_(torch.as_tensor(params[PREFIX + name]))

    def parameters(self) -> dict[str, Tensor]:
        """Copies, by the names of the run's model."""
        return {PREFIX + name: own.detach().cpu().clone() for name, own in self.network.named_parameters()}

    def train_round(self, round: int, rounds: int, epochs: int) -> None:
        """Train for ``epochs`` of nnU-Net's."""
        self.num_epochs = rounds * epochs
        self.optimizer, self.lr_scheduler = self.configure_optimizers()
        self.dataloader_train, _ = self.get_dataloaders()
        self.set_deep_supervision_enabled(True)
        for self.current_epoch in range(round * epochs, (round + 1) * epochs):
            self.on_train_epoch_start()
            steps = range(self.num_iterations_per_epoch)
            self.on_train_epoch_end([self.train_step(next(self.dataloader_train)) for _ in steps])

    def segment(self, case: str, mirroring: bool) -> NDArray[Any]:
        """The labels (1, slices, rows, columns) of a preprocessed case as acquired, by nnU-Net's predictor."""
        predictor = nnUNetPredictor(use_mirroring=mirroring, device=self.device, allow_tqdm=False)
        predictor.manual_initialization(
            self.network,
            self.plans_manager,
            self.configuration_manager,
            None,
            self.dataset_json,
            type(self).__name__,
            self.inference_allowed_mirroring_axes,
        )
        self.set_deep_supervision_enabled(False)
        self.network.eval()
        data, _, _, properties = self.dataset_class(self.preprocessed_dataset_folder, [case]).load_case(case)
        logits = predictor.predict_sliding_window_return_logits(torch.from_numpy(data[:].copy())).cpu()
        found = convert_predicted_logits_to_segmentation_with_correct_shape(
            logits,
            self.plans_manager,
            self.configuration_manager,
            self.label_manager,
            properties,
            num_threads_torch=torch.get_num_threads(),
        )
        return np.asarray(found)[None]

    def score(self, case: str, label: str, mirroring: bool) -> float:
        """Mean Dice over the labels or regions of a case; NaN if it has none and none is found, as in nnU-Net."""
        reference, _ = self.plans_manager.image_reader_writer_class().read_seg(label)
        found, labels = self.segment(case, mirroring), self.label_manager
        ignored = reference == labels.ignore_label if labels.has_ignore_label else None
        scores = []
        for one in labels.foreground_regions if labels.has_regions else labels.foreground_labels:
            masks = region_or_label_to_mask(reference, one), region_or_label_to_mask(found, one)
            both, more, less, _ = compute_tp_fp_fn_tn(*masks, ignored)
            scores.append(2 * both / (2 * both + more + less) if both + more + less else np.nan)
        return float(np.nanmean(scores)) if np.isfinite(scores).any() else float("nan")


@contextmanager
def seeded(text: str) -> Iterator[None]:
    """Seed the global generators that nnU-Net draws from, and put them back afterwards."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def start(name: str, asked: argparse.Namespace) -> tuple[Site, RoundTrainer]:
    """The site, and a trainer of its cases."""
    os.environ |= {"nnUNet_n_proc_DA": "0", "nnUNet_compile": "f"}  # one process: batches come in one order
    paths = {part: Path(getattr(asked, part).format(site=name)) for part in ("data", "plan", "work")}
    site = Site(name, **paths)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plans = site.plans | {"continue_training": False}
    with seeded(name):
        trainer = RoundTrainer(plans, site.configuration, asked.fold, site.described, device)
        trainer.prepare()
    trainer.num_iterations_per_epoch = asked.iterations
    return site, trainer


def read_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Of the script; {site} in a path is the site's name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="nnU-Net's raw folder of the site")
    parser.add_argument("--plan", required=True, help="folder of the plan")
    parser.add_argument("--work", required=True, help="folder for preprocessed cases and logs")
    parser.add_argument("--fold", type=int, default=0, help="whose validation cases score models")
    parser.add_argument("--epochs", type=int, default=1, help="of a round")
    parser.add_argument("--iterations", type=int, default=250, help="of an epoch")
    parser.add_argument("--mirroring", action="store_true", help="average over mirrored images where models are scored")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def main() -> None:
    """One hospital, round by round."""
    asked = read_arguments()
    flare.init()
    name = flare.get_site_name()
    site, trainer = start(name, asked)
    training, validation = trainer.do_split()
    merit.enrol_cases([*site.cases[case][0], site.cases[case][1]] for case in training)
    while flare.is_running():
        received = merit.receive()
        if received is None:
            break
        site.require_plan(received.params)
        trainer.load(received.params)
        dice = [trainer.score(case, site.cases[case][1], asked.mirroring) for case in validation]
        known = [one for one in dice if np.isfinite(one)]
        if not known:
            raise ValueError(f"{name}: no validation case of fold {asked.fold} has a label; choose another --fold")
        metrics = {"dice": sum(known) / len(known), "dice_by_case": known}
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics=metrics))
            continue
        with seeded(f"{asked.seed} {name} {received.current_round}"):
            trainer.train_round(received.current_round, received.total_rounds, asked.epochs)
        steps = {"NUM_STEPS_CURRENT_ROUND": asked.epochs * asked.iterations}
        flare.send(flare.FLModel(params=trainer.parameters(), metrics=metrics, meta=steps))


if __name__ == "__main__":
    main()
