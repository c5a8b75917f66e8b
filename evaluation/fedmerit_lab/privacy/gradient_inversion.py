"""Gradient inversion: training images rebuilt from a site's update of a round, and how like the true ones they are.

Optimised images whose simulated update has the direction of the site's (Geiping et al. 2020), through all steps of
local training (Dimitrov et al. 2022), and images read from a fully connected first layer (Phong et al. 2018). The
attacker knows the network, its weights, the plan, every mask as it was trained with, the order of batches, the range of
intensities, and images of other patients of the same site: more than a server knows.
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
from torch.func import functional_call

from fedmerit.contract import flat
from fedmerit.errors import require_known
from fedmerit.files import write_text
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.scores import SPLITS
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit.seeds import random_seed
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.monai.augmentation import AUGMENTATIONS, Augmenter
from fedmerit.trainers.monai.local_training import BETAS, build_loss, draw_batches, train
from fedmerit.trainers.monai.samples import Slices

ADAM_EPSILON = 1e-8  # torch's
Loss = Callable[[Tensor, Tensor], Tensor]
Batches = Sequence[tuple[Tensor, Tensor]]  # of each step images (batch, channels, h, w) and masks (batch, labels, h, w)


@dataclass(frozen=True)
class LocalSteps:
    """The steps of a site in a round, as an attacker with the plan can repeat them.

    Args:
        network: in training mode, without BatchNorm.
        loss: of logits and masks.
        optimizer: adam or sgd.
        rate: learning rate.
    """

    network: nn.Module
    loss: Loss
    optimizer: str
    rate: float

    def update(self, batches: Batches, smoothing: float = 0.0) -> Tensor:
        """Return (d,) trained minus received, from the network's weights, differentiable with respect to images.

        ``smoothing`` is added to Adam's denominator, in parts of the gradient's root mean square: the first step of
        Adam is the gradient's sign, which has no derivative.
        """
        start = torch.cat([weight.detach().reshape(-1) for weight in flat.trainable(self.network).values()])
        weights, first, second = start.requires_grad_(), torch.zeros_like(start), torch.zeros_like(start)
        for step, (images, masks) in enumerate(batches, start=1):
            named = flat.named(self.network, weights)  # modules with two names are not put back if weights are tied
            logits = functional_call(self.network, named, (images,), tie_weights=False)
            (gradient,) = torch.autograd.grad(self.loss(logits, masks), weights, create_graph=images.requires_grad)
            if self.optimizer == "sgd":
                weights = weights - self.rate * gradient
                continue
            first = BETAS[0] * first + (1 - BETAS[0]) * gradient
            second = BETAS[1] * second + (1 - BETAS[1]) * gradient**2
            scale = (second / (1 - BETAS[1] ** step) + 1e-30).sqrt()  # a root of 0 has no derivative
            added = ADAM_EPSILON + smoothing * float(gradient.detach().square().mean().sqrt())
            weights = weights - self.rate * first / (1 - BETAS[0] ** step) / (scale + added)
        return weights - start


@dataclass(frozen=True)
class ImageSearch:
    """A search of images: Adam of rate 0.1 on the sign of the derivative, the rate falling to a tenth thrice.

    Args:
        iterations: of the optimiser of images.
        variation: weight of the total variation beside the cosine distance.
        smoothing: as of `LocalSteps.update`.
    """

    iterations: int
    variation: float
    smoothing: float = 0.0

    def reconstruct(
        self,
        steps: LocalSteps,
        update: Tensor,
        starts: Sequence[Tensor],
        masks: Sequence[Tensor],
        span: Sequence[float],
    ) -> tuple[list[Tensor], float]:
        """Return images of every step, (batch, channels, h, w) each, and the cosine distance that they reach, 0 to 2.

        Args:
            steps: of the site.
            update: (d,) what it sent.
            starts: the first images of every step.
            masks: of every step, known to the attacker.
            span: lowest and highest intensity.
        """
        images = [start.clone().requires_grad_() for start in starts]
        optimizer = torch.optim.Adam(images, lr=0.1)
        falls = [int(self.iterations * part) for part in (3 / 8, 5 / 8, 7 / 8)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls)
        for _ in range(self.iterations):
            found = steps.update(list(zip(images, masks, strict=True)), self.smoothing)
            distance = 1 - torch.cosine_similarity(found, update, dim=0)
            rough = torch.stack([total_variation(image) for image in images]).mean()
            slopes = torch.autograd.grad(distance + self.variation * rough, images)
            for one, slope in zip(images, slopes, strict=True):
                one.grad = slope.sign()
            optimizer.step()
            schedule.step()
            for one in images:
                one.data.clamp_(span[0], span[1])
        reached = steps.update([(one.detach(), mask) for one, mask in zip(images, masks, strict=True)]).detach()
        return [image.detach() for image in images], 1 - float(torch.cosine_similarity(reached, update, dim=0))


def total_variation(images: Tensor) -> Tensor:
    """Return mean absolute difference of neighbours in rows plus that in columns."""
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()


def read_first_layer(network: nn.Module, update: Tensor) -> Tensor:
    """Return (inputs,) what a fully connected first layer, ``network``'s, saw in one step of plain SGD on one image.

    The change of a row is the change of its bias times the input; of the row whose bias changed most.
    """
    changes = list(flat.named(network, update).values())
    row = int(changes[1].abs().argmax())
    return changes[0][row] / changes[1][row]


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
