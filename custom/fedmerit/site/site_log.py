"""site_log.jsonl: a site's proof of what it received and sent, in a hash chain of its own.

A record per task, repeated ones included, signed with the site's key if it has one. ``ledger`` came with the task: the
hash of the last record of the server's ledger, and so of everything in the ledger before this round; ``vouched`` is
the server's signature of that, and of the round. If models go from site to site, there is a record of every model that
the site gives, and one of every peer that gives it its model or does not answer.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedmerit.ciphertexts import Ciphertexts
from fedmerit.evidence.digests import digest, tensors_digest
from fedmerit.evidence.ledger import Ledger, log_payload, split_head, texts_digest
from fedmerit.evidence.signatures import Signer
from fedmerit.schema import messages
from fedmerit.schema.messages import recorded
from fedmerit.schema.ratings import rate
from fedmerit.schema.records import CLOSED, ENROLLED, EVALUATE, GAVE, GOT, REFUSED, TRAIN, LogEntry
from fedmerit.schema.scores import Overlap
from fedmerit.site.evaluation_budget import count_models

SITE_LOG = "site_log.jsonl"
PLACES = 9  # decimals: readers of CSV differ in the last bit
ASKED = ("work", "split", "models", "order", "question")
Score = tuple[str, str, str, float | None]  # case, label, patient, Dice
Counts = tuple[str, str, str, int, int, int]  # case, label, patient, and how many voxels as in `COUNTS`


class SiteLog:
    """The log of one site, open for appending.

    Args:
        signer: of its records; its certificate is published beside them; None: they are not signed.
        plan: digest of the run's plan.
    """

    def __init__(self, folder: Path, site: str, signer: Signer | None = None, plan: str = ""):
        self.site, self.plan, self._chain = site, plan, Ledger(folder / SITE_LOG, signer)
        self._published = False
        self._asked: dict[int, list[Mapping[str, Any]]] = {}  # by round
        self._follow = self._chain.follower(self._note)

    def asked(self, round: int) -> Sequence[Mapping[str, Any]]:
        """Return the tasks of a round: the fields `ASKED` of its records, as far as they have them."""
        self._follow()
        return self._asked.get(round, ())

    @property
    def latest(self) -> int:
        """The last round with an answer; -1: none yet."""
        self._follow()
        return max(self._asked, default=-1)

    @property
    def trained_in(self) -> frozenset[int]:
        """The rounds with training."""
        self._follow()
        return frozenset(round for round, of in self._asked.items() if any(one["work"] == TRAIN for one in of))

    def _note(self, record: Mapping[str, Any]) -> None:
        if "question" in record:
            asked = {name: record[name] for name in ASKED if name in record}
            self._asked.setdefault(record["round"], []).append(asked)

    def trained(
        self,
        task: messages.Task,
        received: Tensor | Ciphertexts,
        update: Tensor | Ciphertexts,
        question: str = "",
        overlaps: tuple[Overlap, ...] | None = None,
        images: int = 0,
        evidence: Mapping[str, Any] | None = None,
    ) -> str:
        """Record a round's training: digests of the received model (d,) and of the update (d,) that leaves.

        Under encryption, the digests are of the ciphertexts as they came and as they leave.

        Args:
            task: the training task.
            received: the model.
            update: the update that leaves.
            question: digest of the task.
            overlaps: that the site reports of the received model; None: an earlier record has them, with the next.
            images: training images that it reports.
            evidence: "values" and "pairs" that it reports, "step" and "projections" by `fedmerit.site.step_evidence`,
                and "commitment" to its steps.

        Returns:
            The end of this log, for the reply.
        """
        more: dict[str, Any] = {"plan": self.plan} if self.plan else {}
        more |= {name: _known(said) for name, said in (evidence or {}).items() if said}
        if overlaps is not None:
            more |= {"models": count_models(task), "question": question}
            more |= {"overlaps": [overlaps_digest(overlaps)], "images": images}
        digests = {"received": digest(received), "update": digest(update)}
        return self._vouch(task, self._append(TRAIN, task.round, task.ledger, **digests, **more))

    def enrolled(self, task: messages.EnrolmentTask, enrolment: messages.Enrolment, samples: str = "") -> None:
        """Record what the site commits to; ``samples`` is the Merkle root over its images and masks, if it has one."""
        more = {"samples": samples} if samples else {}
        self._append(ENROLLED, task.round, task.ledger, **recorded(enrolment.sealed()), **more)

    def evaluated(
        self,
        task: messages.Evaluation,
        models: Tensor | Ciphertexts,
        question: str,
        answer: messages.Evaluated,
        evidence: Mapping[str, Any] | None = None,
    ) -> str:
        """Record that ``models``, (d,) or (m, d), of ``task`` were evaluated.

        Args:
            task: the evaluation task.
            models: the models.
            question: digest of the task.
            answer: the site's answer.
            evidence: of a final model "step" and "projections", as of `trained`.

        Returns:
            The end of this log, for the answer.
        """
        answers = [overlaps_digest(overlaps) for overlaps in answer.overlaps]
        asked: dict[str, Any] = {"split": task.split, "models": task.count, "question": question}
        asked |= {"received": digest(models), "overlaps": answers}
        asked |= {"scores": [scores_digest(map(_scored, overlaps)) for overlaps in answer.overlaps]}
        asked |= {"rating": rate(answer, task.soft).content()} if answer.overlaps else {}
        asked |= {name: said for name, said in (evidence or {}).items() if said}
        return self._vouch(task, self._append(EVALUATE, task.round, task.ledger, **asked))

    def measured(self, task: messages.ImportanceTask, question: str) -> None:
        """Record that the importance of neurons was measured."""
        asked = {"split": task.split, "models": 1, "order": task.order, "question": question}
        self._append(EVALUATE, task.round, task.ledger, received=digest(task.model), **asked)

    def refused(self, task: messages.Task | messages.Evaluation | messages.ImportanceTask, reason: str) -> None:
        """Record that the server asked for what it does not get."""
        self._append(REFUSED, task.round, task.ledger, reason=reason)

    def closed(self, task: messages.ClosingTask) -> None:
        """Record the digest of the closing record that the server sent, and its signature."""
        closing, signature = split_head(task.closing)
        more = {"closing": closing} | ({"sealed": signature} if signature else {})
        self._append(CLOSED, task.round, task.ledger, **more)

    def gave_model(self, round: int, peer: str, model: str) -> None:
        """Record that the model with this `peer_digest` leaves for ``peer``, to learn from in ``round``."""
        self._append(GAVE, round, peer=peer, model=model)

    def got_model(self, task: messages.Task, peer: str, model: str | None) -> None:
        """Record the `peer_digest` of the model that ``peer`` gave for a round's training; None: it did not answer."""
        self._append(GOT, task.round, task.ledger, peer=peer, model=model)

    def _vouch(self, task: messages.Task | messages.Evaluation, last: str) -> str:
        """Return the hash of a record of this log, signed by the site if it has a key."""
        signer = self._chain.signer
        return f"{last} {signer.sign(log_payload(task.ledger, task.round, last))}" if signer else last

    def _append(self, work: str, round: int, head: str | None = None, **more: Any) -> str:
        """Add a record; its hash."""
        (folder := self._chain.path.parent).mkdir(parents=True, exist_ok=True)
        if self._chain.signer and not self._published:
            self._chain.signer.publish(folder, begun=self._chain.last is not None)
            self._published = True
        acknowledged = {}
        if head is not None:
            ledger, signature = split_head(head)
            acknowledged = {"ledger": ledger} | ({"vouched": signature} if signature else {})
        entry = {"site": self.site, "round": round, "work": work, **more, **acknowledged}
        return self._chain.append(LogEntry.model_validate(entry).content())


