"""Estimators that read the sites' images: for studies with all images in one place. Their names: pyproject.toml.

Volumes, distances of distributions, Shapley values of a nearest-neighbour model on the final model's features
(Jia et al. 2019), and of ensembles of local-only models (Kumar et al. 2022).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, ClassVar

import numpy as np
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedmerit.contract.semivalues import EMPTY_COALITION, Coalition, FloatArray, shapley
from fedmerit.errors import BadInput
from fedmerit.schema.rules import About, Count
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.trainers.monai.networks import patch_size
from fedmerit.trainers.monai.prediction import EVALUATION_BATCH, evaluate
from fedmerit.trainers.monai.samples import Slices
from fedmerit_evaluation.results.evaluation import final_models
from fedmerit_evaluation.results.views import STANDALONE
from fedmerit_evaluation.statistics.resampling import nan_mean
from fedmerit_evaluation.valuation.estimators import Estimator
from fedmerit_evaluation.valuation.observed_run import ObservedRun

MASK_SIDE = 16  # pixels that masks are resized to
MAX_ENSEMBLED = 10  # sites: 1,023 ensembles


def _in_all_draws(values: Sequence[float], run: ObservedRun) -> FloatArray:
    return np.repeat(np.array(values, dtype=np.float64)[:, None], run.count, axis=1)


@dataclass(frozen=True)
class LabelVolume(Estimator):
    """An estimator by labelled pixels of the training slices, all labels together."""

    about: ClassVar[str] = "labelled pixels of the training slices"

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) pixels."""
        return _in_all_draws([float(sum(masks.sum() for _, masks in _training(folder))) for folder in run.folders], run)


@dataclass(frozen=True)
class LabelDistance(Estimator):
    """An estimator by minus the Wasserstein distance of the site's organ sizes from all others'."""

    about: ClassVar[str] = "nearness of its organ sizes to the others'"

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) minus shares of the frame."""
        sizes = [np.array([float(masks.mean()) for _, masks in _training(folder)]) for folder in run.folders]
        return _in_all_draws(_nearness(sizes), run)


@dataclass(frozen=True)
class IntensityDistance(Estimator):
    """An estimator by minus the Wasserstein distance of the site's intensity percentiles from the others'."""

    about: ClassVar[str] = "nearness of its intensities to the others'"

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) minus standard deviations of an image."""
        percentiles = np.linspace(0, 100, 101)
        found = [
            np.concatenate([np.percentile(image.numpy(), percentiles) for image, _ in _training(folder)])
            for folder in run.folders
        ]
        return _in_all_draws(_nearness(found), run)


def _nearness(of_sites: Sequence[FloatArray]) -> list[float]:
    found = []
    for place, own in enumerate(of_sites):
        others = np.concatenate([one for other, one in enumerate(of_sites) if other != place])
        found.append(-float(wasserstein_distance(own, others)))
    return found


