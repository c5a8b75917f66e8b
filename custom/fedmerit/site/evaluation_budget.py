"""What a site refuses the server: evaluations beyond the run's need, and tasks out of order.

A site evaluates as many models in a round, by split, as the run's method needs, and no more. Every evaluation tells the
server something of the images: a model that was trained with an image does better on it. Nobody gets an evaluation of
the training images. A repeated question costs nothing: it was answered before.
A site trains once a round, and again only if a crash of its own cut that short. Losses of single images, and of models
without single neurons, tell more: a site measures them if the method asks for them, on the images set aside for the
server, as the run's settings say. Unless the plan says ``share_models``, a site evaluates only the models that it
receives, and in the final test aggregates. A site's operator may allow fewer evaluations in the site's own kit, which
no job and no server reaches; never more.

Rounds only go forward, training comes before the evaluation of a round, and final tests come last. A site cannot know
which round the run is in: it may have been away, so any later round may be next. But a skipped round is gone, and once
a site has answered in the final test, no round is left that could use the answer.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedmerit.ciphertexts import Ciphertexts
from fedmerit.contract.capabilities import Capabilities, capabilities
from fedmerit.errors import Refused
from fedmerit.evidence.digests import digest
from fedmerit.schema.configuration.requirements import parse_observer
from fedmerit.schema.configuration.run import RunConfiguration, tests_all_models
from fedmerit.schema.messages import (
    NOT_FOR_OTHERS,
    NOT_NEEDED,
    NOT_SHARED,
    OTHER_NUMBERS,
    OUT_OF_ORDER,
    OVER_BUDGET,
    OVER_CAP,
    Evaluation,
    ImportanceTask,
    Purpose,
    Task,
    WithModels,
)
from fedmerit.schema.records import TRAIN
from fedmerit.schema.scores import SERVER_SPLIT

REPEATS = 3  # what a crash cut short is asked again, of models that may differ if noise or a GPU has a part in them
# the server's if all sites set images aside for it, else validation; only one of them
RATING_SPLITS = {SERVER_SPLIT, "validation"}
FINISH = 3  # models that a site compares at the end, all but one its own


def allowance(config: RunConfiguration, split: str, round: int, sites: int) -> int:
    """Return how many models the run needs evaluated on a split in a round; ``sites`` is how many take part."""
    if not 0 <= round <= config.rounds:
        return 0
    can, over = capabilities(config.build_guarded_method()), round == config.rounds
    rated, shares = _rated(config, round, sites), config.share_models
    finish = FINISH if over and config.training.final_model == "selected" else 0
    if split == SERVER_SPLIT:
        candidates = can.candidates.most_candidates(sites) if can.candidates and shares and not over else 0
        return candidates + rated
    if split == "validation":
        observed = sum(parse_observer(spec).most_models(sites) for spec in config.values) if shares and not over else 0
        own = 2 if over else 1  # the final model and the best round's, or what it begins a round with
        peers = sites - 1 if can.peers and shares and not over else 0  # it learns from, and may score
        return own + peers + rated + observed + finish
    if split == "testing":
        tested = sites if tests_all_models(config) else 1
        return 2 * tested + finish if over else 0  # the final models, and those of the best round
    return 0


def most_evaluations(config: RunConfiguration, split: str, sites: int) -> int:
    """Return the most models that a site evaluates on a split in a round: in the first, or after the last."""
    return max(allowance(config, split, round, sites) for round in (0, config.rounds))


def _rated(config: RunConfiguration, round: int, sites: int) -> int:
    """Return how many models without a site, and with all sites, the round rates on a split of `RATING_SPLITS`."""
    measures = capabilities(config.build_method()).leave_one_out
    if not (config.share_models and config.guard.rates(round, config.rounds)):
        return 0
    return sites + int(measures.needs_others) if measures and measures.measured_by_others else 0


def require_within_budget(
    task: WithModels,
    question: str,
    config: RunConfiguration,
    sites: int,
    done: Iterable[Mapping[str, Any]],
    caps: Mapping[str, int] | None = None,
) -> None:
    """Raise `Refused` if a task asks for more than the run needs, or than the site's operator allows.

    Args:
        question: tells what it asks for from anything else.
        sites: how many take part.
        done: what the site's log says that was asked for in the round.
        caps: by split, at most how many models in a round, whatever the run needs; others are not capped.
    """
    split = "validation" if isinstance(task, Task) else task.split
    models = count_models(task)
    _require_own(task, config)
    _require_kind(task, config)
    needed = _needed(task, split, config, sites)
    if not needed:
        raise Refused(NOT_FOR_OTHERS, f"{models} models on the {split} split in round {task.round}")
    of_neurons = isinstance(task, ImportanceTask)
    done = list(done)
    asked = _asked(done, split, of_neurons)
    if question in asked:
        return
    if isinstance(task, Task) and any(record.get("work") == TRAIN and record.get("question") for record in done):
        raise Refused(OVER_BUDGET, f"a second training in round {task.round}, from another model or task")
    cap, all_asked = (caps or {}).get(split), sum((asked | _asked(done, split, not of_neurons)).values())
    if cap is not None and all_asked + models > cap:
        raise Refused(
            OVER_CAP,
            f"{models} models on the {split} split in round {task.round}, after {all_asked}; "
            f"this site allows {cap}, {config.method} with {sites} sites needs {needed}",
        )
    rated = _rated(config, task.round, sites) if split in RATING_SPLITS and not of_neurons else 0
    over = sum(asked.values()) + models - REPEATS * (needed - rated)  # by how much, without the ratings
    for other in RATING_SPLITS - {split} if rated else ():
        without = allowance(config, other, task.round, sites) - rated
        over = max(0, over) + max(0, sum(_asked(done, other).values()) - REPEATS * without)
    if over > REPEATS * rated:
        raise Refused(
            OVER_BUDGET,
            f"{models} models on the {split} split in round {task.round}, after {sum(asked.values())}; "
            f"{config.method} with {sites} sites needs {needed}",
        )


def _require_own(task: WithModels, config: RunConfiguration) -> None:
    """Raise `Refused` if a task brings models of other sites, and the plan does not say ``share_models``."""
    if config.share_models or isinstance(task, ImportanceTask):
        return
    if isinstance(task, Task):
        if others := sorted({*task.peers, *task.others}):
            raise Refused(NOT_SHARED, f"{len(others)} models of peers in round {task.round}; share_models is not set")
        return
    tests_all = task.purpose is Purpose.FINAL and task.split == "testing" and tests_all_models(config)
    if task.purpose is Purpose.ROUND or (not tests_all and max(len(task.models), len(task.mixtures)) > 1):
        what = f"{len(task.mixtures)} models made of {len(task.models)}, on the {task.split} split"
        raise Refused(NOT_SHARED, f"{what} in round {task.round}; share_models is not set")


def _require_kind(task: WithModels, config: RunConfiguration) -> None:
    """Raise `Refused` if a task asks for more than Dice, and the run's settings say nothing of it."""
    can = capabilities(config.build_guarded_method())
    if isinstance(task, Task):
        if unused := _unused_parts(task, can):
            what = f"{', '.join(unused)} in a training task of round {task.round}"
            raise Refused(NOT_NEEDED, f"{what}; {config.method} uses none")
    elif isinstance(task, ImportanceTask):
        due = can.neurons.importance_schedule(task.round) if can.neurons else None
        if due is None or not due[1] or task.split != SERVER_SPLIT or (task.order, task.images) != due:
            what = f"{task.order} importance of neurons on {task.images} images of the {task.split} split"
            expected = f"{due[0]} on {due[1]} of the {SERVER_SPLIT} split" if due and due[1] else "none"
            raise Refused(NOT_NEEDED, f"{what} before round {task.round}; {config.method} needs {expected}")
    elif isinstance(task, Evaluation):
        if task.purpose is Purpose.ESTIMATE and config.training.statistics != "recalibrated":
            raise Refused(NOT_FOR_OTHERS, "BatchNorm statistics on training images; statistics=recalibrated is not set")
        if task.purpose is Purpose.ESTIMATE and task.split != "training":
            raise Refused(NOT_FOR_OTHERS, f"BatchNorm statistics on the {task.split} split, expected training")
        if task.purpose is Purpose.FINISH and config.training.final_model != "selected":
            raise Refused(NOT_FOR_OTHERS, "the final model selection; final_model=selected is not set")
        soft = task.split == SERVER_SPLIT and bool(can.candidates and can.candidates.soft)
        soft |= task.split == "validation" and any(parse_observer(spec).soft for spec in config.values)
        if task.soft and not soft:
            raise Refused(NOT_NEEDED, f"soft Dice on the {task.split} split in round {task.round}; expected counts")
        bins = can.loss_bins if task.split == SERVER_SPLIT else 0
        if task.bins not in (0, bins):
            what = f"losses in {task.bins} bins of images of the {task.split} split"
            raise Refused(NOT_NEEDED, f"{what} in round {task.round}; {config.method} needs {bins or 'none'} there")


