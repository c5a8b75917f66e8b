"""A federation whose sites only pretend to train and evaluate, on a network of 165 parameters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from rounds import SETTINGS, beside
from stepping import Stepped as Federation

from fedmerit.contract import flat
from fedmerit.contract.capabilities import EvaluatesCandidates
from fedmerit.schema.configuration.run import RunConfiguration, make_configuration, with_sharing
from fedmerit.schema.configuration.settings import TASKS
from fedmerit.schema.messages import (
    Answer,
    ClosingReceipt,
    ClosingTask,
    Enrolment,
    EnrolmentTask,
    Evaluated,
    Failure,
    Importance,
    ImportanceTask,
    Reply,
)
from fedmerit.schema.records import TRAIN
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS, Overlap
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.monai import neurons

SITES = ("Alder", "Birch", "Cedar")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny_plan(
    method: str = "cffl",
    rounds: int = 3,
    share: bool | None = None,
    server_images: bool = False,
    values: Sequence[str] = (),
    **settings: Any,
) -> RunConfiguration:
    """As of a run on one machine, which shares models if it has to, or as ``share`` says."""
    network = {"architecture": "unet", "width": 2, "depth": 2, "residual_units": 0}
    settings = network | SETTINGS.get(method, {}) | settings
    config = make_configuration(method, "prostate", rounds, 0, TASKS["prostate"], settings, values)
    return with_sharing(config, share, True, server_images)


NETWORK = initial_network(tiny_plan().network, 0)
SIZE = flat.get_parameters(NETWORK).numel()


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def over_the_wire(model: FLModel) -> FLModel:
    return FLModelUtils.from_shareable(FLModelUtils.to_shareable(model))


def replies(federation: Federation, without: tuple[str, ...] = ()) -> dict[str, Reply | Failure]:
    """Small updates, alike except Cedar's, which has few images and goes the other way."""
    common = 0.01 * torch.randn(SIZE, generator=generator(federation.round))
    answers: dict[str, Reply | Failure] = {site: Failure("asleep") for site in without}
    for place, site in enumerate(SITES):
        if site in federation.tasks() and site not in without:
            update = common + 0.001 * torch.randn(SIZE, generator=generator(100 * place + federation.round))
            buffers = {name: value + 1 for name, value in federation.tasks()[site].buffers.items()}
            overlaps = (Overlap("000", "prostate", 5, 2, 1),)
            update, images = (-update, 2) if site == "Cedar" else (update, 10)
            vectors = beside(federation.method, update)
            answers[site] = Reply(federation.round, update, buffers, images, overlaps, vectors=vectors)
    return answers


def evaluated(federation: Federation, site: str, cases: int = 1) -> Evaluated | Importance | ClosingReceipt:
    """True positives that tell site, model and case apart, of references of 100 voxels; neurons worth as they come."""
    task = federation.tasks()[site]
    if isinstance(task, ImportanceTask):
        return Importance(task.round, torch.linspace(0, 0.5, neurons.count(federation.network), dtype=torch.float64), 1)
    if isinstance(task, ClosingTask):
        return ClosingReceipt(task.round)
    place = SITES.index(site)
    found = [[1 + place + 3 * model + case for case in range(cases)] for model in range(len(task.mixtures))]
    overlaps = tuple(
        tuple(_overlap(f"{case:03d}", tp, task.soft) for case, tp in enumerate(of_model)) for of_model in found
    )
    return Evaluated(task.round, overlaps, torch.ones(len(task.mixtures), task.bins))


def _overlap(case: str, true_positives: int, soft: bool) -> Overlap:
    if soft:
        return Overlap.of_score(case, "prostate", true_positives / 100)
    return Overlap(case, "prostate", true_positives, 0, 100 - true_positives)


def evaluations(federation: Federation, **other: Evaluated | Failure) -> dict[str, Answer]:
    return {site: evaluated(federation, site) for site in federation.tasks()} | other


def play(federation: Federation, exchanges: int = 99) -> None:
    while federation.work and exchanges:
        federation.take(replies(federation) if federation.work == TRAIN else evaluations(federation))
        exchanges -= 1


def enrolment(images: int = 10, place: int = 0, server: int = 0) -> Enrolment:
    cases = dict.fromkeys(SPLITS, 1) | {"training": 2, SERVER_SPLIT: server}
    digests = tuple(f"{place:016x}{number:016x}" for number in range(2))
    return Enrolment(0, cases, cases | {"training": images}, digests, seal="5e" * 16)


def answers(federation: Federation, change: Callable[[str, Reply], Answer] = lambda site, reply: reply):
    """What the synthetic sites of `pretending` say to whatever is asked."""
    tasks = federation.tasks()
    if all(isinstance(task, EnrolmentTask) for task in tasks.values()):
        server = int(isinstance(federation.method, EvaluatesCandidates))
        reported = {site: enrolment(2 if site == "Cedar" else 10, SITES.index(site), server) for site in tasks}
        return {site: replace(one, round=federation.round) for site, one in reported.items()}
    if federation.work == TRAIN:
        return {site: change(site, reply) for site, reply in replies(federation).items()}
    return {site: evaluated(federation, site) for site in tasks}
