"""Dice of the same final models by the protocols of other papers: how much of a Dice is due to the protocol."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from monai.metrics.confusion_matrix import get_confusion_matrix
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedmerit.errors import BadInput, require_known
from fedmerit.schema.scores import Overlap
from fedmerit.schema.site_folder import Case, SiteFolder, open_sites
from fedmerit.seeds import random_seed
from fedmerit.trainers.monai.evaluation import STATISTICS_BATCH
from fedmerit.trainers.monai.networks import patch_size
from fedmerit.trainers.monai.prediction import autocast, choose_precision, evaluate, predict_logits
from fedmerit_evaluation.results.evaluation import final_models
from fedmerit_evaluation.results.runs import open_run
from fedmerit_evaluation.results.views import SURFACES

SHARE = 0.1  # of all slices, the test set of a split by slices
AS_USED, BATCH = "as-used", "batch-statistics"
NO_BATCH_NORM = " (no BatchNorm, or a network of volumes: the same as volumes)"
Counts = NDArray[np.int64]  # (slices, labels, 3): true positives, false positives, false negatives


@dataclass(frozen=True, eq=False)
class Scored:
    """A site, and the model that is scored on it."""

    network: nn.Module
    site: SiteFolder
    split: str
    amp: bool
    seed: int  # of draws

    @cached_property
    def tested(self) -> "Slices":
        """The slices of the split, as the model predicts them."""
        return Slices.of(self.site.cases(self.split)).predicted(self.network, self.amp)

    @cached_property
    def used(self) -> list[Overlap]:
        """The cases of the split, masks after post-processing."""
        return evaluate(self.network, self.site.cases(self.split), self.site.labels, self.amp, final=True)

    @property
    def all_patients(self) -> "Slices":
        """The slices of all splits of the site, not yet predicted."""
        return Slices.of([case for cases in self.site.splits.values() for case in cases])


@dataclass(frozen=True, eq=False)
class Slices:
    """A sequence of slices of some cases, and their confusion counts."""

    places: Sequence[tuple[Case, int]]
    counts: Counts | None = None

    @classmethod
    def of(cls, cases: Sequence[Case]) -> "Slices":
        """Return all slices."""
        return cls([(case, position) for case in cases for position in range(len(case.image))])

    def drawn(self, share: float, seed: int) -> "Slices":
        """Return some, at random, at least one."""
        number = max(1, round(share * len(self.places)))
        chosen = np.random.default_rng(seed).choice(len(self.places), number, replace=False)
        return Slices([self.places[place] for place in sorted(chosen.tolist())])

    @torch.inference_mode()
    def predicted(self, network: nn.Module, amp: bool) -> "Slices":
        """Return with counts; a network of slices predicts batches of nearly equal size, and stays in its mode."""
        if patch_size(network):
            return self._predicted_in_volumes(network, amp)
        device = next(network.parameters()).device
        found = []
        for part in np.array_split(np.arange(len(self.places)), math.ceil(len(self.places) / STATISTICS_BATCH)):
            batch = [self.places[place] for place in part]
            images, masks = (
                torch.from_numpy(np.stack(arrays)).to(device, torch.float32)
                for arrays in zip(*((case.image[at], case.label[at]) for case, at in batch), strict=True)
            )
            with autocast(device, choose_precision(device, amp)):
                logits: Tensor = network(images)
            found.append(get_confusion_matrix((logits > 0).float(), masks)[..., [0, 1, 3]].cpu())
        return Slices(self.places, torch.cat(found).round().long().numpy())

    @torch.inference_mode()
    def _predicted_in_volumes(self, network: nn.Module, amp: bool) -> "Slices":
        """Return the slices with counts of predictions of whole cases, in evaluation mode."""
        device = next(network.parameters()).device
        masks: dict[Case, Tensor] = {}
        found = []
        for case, at in self.places:
            if case not in masks:
                with autocast(device, choose_precision(device, amp)):
                    logits = predict_logits(network.eval(), torch.from_numpy(np.array(case.image)).to(device))
                masks[case] = (logits > 0).float().cpu()
            reference = torch.from_numpy(np.array(case.label[at], dtype=np.float32))
            found.append(get_confusion_matrix(masks[case][at][None], reference[None])[..., [0, 1, 3]])
        return Slices(self.places, torch.cat(found).round().long().numpy())

    @property
    def with_reference(self) -> "Slices":
        """The slices, of which those whose reference lacks a label do not count for it."""
        counts = self._counts
        there = (counts[..., 0] + counts[..., 2] > 0)[..., None]
        return Slices(self.places, np.where(there, counts, 0))

    @property
    def volume_dice(self) -> float:
        """The Dice of whole cases: the mean over cases of the mean over labels."""
        of_cases: dict[Case, list[int]] = {}
        for row, (case, _) in enumerate(self.places):
            of_cases.setdefault(case, []).append(row)
        return _mean(_dice(np.stack([self._counts[rows].sum(axis=0) for rows in of_cases.values()])))

    def slice_dice(self, both_empty: float = math.nan) -> float:
        """Return Dice of single slices: the mean over all of the mean over labels.

        Args:
            both_empty: Dice of a slice without the label in reference and prediction; NaN: it does not count.
        """
        dice = _dice(self._counts)
        return _mean(np.where(np.isnan(dice), both_empty, dice))

    @property
    def _counts(self) -> Counts:
        assert self.counts is not None, "not predicted"
        return self.counts


def _dice(counts: Counts) -> NDArray[np.float64]:
    """Return 2 TP / (2 TP + FP + FN); NaN where all are 0."""
    twice = 2 * counts[..., 0]
    size = (twice + counts[..., 1] + counts[..., 2]).astype(np.float64)
    return np.asarray(twice / np.where(size > 0, size, np.nan))


def _mean(dice: NDArray[np.float64]) -> float:
    """Return the mean over labels, then over cases or slices, of (cases or slices, labels) without NaN."""
    return float(pd.DataFrame(dice).mean(axis=1).mean())


def _batch_norms(network: nn.Module) -> list[nn.Module]:
    """Return the layers that keep running statistics; none of a network of volumes."""
    if patch_size(network):
        return []
    return [layer for layer in network.modules() if isinstance(layer, _BatchNorm) and layer.track_running_stats]


def _batch_statistics(one: Scored) -> float:
    """Return on a copy: layers in training mode also change their running statistics."""
    if not _batch_norms(one.network):
        return one.tested.volume_dice
    network = copy.deepcopy(one.network)
    for layer in _batch_norms(network):
        layer.train()
    return Slices(one.tested.places).predicted(network, one.amp).volume_dice


def _drawn_slices(one: Scored) -> float:
    drawn = one.all_patients.drawn(SHARE, random_seed(one.seed, one.site.name))
    return drawn.predicted(one.network, one.amp).slice_dice(both_empty=1.0)


def _average_models(overlaps: Sequence[Overlap], quantity: str) -> float:
    """Return the mean over cases of the mean over labels; NaN: none has it."""
    found = pd.Series(
        {(overlap.case, overlap.label): overlap.scores.get(quantity) for overlap in overlaps}, dtype=float
    )
    return float(found.groupby(level=0).mean().mean())


@dataclass(frozen=True)
class Protocol:
    """A way to take Dice, a fraction."""

    text: str
    score: Callable[[Scored], float]


PROTOCOLS: Mapping[str, Protocol] = {
    AS_USED: Protocol(
        "3D Dice of whole volumes, as everywhere in FedMerit: masks after post-processing",
        lambda one: _average_models(one.used, "dice"),
    ),
    "volumes": Protocol(
        "3D Dice of whole volumes, masks without post-processing: no mirror image, every component kept",
        lambda one: one.tested.volume_dice,
    ),
    "organ-volumes": Protocol(
        "3D Dice of the slices whose reference is not empty", lambda one: one.tested.with_reference.volume_dice
    ),
    "slices": Protocol(
        "Dice slice by slice; empty in both counts 1", lambda one: one.tested.slice_dice(both_empty=1.0)
    ),
    "organ-slices": Protocol(
        "Dice slice by slice, where the reference is not empty", lambda one: one.tested.with_reference.slice_dice()
    ),
    BATCH: Protocol(f"as volumes; BatchNorm takes statistics of {STATISTICS_BATCH} test slices", _batch_statistics),
    "drawn-slices": Protocol(
        f"as slices; a random {SHARE:.0%} of the slices of all patients, trained on or not (leakage)", _drawn_slices
    ),
}


def audit(run: Path, sites: Path, protocols: str = "all", split: str = "testing", seed: int = 0) -> pd.DataFrame:
    """Return Dice [%] of a run's final models by protocol: ``Protocol``, ``What is scored``, sites, ``Mean``.

    For ``as-used`` also the mean over sites of the `SURFACES` that can be measured.

    Args:
        run: a finished run folder.
        sites: a folder of site folders; ``drawn-slices`` reads the images of all their patients.
        protocols: ``all``, or names of `PROTOCOLS`, comma-separated.
        split: of the cases of the other protocols.
        seed: of the draw of slices.

    Raises:
        BadInput: an unknown protocol, or one named twice; no model, or one that does not fit a site; or no case.
    """
    names = list(PROTOCOLS) if protocols == "all" else [name.strip() for name in protocols.split(",")]
    require_known("--protocols", names, PROTOCOLS)
    if len(set(names)) < len(names):
        raise BadInput(f"--protocols {protocols}: name each once")
    opened, model_of = open_run(run), final_models(run)
    amp = opened.info["training"].get("amp", False)
    scored = [Scored(model_of(site), site, split, amp, seed) for site in open_sites(sites) if site.cases(split)]
    if not scored:
        raise BadInput(f"{sites}: no site has a {split} case; choose another --split or prepare the sites again")
    texts = {name: PROTOCOLS[name].text for name in names}
    if BATCH in texts and not any(_batch_norms(one.network) for one in scored):
        texts[BATCH] += NO_BATCH_NORM
    dice = pd.DataFrame({one.site.name: [100 * PROTOCOLS[name].score(one) for name in names] for one in scored})
    described = pd.DataFrame({"Protocol": list(texts), "What is scored": list(texts.values())})
    surfaces = {
        quantity: [mean if name == AS_USED else math.nan for name in names]
        for quantity in SURFACES
        if AS_USED in names
        and not math.isnan(mean := float(pd.Series([_average_models(one.used, quantity) for one in scored]).mean()))
    }
    return pd.concat([described, dice.assign(Mean=dice.mean(axis=1), **surfaces)], axis=1)
