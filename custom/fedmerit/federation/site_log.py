"""site_log.jsonl: what a site got, sent, and was told, in a hash chain of its own, so that it can prove it later.

A record per task, repeated ones included, signed with the site's key where it has one. ``ledger`` is the server's word
that came with the task: the hash of its ledger's last record, and so of everything in the ledger before this round;
``vouched`` is its signature of that, and of the round. Where models go from site to site, there is a record of every
model that the site gives, and one of every peer that gives it its model or does not answer.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedmerit.records.ciphertexts import Ciphertexts
from fedmerit.records.ledger import Ledger, digest, split_head, tensors_digest, texts_digest
from fedmerit.records.signatures import Signer
from fedmerit.trainers.monai_trainer.overlaps import COUNTS, Overlap
from fedmerit.wire.evaluation_budget import count_models
from fedmerit.wire.messages import (
    EVALUATE,
    TRAIN,
    ClosingTask,
    Enrolment,
    EnrolmentTask,
    Evaluated,
    Evaluation,
    ImportanceTask,
    PeerModel,
    Task,
)

SITE_LOG = "site_log.jsonl"
GAVE, GOT = "lend", "borrow"  # the work of the records of peers' models
ASKED = ("work", "split", "models", "order", "question")
ENROLLED = "enrol"  # the work of records of what the site committed to
REFUSED = "refused"  # that of records of what the server asked for and did not get
CLOSED = "close"  # that of the record of how the server closed the run
Counts = tuple[str, str, int, int, int]  # case, label, and how many voxels as in `COUNTS`


class SiteLog:
    """The log of one site, open for appending.

    Args:
        folder: the site's own.
        site: its name.
        signer: of its records, its certificate put beside them; None: they are not signed.
        plan: digest of the run's, by which it trains.
    """

    def __init__(self, folder: Path, site: str, signer: Signer | None = None, plan: str = ""):
        self.site, self.plan, self._chain = site, plan, Ledger(folder / SITE_LOG, signer)
        self._published = False
        self._asked: dict[int, list[Mapping[str, Any]]] = {}  # by round
        self._follow = self._chain.follower(self._note)

    @property
    def last(self) -> str:
        """The hash of the last record: it stands for all of them."""
        return self._chain.last_hash

    def asked(self, round: int) -> Sequence[Mapping[str, Any]]:
        """What the records of a round say that was asked for: `ASKED`, as far as they have it."""
        self._follow()
        return self._asked.get(round, ())

    @property
    def latest(self) -> int:
        """The last round that it answered anything in; -1: none yet."""
        self._follow()
        return max(self._asked, default=-1)

    @property
    def trained_in(self) -> frozenset[int]:
        """The rounds that it trained in."""
        self._follow()
        return frozenset(round for round, of in self._asked.items() if any(one["work"] == TRAIN for one in of))

    def _note(self, record: Mapping[str, Any]) -> None:
        if "question" in record:
            asked = {name: record[name] for name in ASKED if name in record}
            self._asked.setdefault(record["round"], []).append(asked)

    def trained(
        self,
        task: Task,
        received: Tensor | Ciphertexts,
        update: Tensor | Ciphertexts,
        question: str = "",
        overlaps: tuple[Overlap, ...] | None = None,
        images: int = 0,
    ) -> None:
        """Write down a round's training: digests of the model (d,) it began with and of the update (d,) that leaves.

        Under encryption, of the ciphertexts: those of the model as they came, those of the update as they leave.
        ``overlaps`` are what the site says of the model it began with, ``question`` tells that model from others,
        ``images`` are how many it says that it trains on; None: they stand in an earlier record.
        """
        said: dict[str, Any] = {"plan": self.plan} if self.plan else {}
        if overlaps is not None:
            said |= {"models": count_models(task), "question": question}
            said |= {"overlaps": [overlaps_digest(overlaps)], "images": images}
        self._append(TRAIN, task.round, task.ledger, received=digest(received), update=digest(update), **said)

    def enrolled(self, task: EnrolmentTask, enrolment: Enrolment) -> None:
        """Write down what the site commits to."""
        self._append(ENROLLED, task.round, task.ledger, **enrolment.committed)

    def evaluated(self, task: Evaluation, models: Tensor | Ciphertexts, question: str, answer: Evaluated) -> None:
        """Write down that ``models``, (d,) or (m, d), of ``task`` were evaluated; ``question`` tells tasks apart."""
        said = [overlaps_digest(overlaps) for overlaps in answer.overlaps]
        asked = {"split": task.split, "models": task.count, "question": question}
        self._append(EVALUATE, task.round, task.ledger, received=digest(models), **asked, overlaps=said)

    def measured(self, task: ImportanceTask, question: str) -> None:
        """Write down that neurons were."""
        asked = {"split": task.split, "models": 1, "order": task.order, "question": question}
        self._append(EVALUATE, task.round, task.ledger, received=digest(task.model), **asked)

    def refused(self, task: Task | Evaluation | ImportanceTask, reason: str) -> None:
        """Write down that the server asked for what it does not get."""
        self._append(REFUSED, task.round, task.ledger, reason=reason)

    def closed(self, task: ClosingTask) -> None:
        """Write down how the server says that it closed the run: as `Closing.announcement` says it."""
        closing, signature = split_head(task.closing)
        said = {"closing": closing} | ({"sealed": signature} if signature else {})
        self._append(CLOSED, task.round, task.ledger, **said)

    def gave_model(self, round: int, peer: str, model: str) -> None:
        """Write down that the model with this `peer_digest` leaves for ``peer``, to learn from in ``round``."""
        self._append(GAVE, round, peer=peer, model=model)

    def got_model(self, task: Task, peer: str, model: str | None) -> None:
        """Write down the `peer_digest` of what came of ``peer`` for a round's training; None: no answer did."""
        self._append(GOT, task.round, task.ledger, peer=peer, model=model)

    def _append(self, work: str, round: int, head: str | None = None, **more: Any) -> None:
        (folder := self._chain.path.parent).mkdir(parents=True, exist_ok=True)
        if self._chain.signer and not self._published:
            self._chain.signer.publish(folder, begun=self._chain.last is not None)
            self._published = True
        told = {}
        if head is not None:
            ledger, signature = split_head(head)
            told = {"ledger": ledger} | ({"vouched": signature} if signature else {})
        self._chain.append({"site": self.site, "round": round, "work": work, **more, **told})


def overlaps_digest(overlaps: Iterable[Overlap]) -> str:
    """Of their counts, in whatever order."""
    return counts_digest((one.case, one.label, *(getattr(one, name) for name in COUNTS)) for one in overlaps)


def answer_digest(answer: Evaluated) -> str:
    """Of the `overlaps_digest` of all models that it is on, which stand in the site's log."""
    return texts_digest(map(overlaps_digest, answer.overlaps))


def counts_digest(counts: Iterable[Counts]) -> str:
    """SHA-256 of what `overlaps_digest` takes, in hexadecimal."""
    return hashlib.sha256(json.dumps(sorted(counts)).encode()).hexdigest()


def peer_digest(model: PeerModel) -> str:
    """SHA-256 over parameters and statistics by name, with their types and shapes, in hexadecimal."""
    return tensors_digest([("", model.parameters), *sorted(model.buffers.items())])
