"""The server's half of a run, whatever the engine: tasks out, replies in, record, checkpoint. It holds no formula."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmerit import flat
from fedmerit.core import Reports, allowed
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import write_atomically
from fedmerit.plan import Plan
from fedmerit.recorder import Recorder, Replies, or_none, payload
from fedmerit.site import Reply, Task
from fedmerit.training import initial_network, save_network

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class Failure:
    """In place of a reply: why a site sent none."""

    reason: str


Answers = Mapping[str, Reply | Failure]


class Federation:
    """Rounds of one run, from its last complete one.

    Args:
        plan: the run.
        sites: their names; the order is always the sorted one.
        run: the run folder. Where it holds a checkpoint, the run goes on from there.
        on_round: called with every round's ledger record, those of earlier processes included.

    Raises:
        BadInput: fewer than two sites where the method needs others, another set of sites than the checkpoint's.
    """

    def __init__(
        self,
        plan: Plan,
        sites: Sequence[str],
        run: Path,
        on_round: Callable[[Mapping[str, Any]], None] = lambda record: None,
    ):
        self.plan, self.sites, self.run, self.on_round = plan, sorted(sites), run, on_round
        self.method = plan.build_method()
        require_several(plan, self.sites)
        run.mkdir(parents=True, exist_ok=True)
        self.recorder = Recorder(plan, self.sites, run)
        self.network = initial_network(plan.network, plan.seed)
        self.round = 0
        sizes = [parameter.numel() for parameter in flat.trainable(self.network).values()]
        self.state = self.method.start(flat.get_parameters(self.network), len(self.sites), sizes)
        self.models = flat.get_parameters(self.network)  # (d,), or (n, d)
        self.buffers: list[dict[str, Tensor]] = [flat.get_buffers(self.network)] * len(self.sites)
        self.weights: Tensor | None = None  # (n,) of the last aggregation; NaN for sites with no part in it
        self.data_share: Tensor | None = None  # (n,) likewise
        self._resume()

    @property
    def training(self) -> bool:
        """Whether rounds are left to train."""
        return self.round < self.plan.rounds

    @property
    def finished(self) -> bool:
        """Whether the final models are tested and saved."""
        return self.round > self.plan.rounds

    def tasks(self) -> dict[str, Task]:
        """What each site receives now."""
        return {
            site: Task(
                round=self.round,
                parameters=self.models if self.models.ndim == 1 else self.models[row],
                buffers=self.buffers[row],
                weight=_known(self.weights, row),
                data_share=_known(self.data_share, row),
            )
            for row, site in enumerate(self.sites)
        }

    def aggregate(self, answers: Answers) -> None:
        """End a training round: check every reply, hand them to the method, record, checkpoint.

        Raises:
            RunFailed: not one reply can be used.
        """
        replies, rejected = self._checked(answers)
        if not any(replies):
            reasons = "; ".join(f"{site}: {reason}" for site, reason in rejected.items())
            raise RunFailed(f"round {self.round}: no site sent a usable reply ({reasons})")

        received = [payload(task.parameters, task.buffers) for task in self.tasks().values()]
        updates, reports = self._stack(replies)
        self.state, outcome = self.method.round(self.state, updates, reports)
        self.models = outcome.models
        absent = ~reports.present
        self.weights = outcome.weights.masked_fill(absent, math.nan)
        self.data_share = reports.data_share.masked_fill(absent, math.nan)
        self._update_buffers(replies, reports)

        self.recorder.training_round(self.round, replies, rejected, received, updates, outcome)
        self.round += 1
        self._checkpoint()
        self.on_round(self.recorder.ledger.records[-1])

    def finish(self, answers: Answers) -> None:
        """End the run: record the test Dice of the final models and save them."""
        replies, _ = self._checked(answers)
        names = ["global"] if self.models.ndim == 1 else self.sites
        for row, name in enumerate(names):
            flat.load(self.network, self.models if self.models.ndim == 1 else self.models[row], self.buffers[row])
            save_network(self.run / "models", name, self.network, self.plan.network)
        self.recorder.final_test(self.plan.rounds - 1, replies)
        self.round += 1
        self._checkpoint()

    def _checked(self, answers: Answers) -> tuple[list[Reply | None], dict[str, str]]:
        """The replies that can be used, in site order, and why the others cannot: nothing wrong gets further."""
        like = (self.models if self.models.ndim == 1 else self.models[0]) if self.training else torch.empty(0)
        replies: list[Reply | None] = []
        rejected = {}
        for site in self.sites:
            answer = answers.get(site, Failure("no reply"))
            reason = answer.reason if isinstance(answer, Failure) else self._fault(answer, like)
            if reason:
                rejected[site] = reason
            replies.append(answer if isinstance(answer, Reply) and not reason else None)
        return replies, rejected

    def _fault(self, reply: Reply, like: Tensor) -> str | None:
        """What is wrong with a reply whose update should be ``like``, or None."""
        if reply.round != self.round:
            return f"reply of round {reply.round} in round {self.round}"
        if reply.update.shape != like.shape or reply.update.dtype != like.dtype:
            return (
                f"update of shape {tuple(reply.update.shape)} and {reply.update.dtype}, "
                f"expected {tuple(like.shape)} and {like.dtype}"
            )
        if not reply.update.isfinite().all():
            return "update with NaN or infinite entries"
        expected = {name: (value.shape, value.dtype) for name, value in self.buffers[0].items()} if len(like) else {}
        if {name: (value.shape, value.dtype) for name, value in reply.buffers.items()} != expected:
            return "buffers of other names, shapes or types than the model's"
        if not all(value.isfinite().all() for value in reply.buffers.values()):
            return "buffers with NaN or infinite entries"
        if any((value < 0).any() for name, value in reply.buffers.items() if name.endswith("running_var")):
            return "buffers with a negative variance"
        if not _is_count(reply.num_samples) or not reply.num_samples:
            return f"num_samples {reply.num_samples!r}, expected a positive integer"
        for overlap in reply.overlaps:
            counts = (overlap.true_positives, overlap.false_positives, overlap.false_negatives)
            if overlap.label not in self.plan.network.labels or not all(_is_count(count) for count in counts):
                return "overlaps of another label, or with counts that are no counts"
            if not (isinstance(overlap.case, str) and overlap.case.isdecimal()):
                return "overlaps whose case is no position in the split"
        for name, value in reply.values.items():
            if name not in self.method.asks:
                return f"value {name!r}, which {self.plan.method} does not ask for"
            low, high = allowed(name)
            if not low <= value <= high:
                return f"{name} {value}, expected {low} to {high}"
        return None

    def _stack(self, replies: Replies) -> tuple[Tensor, Reports]:
        updates = torch.zeros(len(replies), self.models.shape[-1])
        values = {name: torch.full((len(replies),), math.nan, dtype=torch.float64) for name in self.method.asks}
        samples = torch.zeros(len(replies), dtype=torch.float64)
        for row, reply in enumerate(replies):
            if reply:
                updates[row] = reply.update
                samples[row] = reply.num_samples
                for name, value in reply.values.items():
                    values[name][row] = value
        present = torch.tensor([reply is not None for reply in replies])
        return updates, Reports(samples, present, values)

    def _update_buffers(self, replies: Replies, reports: Reports) -> None:
        if self.method.shares_buffers:
            present = [reply for reply in replies if reply]
            shares = reports.data_share[reports.present]
            self.buffers = [flat.average_buffers([reply.buffers for reply in present], shares)] * len(replies)
        else:
            self.buffers = [
                dict(reply.buffers) if reply else own for reply, own in zip(replies, self.buffers, strict=True)
            ]

    def _checkpoint(self) -> None:
        content = {
            "sites": self.sites,
            "round": self.round,
            "state": dict(vars(self.state)),
            "models": self.models,
            "buffers": self.buffers,
            "weights": self.weights,
            "data_share": self.data_share,
            "results_size": self.recorder.results.size,
        }
        write_atomically(self.run / CHECKPOINT, lambda file: torch.save(content, file))

    def _resume(self) -> None:
        """Go on from the checkpoint; what was recorded after it belongs to an incomplete round and is dropped."""
        content = _checkpoint(self.run)
        if content is None:
            self.recorder.rewind(0, 0)
            return
        if content["sites"] != self.sites:
            raise BadInput(
                f"{self.run}: its sites are {', '.join(content['sites'])}, these are {', '.join(self.sites)}; "
                "continue with the same sites or start another run"
            )
        self.round, self.models, self.buffers = content["round"], content["models"], content["buffers"]
        self.weights, self.data_share = content["weights"], content["data_share"]
        self.state = type(self.state)(**content["state"])
        self.recorder.rewind(content["results_size"], min(self.round, self.plan.rounds))
        for record in self.recorder.ledger.records:
            self.on_round(record)


def require_several(plan: Plan, sites: Sequence[str]) -> None:
    """`BadInput` where a method that shares models has fewer than two sites to share them."""
    if len(sites) < 2 and plan.build_method().shares_buffers:
        raise BadInput(
            f"sites {', '.join(sites) or '(none)'}: {plan.method} needs at least two; "
            "add a site, or train alone with --method standalone"
        )


def is_finished(run: Path, rounds: int) -> bool:
    """Whether a run folder holds a whole run: trained, tested, models saved."""
    content = _checkpoint(run)
    return content is not None and content["round"] > rounds


def _checkpoint(run: Path) -> dict[str, Any] | None:
    """What the checkpoint of a run folder holds; `BadInput` naming it where it is none of ours."""
    path = run / CHECKPOINT
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = torch.load(path, weights_only=True)
    except Exception as error:  # of whatever kind torch's unpickler meets in a spoiled file
        raise BadInput(f"{path}: not readable as a checkpoint ({type(error).__name__}); start another run") from error
    return content


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _known(values: Tensor | None, row: int) -> float | None:
    return None if values is None else or_none(values[row])
