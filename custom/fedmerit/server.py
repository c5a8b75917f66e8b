"""The server's half of a run, whatever the engine: tasks out, replies in, record, checkpoint. It holds no formula."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmerit import flat
from fedmerit.core import RANGES, Outcome, Reports
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import write_atomically
from fedmerit.ledger import Ledger, digest
from fedmerit.plan import Plan
from fedmerit.results import ResultsFile, Row
from fedmerit.site import Reply, Task
from fedmerit.training import Overlap, initial_network, mean_dice, save_network

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
        self.results, self.ledger = ResultsFile(run / "results.csv"), Ledger(run / "ledger.jsonl")
        self.network = initial_network(plan.network, plan.seed)
        self.round = 0
        self.state = self.method.start(flat.get_parameters(self.network), len(self.sites))
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
        answers = {site: self._checked(answers.get(site, Failure("no reply"))) for site in self.sites}
        replies = [reply if isinstance(reply := answers[site], Reply) else None for site in self.sites]
        rejected = {site: answer.reason for site, answer in answers.items() if isinstance(answer, Failure)}
        if not any(replies):
            reasons = "; ".join(f"{site}: {reason}" for site, reason in rejected.items())
            raise RunFailed(f"round {self.round}: no site sent a usable reply ({reasons})")

        updates, reports = self._stack(replies)
        self.state, outcome = self.method.round(self.state, updates, reports)
        self.models = outcome.models
        absent = ~reports.present
        self.weights = outcome.weights.masked_fill(absent, math.nan)
        self.data_share = reports.data_share.masked_fill(absent, math.nan)
        self._update_buffers(replies, reports)

        rows = self._round_rows(answers, replies, outcome)
        self.results.append(rows)
        self.ledger.append(self._record(replies, rejected, updates, outcome))
        self.round += 1
        self._checkpoint()
        self.on_round(self.ledger.records[-1])

    def finish(self, answers: Answers) -> None:
        """End the run: record the test Dice of the final models and save them."""
        last, rows = self.plan.rounds - 1, []
        for site in self.sites:
            answer = answers.get(site, Failure("no reply"))
            if isinstance(answer, Reply):
                rows += self._overlap_rows(last, site, "testing", answer.overlaps)
            else:
                rows.append(self._row(last, site, "rejected", 1.0, split="testing"))
        names = ["global"] if self.models.ndim == 1 else self.sites
        for row, name in enumerate(names):
            flat.load(self.network, self.models if self.models.ndim == 1 else self.models[row], self.buffers[row])
            save_network(self.run / "models", name, self.network, self.plan.network)
        self.results.append(rows)
        self.round += 1
        self._checkpoint()

    def _checked(self, answer: Reply | Failure) -> Reply | Failure:
        """The reply, or why it is rejected: nothing of another shape, type or range gets further than here."""
        if isinstance(answer, Failure):
            return answer
        like = self.models[-1] if self.models.ndim == 2 else self.models
        if answer.round != self.round:
            return Failure(f"reply of round {answer.round} in round {self.round}")
        if answer.update.shape != like.shape or answer.update.dtype != like.dtype:
            return Failure(
                f"update of shape {tuple(answer.update.shape)} and {answer.update.dtype}, "
                f"expected {tuple(like.shape)} and {like.dtype}"
            )
        if not answer.update.isfinite().all():
            return Failure("update with NaN or infinite entries")
        expected = {name: (value.shape, value.dtype) for name, value in self.buffers[0].items()}
        if {name: (value.shape, value.dtype) for name, value in answer.buffers.items()} != expected:
            return Failure("buffers of other names, shapes or types than the model's")
        if not all(value.isfinite().all() for value in answer.buffers.values()):
            return Failure("buffers with NaN or infinite entries")
        if isinstance(answer.num_samples, bool) or not isinstance(answer.num_samples, int) or answer.num_samples < 1:
            return Failure(f"num_samples {answer.num_samples!r}, expected a positive integer")
        for name, value in answer.values.items():
            if name not in self.method.asks:
                return Failure(f"value {name!r}, which {self.plan.method} does not ask for")
            low, high = RANGES[name]
            if not low <= value <= high:
                return Failure(f"{name} {value}, expected {low} to {high}")
        return answer

    def _stack(self, replies: Sequence[Reply | None]) -> tuple[Tensor, Reports]:
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

    def _update_buffers(self, replies: Sequence[Reply | None], reports: Reports) -> None:
        if self.method.shares_buffers:
            present = [reply for reply in replies if reply]
            shares = reports.data_share[reports.present]
            self.buffers = [flat.average_buffers([reply.buffers for reply in present], shares)] * len(replies)
        else:
            self.buffers = [
                dict(reply.buffers) if reply else own for reply, own in zip(replies, self.buffers, strict=True)
            ]

    def _row(self, round: int, site: str, quantity: str, value: float | None, **columns: str) -> Row:
        return Row(self.run.name, self.plan.method, self.plan.seed, round, site, quantity, value, **columns)

    def _overlap_rows(self, round: int, site: str, split: str, overlaps: Sequence[Overlap]) -> list[Row]:
        quantities = ("dice", "true_positives", "false_positives", "false_negatives")
        return [
            self._row(
                round, site, quantity, getattr(overlap, quantity), split=split, case=overlap.case, label=overlap.label
            )
            for overlap in overlaps
            for quantity in quantities
        ]

    def _round_rows(self, answers: Answers, replies: Sequence[Reply | None], outcome: Outcome) -> list[Row]:
        per_site: dict[str, Tensor] = {
            "weight": outcome.weights,
            "contribution": outcome.contribution,
            "reputation": outcome.reputation,
            **outcome.quantities,
        }
        rows = []
        for row, (site, reply) in enumerate(zip(self.sites, replies, strict=True)):
            if reply is None:
                rows.append(self._row(self.round, site, "rejected", 1.0))
                rows.append(self._row(self.round, site, "weight", 0.0))
                continue
            received = 4 * self.models.shape[-1] + _size(self.buffers[row])
            quantities = {name: float(values[row]) for name, values in per_site.items()} | {
                "num_samples": reply.num_samples,
                "train_loss": reply.train_loss,
                "seconds": reply.seconds,
                "bytes_received": received,
                "bytes_sent": 4 * len(reply.update) + _size(reply.buffers),
            }
            rows += [
                self._row(self.round, site, name, None if math.isnan(value) else value)
                for name, value in quantities.items()
            ]
            rows += self._overlap_rows(self.round, site, "validation", reply.overlaps)
        return rows

    def _record(
        self, replies: Sequence[Reply | None], rejected: Mapping[str, str], updates: Tensor, outcome: Outcome
    ) -> dict[str, Any]:
        present = {
            site: (row, reply) for row, (site, reply) in enumerate(zip(self.sites, replies, strict=True)) if reply
        }
        flagged = outcome.quantities.get("flagged", torch.zeros(len(replies)))
        return {
            "round": self.round,
            "participants": list(present),
            "rejected": dict(rejected),
            "flagged": [site for site, (row, _) in present.items() if flagged[row]],
            "updates": {site: digest(updates[row]) for site, (row, _) in present.items()},
            "model": digest(self.models),
            "weights": {site: float(outcome.weights[row]) for site, (row, _) in present.items()},
            "contributions": {site: _or_none(outcome.contribution[row]) for site, (row, _) in present.items()},
            "validation_dice": {site: mean_dice(reply.overlaps) for site, (_, reply) in present.items()},
        }

    def _checkpoint(self) -> None:
        content = {
            "sites": self.sites,
            "round": self.round,
            "state": dict(vars(self.state)),
            "models": self.models,
            "buffers": self.buffers,
            "weights": self.weights,
            "data_share": self.data_share,
            "results_size": self.results.size,
        }
        write_atomically(self.run / CHECKPOINT, lambda file: torch.save(content, file))

    def _resume(self) -> None:
        """Go on from the checkpoint; what was recorded after it belongs to an incomplete round and is dropped."""
        path = self.run / CHECKPOINT
        if not path.exists():
            self.results.truncate(0)
            self.ledger.keep(0)
            return
        content = torch.load(path, weights_only=True)
        if content["sites"] != self.sites:
            raise BadInput(
                f"{self.run}: its sites are {', '.join(content['sites'])}, these are {', '.join(self.sites)}; "
                "continue with the same sites or start another run"
            )
        self.round, self.models, self.buffers = content["round"], content["models"], content["buffers"]
        self.weights, self.data_share = content["weights"], content["data_share"]
        self.state = type(self.state)(**content["state"])
        self.results.truncate(content["results_size"])
        self.ledger.keep(min(self.round, self.plan.rounds))
        for record in self.ledger.records:
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
    path = run / CHECKPOINT
    return path.exists() and torch.load(path, weights_only=True, mmap=True)["round"] > rounds


def _known(values: Tensor | None, row: int) -> float | None:
    return None if values is None else _or_none(values[row])


def _or_none(value: Tensor) -> float | None:
    return None if value.isnan() else float(value)


def _size(buffers: Mapping[str, Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in buffers.values())