@dataclass(frozen=True)
class KNNShapley(Estimator):
    """An estimator by Shapley values of training slices in a K-nearest-neighbour model of validation slices.

    Distances are of features of the final model; the utility of a neighbour is the Dice of its mask, resized to 16
    pixels a side, with that of the validation slice. Means over the sites' validation slices, site by site.
    """

    k: Annotated[int, Count(1, 1000), About("neighbours")] = 5

    about: ClassVar[str] = "K-nearest-neighbour Shapley values on features of the final model"

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) fractions of Dice."""
        model_of = final_models(run.path)
        trained = [_described(model_of(one), Slices(one.cases("training"))) for one in run.folders]
        owners = np.repeat(np.arange(len(trained)), [len(features) for features, _ in trained])
        features, masks = (torch.cat(part) for part in zip(*trained, strict=True))
        values = np.zeros(len(run.sites))
        for folder in run.folders:
            asked, wanted = _described(model_of(folder), Slices(folder.cases("validation")))
            use = mask_dice(wanted, masks)  # (asked, trained)
            order = torch.cdist(asked, features).argsort(dim=1, stable=True).numpy()
            of_points = knn_shapley(use.numpy(), order, self.k).mean(axis=0)
            values += np.bincount(owners, of_points, minlength=len(values)) / len(run.folders)
        return _in_all_draws(values.tolist(), run)


def knn_shapley(use: FloatArray, order: np.ndarray, k: int) -> FloatArray:
    """Return (q, m) Shapley values of m training points for each of q questions (Theorem 1, Jia et al. 2019).

    v(S) is the sum of ``use`` over the K nearest in S, by K. With the points by distance α_1, ..., α_m:
    s_{α_m} = u_{α_m} min(K, m) / (K m) and s_{α_i} = s_{α_{i+1}} + (u_{α_i} - u_{α_{i+1}}) min(K, i) / (K i).

    Args:
        use: (q, m) of each point for each question, any numbers.
        order: (q, m) the points, nearest first.
        k: K.
    """
    m = use.shape[1]
    by_distance = np.take_along_axis(use, order, axis=1)
    places = np.arange(1, m + 1)
    factors = np.minimum(k, places) / (k * places)
    last = by_distance[:, -1:] * factors[-1]
    steps = (by_distance[:, :-1] - by_distance[:, 1:]) * factors[:-1]
    values = np.concatenate([last + np.cumsum(steps[:, ::-1], axis=1)[:, ::-1], last], axis=1)
    result = np.empty_like(values)
    np.put_along_axis(result, order, values, axis=1)
    return result


def mask_dice(masks: Tensor, others: Tensor) -> Tensor:
    """Return (q, m) soft Dice of (q, p) masks with (m, p) others, float64 in [0, 1]; 1 where both are empty."""
    masks, others = masks.double(), others.double()
    sums = masks.sum(dim=1)[:, None] + others.sum(dim=1)
    return torch.where(sums > 0, 2 * masks @ others.T / sums.where(sums > 0, 1.0), 1.0).clamp(max=1)


@torch.inference_mode()
def _described(network: nn.Module, slices: Slices) -> tuple[Tensor, Tensor]:
    """Return (m, c) features of slices, means over the deepest level of the network, and (m, p) resized masks."""
    if patch_size(network):
        raise BadInput("knn_shapley: compares slices, but the run's network is for volumes; leave it out of --values")
    deepest: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and output.ndim == 4:
            size = output.shape[-1] * output.shape[-2]
            if not deepest or size < deepest[0].shape[-1] * deepest[0].shape[-2]:
                deepest[:] = [output]

    hooks = [module.register_forward_hook(keep) for module in network.modules() if not list(module.children())]
    features, shrunk = [], []
    try:
        for images, masks in DataLoader(slices, batch_size=EVALUATION_BATCH):
            deepest.clear()
            network(images)
            features.append(deepest[0].mean(dim=(2, 3)).double())
            shrunk.append(nn.functional.adaptive_avg_pool2d(masks, MASK_SIDE).flatten(start_dim=1))
    finally:
        for hook in hooks:
            hook.remove()
    return torch.cat(features), torch.cat(shrunk)


class Ensemble(nn.Module):
    """A network whose logits are the mean of those of its members."""

    def __init__(self, members: Sequence[nn.Module]):
        super().__init__()
        self.members = nn.ModuleList(members)
        self.patch = patch_size(members[0])

    def forward(self, images: Tensor) -> Tensor:
        """Return the mean logits of ``images``."""
        return torch.stack([member(images) for member in self.members]).mean(dim=0)


@dataclass(frozen=True)
class SaFE(Estimator):
    """An estimator by Shapley values of ensembles of local-only models (SaFE, Kumar et al., arXiv 2209.05424, 2022).

    v(S) is the Dice of the mean logits of the models in S on validation patients, mean over sites; v(∅) = 0.
    """

    about: ClassVar[str] = "Shapley values (SaFE, Kumar et al. 2022) of ensembles of local-only models"
    in_dice: ClassVar[bool] = True

    def values(self, run: ObservedRun) -> FloatArray:
        """Return (n, D) points of Dice, fractions."""
        if run.info["method"] != STANDALONE:
            raise BadInput(
                f"{run.path}: safe: the run's method is {run.info['method']}; estimate on one of {STANDALONE}"
            )
        self.require_few(len(run.sites), run.path)
        model_of = final_models(run.path)
        networks = {folder.name: model_of(folder) for folder in run.folders}
        return _in_all_draws(shapley(ensemble_game(networks, run.folders)).tolist(), run)

    @property
    def needs_standalone(self) -> bool:
        """Whether the members of its ensembles are local-only models."""
        return True

    def require_few(self, sites: int, where: object) -> None:
        """Raise `BadInput` if the sites are more than `MAX_ENSEMBLED`."""
        if sites > MAX_ENSEMBLED:
            raise BadInput(
                f"{where}: safe: {sites} sites; expected at most {MAX_ENSEMBLED}, as all their ensembles are tested; "
                "name other estimators"
            )

    def rests_on_training(self, run: ObservedRun) -> bool:
        """Return True: another seed trains other models."""
        return True


def ensemble_game(networks: Mapping[str, nn.Module], folders: Sequence[SiteFolder]) -> dict[Coalition, float]:
    """Return the Dice of the ensemble of each coalition of ``networks`` by site, mean over ``folders``; 0 of none."""
    game = {EMPTY_COALITION: 0.0}
    for size in range(1, len(networks) + 1):
        for names in combinations(sorted(networks), size):
            ensemble = Ensemble([networks[name] for name in names])
            game[frozenset(names)] = float(nan_mean(np.array([_mean_dice(ensemble, one) for one in folders]), axis=0))
    return game


def _mean_dice(network: nn.Module, folder: SiteFolder) -> float:
    """Return the mean Dice of a site's validation cases, each the mean of its labels; NaN: there is none."""
    of_cases: dict[str, list[float]] = {}
    for overlap in evaluate(network, folder.cases("validation"), folder.labels):
        if overlap.dice is not None:
            of_cases.setdefault(overlap.case, []).append(overlap.dice)
    return float(np.mean([np.mean(values) for values in of_cases.values()])) if of_cases else np.nan


def _training(folder: SiteFolder) -> Iterator[tuple[Tensor, Tensor]]:
    slices = Slices(folder.cases("training"))
    return (slices[place] for place in range(len(slices)))
