"""Gradient inversion measured: what an attacker rebuilds of synthetic or real training images, by local training.

The attacker knows the network, its weights, the plan, every mask as it was trained with, the order of batches, the
range of intensities, and images of other patients of the same site: more than a server knows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from skimage.metrics import structural_similarity
from torch import Tensor, nn

from fedmerit.contract import flat
from fedmerit.errors import require_known
from fedmerit.files import write_text
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.scores import SPLITS
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit.seeds import random_seed
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.monai.augmentation import AUGMENTATIONS, Augmenter
from fedmerit.trainers.monai.local_training import build_loss, draw_batches, train
from fedmerit.trainers.monai.samples import Slices
from fedmerit_lab.privacy.gradient_inversion import Batches, ImageSearch, LocalSteps, read_first_layer

TABLE = "reconstructions.csv"
KEYS = ["case", "seed", "update", "start"]
HIDDEN = 16  # units of the fully connected first layer
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A case: how a site trains in its round, and what the attacker knows of it."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # of the training, instead of the defaults
    connected: bool = False  # instead of the default network one whose first layer is fully connected
    reads: bool = False  # what that layer saw, instead of optimising images
    patients: int = 0  # that the site trains on; 0: all
    knows_augmentation: bool = True  # else the attacker takes images and masks for untransformed ones
    smoothing: float = 0.0  # as of `LocalSteps.update`


_ONE = {"steps": 1, "augmentation": "none"}
_SGD = {"optimizer": "sgd", **_ONE}
CASES: Mapping[str, Case] = {
    "connected-read": Case({**_SGD, "batch_size": 1}, connected=True, reads=True),
    "connected-optimised": Case({**_SGD, "batch_size": 1}, connected=True),
    "sgd-1": Case({**_SGD, "batch_size": 1}),
    "sgd-2": Case(_SGD),
    "adam-2": Case(_ONE, smoothing=1.0),
    "default-patient": Case(patients=1, smoothing=1.0),
    "default-unknown": Case(patients=1, knows_augmentation=False, smoothing=1.0),
    "default": Case(smoothing=1.0),
}


@dataclass(frozen=True)
class LocalTraining:
    """A site's round, as it was done."""

    steps: LocalSteps
    update: Tensor  # (d,)
    batches: Batches  # as the network saw them
    known: Batches  # as the attacker takes them to be: other images and masks only if the augmentation is not known
    others: Tensor  # (m, channels, h, w) of the site's other patients


def train_round(case: Case, folder: SiteFolder, seed: int) -> LocalTraining:
    """Return the first round of the product's own local training, by a case's settings."""
    config = make_configuration(
        "fedavg", folder.task, 100, seed, {"in_channels": folder.channels, "labels": folder.labels}, case.settings
    )
    cases = folder.cases("training")
    samples = Slices(cases[: case.patients or len(cases)])
    settings, drawn = config.training, random_seed(seed, folder.name, 0)
    plain = list(draw_batches(samples, settings, drawn, CPU))
    transforms = AUGMENTATIONS.get(settings.augmentation)
    augment = Augmenter(transforms, drawn, CPU) if transforms else None
    batches = [augment(*batch) for batch in plain] if augment else plain
    network = connected_network(*plain[0], seed) if case.connected else initial_network(config.network, seed)
    received = flat.get_parameters(network)
    train(network, samples, settings, settings.lr, drawn)
    update = flat.get_parameters(network) - received
    flat.load(network, received, {})
    steps = LocalSteps(network, build_loss(settings.loss), settings.optimizer, settings.lr)
    return LocalTraining(
        steps, update, batches, batches if case.knows_augmentation else plain, _other_images(folder, samples, plain)
    )


def _other_images(folder: SiteFolder, samples: Slices, used: Batches) -> Tensor:
    """Return (m, channels, h, w) of patients none of whose images was in a batch, of all splits."""
    seen = {image.numpy().tobytes() for images, _ in used for image in images}
    trained = {case.patient for case, place in samples.index if case.image[place].tobytes() in seen}
    images = Slices([case for split in SPLITS for case in folder.cases(split) if case.patient not in trained])
    return torch.stack([images[place][0] for place in range(len(images))])


def connected_network(images: Tensor, masks: Tensor, seed: int) -> nn.Sequential:
    """Build the network of a hostile plan: from images (batch, channels, h, w) to logits like masks."""
    pixels, (labels, h, w) = images[0].numel(), masks.shape[1:]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, last = nn.Linear(pixels, HIDDEN), nn.Linear(HIDDEN, labels * h * w)
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last, nn.Unflatten(1, (labels, h, w)))


