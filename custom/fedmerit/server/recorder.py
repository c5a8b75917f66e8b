"""The records of a run: rows of results.csv, and a ledger record per round."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmerit.contract.method import Outcome
from fedmerit.evidence.closing_record import CROSS_SITE, OBSERVED, Closing, close
from fedmerit.evidence.digests import digest
from fedmerit.evidence.ledger import Ledger, split_head
from fedmerit.evidence.signatures import Signer
from fedmerit.files import write_json
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Evaluated, Reply, payload_bytes
from fedmerit.schema.records import RoundRecord
from fedmerit.schema.results import FINAL_CANDIDATES, NOBODY, ResultsFile, Row, rows_digest
from fedmerit.schema.scores import BEST, UNION, Overlap, mean_dice
from fedmerit.server.round_updates import RoundReplies
from fedmerit.site.site_log import answer_digest


class Recorder:
    """A recorder of one run: it writes results.csv and ledger.jsonl.

    Args:
        config: the run's configuration.
        sites: their names, sorted.
        run: the run folder.
        signer: of the ledger's records; its certificate is published beside them; None: they are not signed.
    """

    def __init__(self, config: RunConfiguration, sites: Sequence[str], run: Path, signer: Signer | None = None):
        self.config, self.sites, self.name = config, sites, run.name
        self.results, self.ledger = ResultsFile(run / "results.csv"), Ledger(run / "ledger.jsonl", signer)
        self.values = ResultsFile(run / OBSERVED)
        self._sent: set[str] | None = None  # digests of the updates in the ledger; None: it is not read yet
        self.matrix, self.run = run / CROSS_SITE, run
        self.site_logs: dict[str, str] = {}  # by site, the last head of its log
        self._observed: dict[str, list[Evaluated]] = {}  # by site, its answers on coalitions in this round
        if signer:
            signer.publish(run, begun=self.ledger.last is not None)

    def rewind(self, results_size: int, rounds: int, observed_size: int) -> None:
        """Delete what was written after a checkpoint: it belongs to an incomplete round."""
        self.ledger.keep(rounds)
        self._sent = None
        self.results.truncate(results_size)
        self.values.truncate(observed_size)

    def content(self) -> dict[str, Any]:
        """Return the recorder's state for the checkpoint."""
        return {"results_size": self.results.size, "observed_size": self.values.size, "site_logs": self.site_logs}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Restore the recorder's state from a checkpoint; later records are deleted."""
        self.site_logs = dict(content["site_logs"])
        self.rewind(content["results_size"], content["complete_rounds"], content["observed_size"])

    @property
    def rounds(self) -> list[RoundRecord]:
        """The ledger's records."""
        return list(map(RoundRecord.model_validate, self.ledger.records))

    def close(self) -> Closing:
        """Write the closing record: of results, run.json, models, and the heads of the sites' logs."""
        return close(self.run, self.ledger.last_hash, self.site_logs, self.ledger.signer)

    def _note_logs(self, answers: Sequence[Reply | Evaluated | None]) -> None:
        heads = {site: answer.log for site, answer in zip(self.sites, answers, strict=True) if answer and answer.log}
        self.site_logs |= heads

    def training_round(
        self,
        round: int,
        replies: RoundReplies,
        began: Sequence[str],
        ended: str,
        outcome: Outcome,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Record one round.

        ``began`` and ``ended`` are digests of the models before and after it; ``more``: further entries of its record.
        """
        self._note_logs(replies.replies)
        digests = {  # none if models stay at the sites
            site: digest(reply.ciphertexts or reply.update)
            for site, reply in zip(self.sites, replies.replies, strict=True)
            if reply and (reply.ciphertexts or len(reply.update))
        }
        rows = self._round_rows(round, replies, outcome, self._repeated(digests))
        self.results.append(rows)
        evidence = {
            "evaluated": self._evaluated_in_round(replies.evaluated),
            "logs": self._signed_heads(replies.replies),
            "rows": rows_digest(map(vars, rows)),
        }
        record = self._record(round, replies, began, ended, digests, outcome) | evidence | dict(more or {})
        self.ledger.append(RoundRecord.model_validate(record).content())

    def _signed_heads(self, replies: Sequence[Reply | None]) -> dict[str, str]:
        """Return how each site's own log ended as the site replied, for the sites that signed it."""
        known = zip(self.sites, replies, strict=True)
        return {site: reply.log for site, reply in known if reply and split_head(reply.log)[1]}

    def _evaluated_in_round(self, rated: Mapping[str, Sequence[Evaluated]]) -> dict[str, list[str]]:
        """Return digests of each site's evaluations of other models.

        These are the evaluations that it ``rated``, and those of observers.
        """
        observed, self._observed = self._observed, {}
        evaluated = {site: [*rated.get(site, ()), *observed.get(site, ())] for site in self.sites}
        return {site: list(map(answer_digest, answers)) for site, answers in evaluated.items() if answers}

    def observed(self, round: int, observer: str, coalitions: Tensor, answers: Sequence[Evaluated | None]) -> None:
        """Record the sites' evaluations of models of coalitions (k, n) bool, under the name of the ``observer``."""
        self._note_logs(answers)
        head = (self.name, self.config.method, self.config.seed, round)
        answered = {site: answer for site, answer in zip(self.sites, answers, strict=True) if answer}
        for site, answer in answered.items():
            self._observed.setdefault(site, []).append(answer)
        self.values.append(observed_rows(head, observer, self.sites, coalitions, answered, self.config.fold))

    def final_validation(self, round: int, validated: Sequence[Evaluated | None]) -> None:
        """Record the validation Dice, HD95 and NSD of each site's final model, under the round that it would begin."""
        self._note_logs(validated)
        self._append_overlaps(round, "validation", [one.overlaps[0] if one else None for one in validated])

    def selected_models(self, round: int, split: str, tests: Sequence[Evaluated | None]) -> None:
        """Record the Dice of the given, the locally trained and the selected model of each site, and the choice."""
        self._note_logs(tests)
        rows = []
        for site, test in zip(self.sites, tests, strict=True):
            if test:
                rows.append(self._row(round, site, "final_model_choice", float(test.choice), split=f"{split}_selected"))
                for name, overlaps in zip(FINAL_CANDIDATES, test.overlaps, strict=True):
                    rows += self._overlap_rows(round, site, f"{split}_{name}", overlaps)
        self.results.append(rows)

    def best_test(self, round: int, tests: Sequence[Evaluated | None]) -> None:
        """Record the test Dice of the models that ``round`` began with, which did best on validation patients."""
        self._note_logs(tests)
        self._append_overlaps(round, BEST, [_evaluation_at(one, row) if one else None for row, one in enumerate(tests)])

    def _append_overlaps(self, round: int, split: str, overlaps: Sequence[Sequence[Overlap] | None]) -> None:
        known = zip(self.sites, overlaps, strict=True)
        self.results.append([row for site, one in known for row in self._overlap_rows(round, site, split, one or ())])

    def final_test(
        self,
        round: int,
        tests: Sequence[Evaluated | None],
        received: Sequence[int],
        tests_own_only: bool = False,
        separate: Collection[int] = (),
    ) -> None:
        """Record test Dice, HD95 and NSD of the final models under the last ``round``.

        Args:
            round: the last.
            tests: each site's evaluation of the final models, the global one or those of all sites; None: none.
            received: bytes sent to each site for it.
            tests_own_only: whether each site tested its own final model and no other; then there is no union.
            separate: rows of sites that did so while others tested all.
        """
        self._note_logs(tests)
        rows = []
        for place, (site, test) in enumerate(zip(self.sites, tests, strict=True)):
            if test:
                rows += self._overlap_rows(round, site, "testing", _evaluation_at(test, place))
                rows.append(self._row(round, site, "bytes_received", received[place], split="testing"))
            else:
                rows.append(self._row(round, site, "rejected", 1.0, split="testing"))
        for place, site in enumerate([] if tests_own_only else self.sites):  # its final model, on every site's cases
            for row, (tester, test) in enumerate(zip(self.sites, tests, strict=True)):
                for overlap in _evaluation_at(test, place) if test and (row == place or row not in separate) else ():
                    columns = {"split": UNION, **overlap.place, "case": f"{tester}/{overlap.case}"}
                    rows += [self._row(round, site, name, value, **columns) for name, value in overlap.scores.items()]
        self.results.append(rows)
        write_json(self.matrix, self._cross_site(tests, tests_own_only, separate))

    def _cross_site(
        self, tests: Sequence[Evaluated | None], tests_own_only: bool, separate: Collection[int]
    ) -> dict[str, dict[str, dict[str, float | None]]]:
        """Return mean test Dice by the site of the images and of the model, as ``cross_val_results.json`` has it."""
        matrix = {}
        for row, (site, test) in enumerate(zip(self.sites, tests, strict=True)):
            if test:
                one = [site] if tests_own_only or row in separate else ["SRV_global"]
                owners = self.sites if len(test.overlaps) > 1 else one
                matrix[site] = {
                    owner: {"dice": mean_dice(overlaps)} for owner, overlaps in zip(owners, test.overlaps, strict=True)
                }
        return matrix

    def _row(self, round: int, site: str, quantity: str, value: float | None, **columns: Any) -> Row:
        head = self.name, self.config.method, self.config.seed, round
        return Row(*head, site, quantity, value, **columns, fold=self.config.fold)

    def _overlap_rows(self, round: int, site: str, split: str, overlaps: Sequence[Overlap]) -> list[Row]:
        return [
            self._row(round, site, quantity, value, split=split, **overlap.place)
            for overlap in overlaps
            for quantity, value in overlap.quantities.items()
        ]

    def _repeated(self, digests: Mapping[str, str]) -> set[str]:
        """Return the sites whose update is in the ledger of an earlier round, or that another site sent too."""
        if self._sent is None:
            self._sent = {sent for record in self.ledger.records for sent in record["updates"].values()}
        times = Counter(digests.values())
        repeated = {site for site, sent in digests.items() if sent in self._sent or times[sent] > 1}
        self._sent.update(digests.values())
        return repeated

    def _round_rows(self, round: int, replies: RoundReplies, outcome: Outcome, repeated: Collection[str]) -> list[Row]:
        per_site: dict[str, Tensor] = {
            "weight": outcome.weights,
            "contribution": outcome.contribution,
            "reputation": outcome.reputation,
            **outcome.quantities,
        }
        rows = []
        for row, (site, reply) in enumerate(zip(self.sites, replies.replies, strict=True)):
            if reply is None:
                lacking = {} if site in replies.left else {"rejected": 1.0, "weight": 0.0}
                rows += [self._row(round, site, name, value) for name, value in lacking.items()]
                continue
            spent = {} if reply.epsilon is None else {"epsilon": reply.epsilon}
            quantities = {name: float(values[row]) for name, values in per_site.items()} | spent
            quantities |= {
                "repeated": float(site in repeated),
                "num_samples": reply.num_samples,
                "train_loss": reply.train_loss,
                "seconds": reply.seconds,
                "bytes_received": replies.received[row],
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
        """Return what the site at ``row`` reports of the others: rows of theirs, its name as coalition."""
        return [
            self._row(round, other, name, float(value), coalition=self.sites[row])
            for name, values in pairs.items()
            for other, value in zip(self.sites, values[row], strict=True)
            if not value.isnan()
        ]

    def _record(
        self,
        round: int,
        replies: RoundReplies,
        began: Sequence[str],
        ended: str,
        digests: Mapping[str, str],
        outcome: Outcome,
    ) -> dict[str, Any]:
        rows = enumerate(zip(self.sites, replies.replies, strict=True))
        present = {site: (row, reply) for row, (site, reply) in rows if reply}
        flagged = outcome.quantities.get("flagged", torch.zeros(len(self.sites)))
        quota = outcome.quantities.get("quota", torch.full((len(self.sites),), math.nan))
        quotas = {site: float(quota[row]) for site, (row, _) in present.items() if not quota[row].isnan()}
        return {
            "round": round,
            "of": self.config.rounds,
            **({"plan": self.config.digest} if round == 0 else {}),
            "participants": list(present),
            "rejected": dict(replies.rejected),
            **({"failed": failed} if (failed := sorted({*replies.failed} & {*replies.rejected})) else {}),
            "flagged": [site for site, (row, _) in present.items() if flagged[row]],
            "began": {site: began[row] for site, (row, _) in present.items()},
            "updates": dict(digests),
            "model": ended,
            "weights": {site: float(outcome.weights[row]) for site, (row, _) in present.items()},
            "reputations": {site: float(outcome.reputation[row]) for site, (row, _) in present.items()},
            "contributions": {
                site: None if (found := outcome.contribution[row]).isnan() else float(found)
                for site, (row, _) in present.items()
            },
            **({"quotas": quotas} if quotas else {}),
            "validation_dice": {site: mean_dice(reply.overlaps) for site, (_, reply) in present.items()},
        }


def observed_rows(
    head: tuple[str, str, int, int],
    observer: str,
    sites: Sequence[str],
    coalitions: Tensor,
    answers: Mapping[str, Evaluated],
    fold: int | None = None,
) -> list[Row]:
    """Return rows of `OBSERVED`: Dice of each coalition's model on each site's cases; the split is the ``observer``."""
    texts = [NOBODY if not any(row) else "+".join(compress(sites, row)) for row in coalitions.tolist()]
    rows = []
    for site, answer in answers.items():
        rows.append(Row(*head, site, "seconds", answer.seconds, split=observer, fold=fold))
        for text, overlaps in zip(texts, answer.overlaps, strict=True):
            rows += [
                Row(*head, site, "dice", one.dice, split=observer, coalition=text, fold=fold, **one.place)
                for one in overlaps
            ]
    return rows


def _evaluation_at(test: Evaluated, place: int) -> Sequence[Overlap]:
    """Return a site's evaluation of the final model of the site at ``place``, or of the common one."""
    return test.overlaps[place if len(test.overlaps) > 1 else 0]