def _unused_parts(task: Task, can: Capabilities) -> list[str]:
    """Return the names of what a training task brings and the run's method does not use."""
    brought = {
        "neurons": task.neurons is not None and not can.neurons,
        "models of peers": bool({*task.peers, *task.others}) and not can.peers,
        "vectors": not set(task.vectors) <= set(can.vectors),
    }
    return [name for name, is_unused in brought.items() if is_unused]


def _needed(task: WithModels, split: str, config: RunConfiguration, sites: int) -> int:
    """Return how many models, or measurements of neurons, the run needs of the kind that a task asks for."""
    if isinstance(task, Evaluation) and task.purpose is not Purpose.ESTIMATE:
        return allowance(config, split, task.round, sites)
    if not 0 <= task.round < config.rounds:
        return 0
    return allowance(config, split, task.round, sites) if isinstance(task, Task) else 1


def count_models(task: WithModels) -> int:
    """Return how many models a task has a site evaluate: when training, the received one and those of peers."""
    if isinstance(task, Task):
        return 1 + len(task.peers)
    return (task.count or 1) if isinstance(task, Evaluation) else 1  # statistics are of one


def question_digest(task: WithModels, models: Tensor | Ciphertexts) -> str:
    """Return the SHA-256 of all that an answer depends on: ``models``, as the site's log has them, and the task.

    `Refused` if they are not in float32: digests are of that, and of finer numbers many models would have one.
    """
    if isinstance(models, Tensor) and models.dtype != torch.float32:
        raise Refused(OTHER_NUMBERS, f"{models.dtype} in round {task.round}")
    whole = hashlib.sha256(f"{digest(models)} {type(task).__name__}".encode())
    tensors: list[Tensor] = []
    if isinstance(task, Evaluation):
        whole.update(f"{task.split} {task.bins}{' soft' * task.soft} {task.purpose}".encode())
        tensors += [task.mixtures, task.shares]
    elif isinstance(task, ImportanceTask):
        whole.update(f"{task.split} {task.order} {task.images}".encode())
    else:  # the site's part in the model, and whom it learns from
        peers = [(peer, model.weight) for peer, model in sorted(task.peers.items())]
        parts = (task.weight, task.data_share, task.neurons is None, sorted(task.vectors), peers)
        whole.update(repr((*parts, sorted(task.others.items()))).encode())
        tensors += [] if task.neurons is None else [task.neurons]
        tensors += [task.vectors[name] for name in sorted(task.vectors)]
        for peer in sorted(task.peers):
            buffers = task.peers[peer].buffers
            tensors += [task.peers[peer].parameters, *(buffers[name] for name in sorted(buffers))]
    for buffers in task.buffers if isinstance(task, Evaluation) else (task.buffers,):
        tensors += [buffers[name] for name in sorted(buffers)]
    for tensor in tensors:
        whole.update(f"{tensor.dtype} {list(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return whole.hexdigest()


def _asked(done: Iterable[Mapping[str, Any]], split: str, of_neurons: bool = False) -> dict[str, int]:
    """Return, by question, how many models were evaluated on ``split``, or had their neurons measured there."""
    kind = [record for record in done if ("order" in record) == of_neurons and record.get("question")]
    splits = ["validation" if record.get("work") == TRAIN else record.get("split") for record in kind]
    return {
        str(record["question"]): int(record.get("models", 1)) or 1
        for record, of in zip(kind, splits, strict=True)
        if of == split
    }


def require_round_order(task: WithModels, rounds: int, latest: int, trained: Collection[int]) -> None:
    """Raise `Refused` if a task's round is over for the site, or if it needs a training that is still to be done.

    A round is repeated as often as a crash of the server has it.

    Args:
        rounds: of the run; the final test is in the round of that number.
        latest: the last round that the site answered anything in; -1: none yet.
        trained: the rounds that it trained in.
    """
    if task.round < latest:
        raise Refused(OUT_OF_ORDER, f"round {task.round}, after answers in round {latest}; submit the job again")
    if not isinstance(task, Evaluation) or task.purpose is Purpose.ESTIMATE:
        return
    if task.round >= rounds:
        if not trained:
            raise Refused(OUT_OF_ORDER, f"the final test on the {task.split} split, before any training")
    elif task.purpose is not Purpose.ROUND:
        raise Refused(OUT_OF_ORDER, f"the final test in round {task.round}, expected after round {rounds - 1}")
    elif task.round not in trained:
        raise Refused(OUT_OF_ORDER, f"models on the {task.split} split in round {task.round}, before its training")