def attack(
    case: Case, training: LocalTraining, update: str, start: str, how: ImageSearch, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield a row for each image: how like it the reconstruction, the start and the nearest other patient are.

    Args:
        case: of the training.
        training: that was done.
        update: site: the site's; random: normal numbers, a control.
        start: of the images: random, or mean: the other patients' mean image.
        how: the attack.
        seed: of random numbers.
    """
    draws = torch.Generator().manual_seed(seed)
    sent = training.update if update == "site" else torch.randn(training.update.shape, generator=draws)
    images, masks = ([batch[part] for batch in training.known] for part in (0, 1))
    mean, span = training.others.mean(dim=0), [float(training.others.min()), float(training.others.max())]
    starts = [
        torch.randn(one.shape, generator=draws).to(one) if start == "random" else mean.expand_as(one) for one in images
    ]
    if case.reads:
        found = [read_first_layer(training.steps.network, sent).view_as(images[0])]
        distance = 0.0
    else:
        found, distance = how.reconstruct(training.steps, sent, starts, masks, span)
    rebuilt, begun, true = (list(torch.cat(part)) for part in (found, starts, images))
    for place, image in enumerate(true):
        sources = {"": rebuilt, "start_": begun[place : place + 1], "others_": list(training.others)}
        yield {"image": place, "distance": distance} | {
            f"{name}{quantity}": value
            for name, candidates in sources.items()
            for quantity, value in best_likeness(image, candidates).items()
        }


def best_likeness(image: Tensor, candidates: Sequence[Tensor]) -> dict[str, float]:
    """Return the highest correlation, SSIM and PSNR [dB] with an image (channels, h, w) after scale and shift.

    A norm behind the first convolution takes scale and shift away, so an attacker is not asked for them.
    """
    true = image.double().flatten().numpy()
    extent, best = float(np.ptp(true)), {"correlation": -1.0, "ssim": -1.0, "psnr": 0.0}
    for candidate in candidates:
        guess = candidate.double().flatten().numpy()
        spread = guess.std() * true.std()
        correlation = float(((guess - guess.mean()) * (true - true.mean())).mean() / spread) if spread else 0.0
        fitted = true.mean() + correlation * true.std() * (guess - guess.mean()) / (guess.std() or 1.0)
        error = float(np.mean((fitted - true) ** 2)) + 1e-12
        planes = fitted.reshape(image.shape), true.reshape(image.shape)
        found = {
            "correlation": correlation,
            "ssim": float(structural_similarity(*planes, data_range=extent, channel_axis=0)),
            "psnr": float(10 * np.log10(extent**2 / error)),
        }
        best = {name: max(best[name], found[name]) for name in best}
    return best


def measure(
    out: Path,
    sites: Path,
    cases: Sequence[str],
    seeds: Sequence[int],
    how: ImageSearch,
    on_begin: Callable[[str], None],
) -> pd.DataFrame:
    """Measure every case of every seed, of each seed another site; return all rows, also written to ``out``.

    What is in the table there is not measured again.

    Raises:
        BadInput: a case is unknown.
    """
    require_known("--cases", cases, CASES)
    folders, table = open_sites(sites), out / TABLE
    rows: list[Any] = pd.read_csv(table).to_dict("records") if table.exists() else []
    done = {tuple(str(row[name]) for name in KEYS) for row in rows}
    for seed in seeds:
        for name in cases:
            training, used = None, replace(how, smoothing=CASES[name].smoothing)
            for update, start in (("site", "random"), ("site", "mean"), ("random", "random")):
                keys = dict(zip(KEYS, (name, seed, update, start), strict=True))
                if tuple(map(str, keys.values())) in done:
                    continue
                on_begin(", ".join(map(str, keys.values())))
                training = training or train_round(CASES[name], folders[seed % len(folders)], seed)
                about = {"side": training.others.shape[-1], "steps": len(training.batches), **vars(used)}
                rows += [keys | about | row for row in attack(CASES[name], training, update, start, used, seed)]
                write_text(table, pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
    return pd.DataFrame(rows)


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """Return by case, update and start the numbers of images and seeds, means of distance and likeness, best SSIM.

    A match is an image whose reconstruction has a higher SSIM than its start and than every other patient's image.
    """
    is_match = rows["ssim"] > rows[["start_ssim", "others_ssim"]].max(axis=1)
    grouped = rows.assign(match=is_match).groupby(["case", "update", "start"], sort=False)
    means = [f"{source}{name}" for source in ("", "start_", "others_") for name in ("correlation", "ssim", "psnr")]
    return grouped.agg(
        images=("image", "size"),
        seeds=("seed", "nunique"),
        matches=("match", "sum"),
        best_ssim=("ssim", "max"),
        **{name: (name, "mean") for name in ("distance", *means)},
    ).reset_index()
