"""What a run writes down: rows of results.csv and a ledger record per round."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmerit.configuration.run import RunConfiguration
from fedmerit.core import Outcome
from fedmerit.federation.site_log import answer_digest
from fedmerit.files import write_json
from fedmerit.records.closing_record import Closing, close
from fedmerit.records.ledger import Ledger, digest
from fedmerit.records.results import ResultsFile, Row, rows_digest
from fedmerit.records.signatures import Signer
from fedmerit.trainers.monai_trainer.overlaps import Overlap, mean_dice
from fedmerit.wire.messages import Evaluated, Reply, payload_bytes

CROSS_SITE = Path("cross_site_val", "cross_val_results.json")  # where NVFlare's cross-site validation writes its own
FINISHED = ("given", "local_only", "selected")  # after a split: of the models that a site chose among
OBSERVED = "values.csv"  # in the run folder, where it was observed: rows of the results schema
NOBODY = "(nobody)"  # the coalition without a member
Replies = Sequence[Reply | None]  # in site order; None: absent or rejected


@dataclass(frozen=True)
class Admitted:
    """What counts of a round, and what does not."""

    replies: Replies
    rejected: Mapping[str, str]  # the reason for every other site, and by the name it came under for other messages
    received: Sequence[int]  # bytes sent to each site
    evaluated: Mapping[str, Sequence[Evaluated]] = field(default_factory=dict)  # by site, what counts of its ratings


class Recorder:
    """results.csv and ledger.jsonl of one run.

    Args:
        config: the run.
        sites: their names, sorted.
        run: the run folder.
        signer: of the ledger's records, its certificate put beside them; None: they are not signed.
    """

    def __init__(self, config: RunConfiguration, sites: Sequence[str], run: Path, signer: Signer | None = None):
        self.config, self.sites, self.name = config, sites, run.name
        self.results, self.ledger = ResultsFile(run / "results.csv"), Ledger(run / "ledger.jsonl", signer)
        self.values = ResultsFile(run / OBSERVED)
        self._sent: set[str] | None = None  # digests of the updates in the ledger, once it was read
        self.matrix, self.run = run / CROSS_SITE, run
        self.site_logs: dict[str, str] = {}  # by site, what stands for its log, as it said last
        self._observed: dict[str, list[Evaluated]] = {}  # by site, what it said of models of coalitions in this round
        if signer:
            signer.publish(run, begun=self.ledger.last is not None)

    def rewind(self, results_size: int, rounds: int, observed_size: int) -> None:
        """Forget what was written after a checkpoint: it belongs to an incomplete round."""
        self.ledger.keep(rounds)
        self._sent = None
        self.results.truncate(results_size)
        self.values.truncate(observed_size)

    def content(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"results_size": self.results.size, "observed_size": self.values.size, "site_logs": self.site_logs}

    def restore(self, content: Mapping[str, Any], rounds: int) -> None:
        """What stood when so many rounds were complete; earlier versions kept no heads of sites' logs."""
        self.site_logs = dict(content.get("site_logs", {}))
        self.rewind(content["results_size"], rounds, content.get("observed_size", 0))

    def close(self) -> Closing:
        """Write down what the run leaves behind: results, run.json, models, and how far the logs of the sites are."""
        return close(self.run, self.ledger.last_hash, self.site_logs, self.ledger.signer)

    def _hear(self, answers: Sequence[Reply | Evaluated | None]) -> None:
        said = {site: answer.log for site, answer in zip(self.sites, answers, strict=True) if answer and answer.log}
        self.site_logs |= said

    def training_round(
        self,
        round: int,
        admitted: Admitted,
        began: Sequence[str],
        ended: str,
        outcome: Outcome,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Write down one round.

        Args:
            round: its number.
            admitted: what counts of it.
            began: digest of the model each site began the round with.
            ended: digest of what the method gave: the global model, or those of all sites.
            outcome: of the method.
            more: entries of the ledger's record beside these.
        """
        replies, received, rejected = admitted.replies, admitted.received, admitted.rejected
        self._hear(replies)
        digests = {  # none where models stay at the sites
            site: digest(reply.ciphertexts or reply.update)
            for site, reply in zip(self.sites, replies, strict=True)
            if reply and (reply.ciphertexts or len(reply.update))
        }
        rows = self._round_rows(round, replies, received, outcome, self._repeated(digests))
        self.results.append(rows)
        record = self._record(round, replies, rejected, began, ended, digests, outcome)
        evaluated = {"evaluated": self._evaluated_in_round(admitted.evaluated)}
        self.ledger.append(record | evaluated | {"rows": rows_digest(map(vars, rows))} | dict(more or {}))

    def _evaluated_in_round(self, rated: Mapping[str, Sequence[Evaluated]]) -> dict[str, list[str]]:
        """By site, digests of what it said of models for others: what it ``rated``, and what was observed."""
        observed, self._observed = self._observed, {}
        said = {site: [*rated.get(site, ()), *observed.get(site, ())] for site in self.sites}
        return {site: list(map(answer_digest, answers)) for site, answers in said.items() if answers}

    def observed(self, round: int, observer: str, coalitions: Tensor, answers: Sequence[Evaluated | None]) -> None:
        """Write down what sites made of models of coalitions (k, n) bool, by what it was observed for."""
        self._hear(answers)
        head = (self.name, self.config.method, self.config.seed, round)
        answered = {site: answer for site, answer in zip(self.sites, answers, strict=True) if answer}
        for site, answer in answered.items():
            self._observed.setdefault(site, []).append(answer)
        self.values.append(observed_rows(head, observer, self.sites, coalitions, answered))

    def final_validation(self, round: int, validated: Sequence[Evaluated | None]) -> None:
        """Write down the validation Dice, HD95 and NSD of each site's final model, as of the round it would begin."""
        self._hear(validated)
        rows = []
        for site, one in zip(self.sites, validated, strict=True):
            if one:
                rows += self._overlap_rows(round, site, "validation", one.overlaps[0])
        self.results.append(rows)

    def finished(self, round: int, split: str, tests: Sequence[Evaluated | None]) -> None:
        """Write down Dice of what sites were given, trained alone and take home, and what that is."""
        self._hear(tests)
        rows = []
        for site, test in zip(self.sites, tests, strict=True):
            if test:
                rows.append(self._row(round, site, "final_model_choice", float(test.choice), split=f"{split}_selected"))
                for name, overlaps in zip(FINISHED, test.overlaps, strict=True):
                    rows += self._overlap_rows(round, site, f"{split}_{name}", overlaps)
        self.results.append(rows)

    def best_test(self, round: int, tests: Sequence[Evaluated | None]) -> None:
        """Write down the test Dice of the models that ``round`` began with, which validation patients liked best."""
        self._hear(tests)
        rows = []
        for place, (site, test) in enumerate(zip(self.sites, tests, strict=True)):
            if test:
                rows += self._overlap_rows(round, site, "testing_best", _evaluation_at(test, place))
        self.results.append(rows)

    def final_test(
        self,
        round: int,
        tests: Sequence[Evaluated | None],
        received: Sequence[int],
        tests_own_only: bool = False,
        alone: Collection[int] = (),
    ) -> None:
        """Write down test Dice, HD95 and NSD of the final models under the last ``round``.

        Args:
            round: the last.
            tests: what each site made of the final models, the global one or those of all sites; None: nothing.
            received: bytes sent to each site for it.
            own_alone: whether each site tested its own final model and no other; then there is no union.
            alone: the rows of sites that did so where others tested all.
        """
        self._hear(tests)
        rows = []
        for place, (site, test) in enumerate(zip(self.sites, tests, strict=True)):
            if test:
                rows += self._overlap_rows(round, site, "testing", _evaluation_at(test, place))
                rows.append(self._row(round, site, "bytes_received", received[place], split="testing"))
            else:
                rows.append(self._row(round, site, "rejected", 1.0, split="testing"))
        for place, site in enumerate(
            [] if tests_own_only else self.sites
        ):  # its final model, on the cases of every site
            for row, (tester, test) in enumerate(zip(self.sites, tests, strict=True)):
                for overlap in _evaluation_at(test, place) if test and (row == place or row not in alone) else ():
                    columns = {"split": "union", "case": f"{tester}/{overlap.case}", "label": overlap.label}
                    rows += [self._row(round, site, name, value, **columns) for name, value in overlap.scores.items()]
        self.results.append(rows)
        write_json(self.matrix, self._cross_site(tests, tests_own_only, alone))

    def _cross_site(
        self, tests: Sequence[Evaluated | None], tests_own_only: bool, alone: Collection[int]
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Mean test Dice by whose images and whose model, as NVFlare's ``cross_val_results.json`` has it."""
        matrix = {}
        for row, (site, test) in enumerate(zip(self.sites, tests, strict=True)):
            if test:
                one = [site] if tests_own_only or row in alone else ["SRV_global"]
                owners = self.sites if len(test.overlaps) > 1 else one
                matrix[site] = {
                    owner: {"dice": mean_dice(overlaps)} for owner, overlaps in zip(owners, test.overlaps, strict=True)
                }
        return matrix

    def _row(self, round: int, site: str, quantity: str, value: float | None, **columns: str) -> Row:
        return Row(self.name, self.config.method, self.config.seed, round, site, quantity, value, **columns)

    def _overlap_rows(self, round: int, site: str, split: str, overlaps: Sequence[Overlap]) -> list[Row]:
        return [
            self._row(round, site, quantity, value, split=split, case=overlap.case, label=overlap.label)
            for overlap in overlaps
            for quantity, value in overlap.quantities.items()
        ]

    def _repeated(self, digests: Mapping[str, str]) -> set[str]:
        """The sites whose update the ledger holds of an earlier round, or another site sent too."""
        if self._sent is None:
            self._sent = {sent for record in self.ledger.records for sent in record["updates"].values()}
        times = Counter(digests.values())
        repeated = {site for site, sent in digests.items() if sent in self._sent or times[sent] > 1}
        self._sent.update(digests.values())
        return repeated

    def _round_rows(
        self, round: int, replies: Replies, received: Sequence[int], outcome: Outcome, repeated: Collection[str]
    ) -> list[Row]:
        per_site: dict[str, Tensor] = {
            "weight": outcome.weights,
            "contribution": outcome.contribution,
            "reputation": outcome.reputation,
            **outcome.quantities,
        }
        rows = []
        for row, (site, reply) in enumerate(zip(self.sites, replies, strict=True)):
            if reply is None:
                rows.append(self._row(round, site, "rejected", 1.0))
                rows.append(self._row(round, site, "weight", 0.0))
                continue
            quantities = {name: float(values[row]) for name, values in per_site.items()} | {
                "repeated": float(site in repeated),
                "num_samples": reply.num_samples,
                "train_loss": reply.train_loss,
                "seconds": reply.seconds,
                "bytes_received": received[row],
                "bytes_sent": payload_bytes(reply),
            }
            rows += [
                self._row(round, site, name, None if math.isnan(value) else value) for name, value in quantities.items()
            ]
            rows += self._pair_rows(round, row, outcome.pairs)
            rows += self._overlap_rows(round, site, "validation", reply.overlaps)
            rows += self._overlap_rows(round, site, "validation_trained", reply.trained_overlaps)
        return rows

    def _pair_rows(self, round: int, row: int, pairs: Mapping[str, Tensor]) -> list[Row]:
        """What the site at ``row`` holds of the others: under their names, its own as the coalition."""
        return [
            self._row(round, other, name, float(value), coalition=self.sites[row])
            for name, values in pairs.items()
            for other, value in zip(self.sites, values[row], strict=True)
            if not value.isnan()
        ]

    def _record(
        self,
        round: int,
        replies: Replies,
        rejected: Mapping[str, str],
        began: Sequence[str],
        ended: str,
        digests: Mapping[str, str],
        outcome: Outcome,
    ) -> dict[str, Any]:
        present = {
            site: (row, reply) for row, (site, reply) in enumerate(zip(self.sites, replies, strict=True)) if reply
        }
        flagged = outcome.quantities.get("flagged", torch.zeros(len(replies)))
        return {
            "round": round,
            "of": self.config.rounds,
            **({"plan": self.config.digest} if round == 0 else {}),
            "participants": list(present),
            "rejected": dict(rejected),
            "flagged": [site for site, (row, _) in present.items() if flagged[row]],
            "began": {site: began[row] for site, (row, _) in present.items()},
            "updates": dict(digests),
            "model": ended,
            "weights": {site: float(outcome.weights[row]) for site, (row, _) in present.items()},
            "contributions": {site: or_none(outcome.contribution[row]) for site, (row, _) in present.items()},
            "validation_dice": {site: mean_dice(reply.overlaps) for site, (_, reply) in present.items()},
        }


def observed_rows(
    head: tuple[str, str, int, int],
    observer: str,
    sites: Sequence[str],
    coalitions: Tensor,
    answers: Mapping[str, Evaluated],
) -> list[Row]:
    """Rows of `OBSERVED`: Dice of each coalition's model on each site's cases, split by the name of the ``observer``.

    Args:
        head: run, method, seed, round.
        observer: what they were evaluated for.
        sites: all, sorted.
        coalitions: (k, n) bool.
        answers: what sites said of the k models, by name.
    """
    texts = [NOBODY if not any(row) else "+".join(compress(sites, row)) for row in coalitions.tolist()]
    rows = []
    for site, answer in answers.items():
        rows.append(Row(*head, site, "seconds", answer.seconds, split=observer))
        for text, overlaps in zip(texts, answer.overlaps, strict=True):
            rows += [
                Row(*head, site, "dice", one.dice, split=observer, case=one.case, label=one.label, coalition=text)
                for one in overlaps
            ]
    return rows


def _evaluation_at(test: Evaluated, place: int) -> Sequence[Overlap]:
    """What a site made of the final model of the site at ``place``, or of the one that all have."""
    return test.overlaps[place if len(test.overlaps) > 1 else 0]


def or_none(value: Tensor) -> float | None:
    """A scalar, or None for NaN."""
    return None if value.isnan() else float(value)