def _known(said: Any) -> Any:
    """Return a nested mapping without its NaN values, which JSON cannot hold; anything else unchanged."""
    if not isinstance(said, Mapping):
        return said
    return {name: _known(value) for name, value in said.items() if value == value}


def overlaps_digest(overlaps: Iterable[Overlap]) -> str:
    """Return the SHA-256 of the counts and patients of overlaps, whatever their order, in hexadecimal."""
    return hashlib.sha256(json.dumps(sorted(map(_counted, overlaps))).encode()).hexdigest()


def scores_digest(scores: Iterable[Score]) -> str:
    """Return the SHA-256 of case, label, patient and Dice (to `PLACES` decimals) of a model, in hexadecimal."""
    lines = sorted((*key, "" if dice is None or dice != dice else f"{dice:.{PLACES}f}") for *key, dice in scores)
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def _scored(one: Overlap) -> Score:
    return one.case, one.label, one.patient, one.dice


def _counted(one: Overlap) -> Counts | tuple[str, str, str, float]:
    """Return case, label, patient and the voxel counts of an overlap, or the score instead of the counts."""
    if one.score is not None:
        return one.case, one.label, one.patient, one.score
    return one.case, one.label, one.patient, one.true_positives, one.false_positives, one.false_negatives


def answer_digest(answer: messages.Evaluated) -> str:
    """Return the digest over the `overlaps_digest` of every model in an answer, which are in the site's log."""
    return texts_digest(map(overlaps_digest, answer.overlaps))


def peer_digest(model: messages.PeerModel) -> str:
    """Return the SHA-256 over named parameters and statistics, with their types and shapes, in hexadecimal."""
    return tensors_digest([("", model.parameters), *sorted(model.buffers.items())])
