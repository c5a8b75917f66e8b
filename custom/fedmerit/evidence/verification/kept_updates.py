"""The rounds of a run, computed again from its kept updates, of which ledger and sites' logs have digests.

Sites signed what they sent. From that follow all numbers that else only the server knows: inner products, scores, rests
beyond forecasts, the models after a round, and those that sites rated, whose tasks are in the sites' logs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

import torch
from torch import Tensor

from fedmerit.contract import flat
from fedmerit.contract.capabilities import Candidates
from fedmerit.contract.method import Layout, Outcome, Reports, part_products
from fedmerit.contract.observers import RoundView
from fedmerit.contract.vectors import gram, norms
from fedmerit.errors import BadInput, printable
from fedmerit.evidence.closing_record import OBSERVED
from fedmerit.evidence.digests import digest
from fedmerit.evidence.ledger import texts_digest
from fedmerit.evidence.verification.chains import RunFiles, SiteLog
from fedmerit.evidence.verification.findings import Finding, Report, join_names, make_finding
from fedmerit.evidence.verification.replay import PlayedRound, Replay
from fedmerit.evidence.verification.results import digest_values
from fedmerit.guard.admission import Admission
from fedmerit.schema.configuration.requirements import UPDATES
from fedmerit.schema.configuration.run import read_plan
from fedmerit.schema.configuration.settings import Network
from fedmerit.schema.records import EVALUATE, LogEntry, RoundRecord
from fedmerit.schema.results import NOBODY, read_table
from fedmerit.schema.run_info import RunInfo, read_run
from fedmerit.schema.scores import SERVER_SPLIT
from fedmerit.server.observation import KeptRound, RunObservers, expand_groups, observed_start, read_kept_rounds
from fedmerit.server.round_inputs import CANDIDATES, SERVER, RoundInputs
from fedmerit.server.round_updates import measure_updates
from fedmerit.server.run_guard import rating_split
from fedmerit.site.evaluation_budget import question_digest
from fedmerit.site.site_log import scores_digest
from fedmerit.trainers.factory import first_network, read_layout

SHOWN = (  # kinds of open questions that the kept updates of all rounds answer
    *("rests unproven", "scores unproven", "products unproven", "parts unproven", "rated models unproven"),
    *("values unproven", "steps unproven", "models no sums", "submodels", "verdict unsupported"),
)
MOST_WORDS = 300  # characters of why kept updates cannot be read
GRAM_ROUNDING = 1e-9  # of inner products, relative to the lengths
REST_ROUNDING = 1e-5  # likewise, of rests, which are differences in float32
SCORE_ROUNDING = 1e-6  # of a score, in standard deviations
MODEL_ROUNDING = 2.0**-20  # of models in float32, relative to their largest length


def compare_kept_updates(files: RunFiles, ask: Report) -> Sequence[PlayedRound]:
    """Compare ledger and logs with what the updates give that a run has kept.

    Args:
        files: the run's files; the outcomes in the ledger follow from its inputs.
        ask: called with why kept updates cannot be read.

    Returns:
        All rounds, computed again from the updates, if these contradict nothing: that answers `SHOWN`. Else none.
    """
    run, report = files.run, files.report
    if not (run / UPDATES).is_dir() or not files.records:
        return ()
    faults, played = list[Finding](), list[PlayedRound]()
    try:
        replay = KeptReplay(read_run(run), files.records, files.sites, run)
        values = digest_values(read_table(run / OBSERVED)) if (run / OBSERVED).exists() else {}
        noted = replace(files, report=faults.append)
        for record, kept in zip(files.records, read_kept_rounds(run, replay.plan), strict=True):
            if (one := _Comparison(noted, record, kept, replay, values).compare()) is None:
                break
            played.append(one)
    except Exception as error:  # of whatever kind the code of methods meets in numbers that no round has
        reason = str(error) if isinstance(error, BadInput) else f"{type(error).__name__}: {error}"
        ask(make_finding("updates unread", found=printable(reason)[:MOST_WORDS]))
        played.clear()
    for fault in faults:
        report(fault)
    return () if faults else played


class KeptReplay(Replay):
    """A replay of a run on the updates that its sites sent: the guard measures them, and models are models."""

    def __init__(self, info: RunInfo, records: Sequence[RoundRecord], sites: Sequence[str], run: Path):
        self.kept: KeptRound | None = None
        self.plan = read_plan(run)
        self.network = first_network(self.plan, run)
        super().__init__(info, records, sites)
        self.config = replace(self.config, values=self.plan.values)
        self.observers = RunObservers(self.plan.values, self.models, len(self.sites))
        self.measured: RoundInputs | None = None  # of the last round
        self.observed: dict[str, tuple[Candidates, Tensor]] = {}  # likewise, by observer: models and coalitions

    def _first_model(self, size: int) -> Tensor:
        return flat.get_parameters(self.network)

    def _layout(self, network: Network, n: int) -> Layout:
        return read_layout(self.network, with_neurons=self.can.neurons is not None)

    @property
    def forecast_sizes(self) -> tuple[int, ...]:
        """The entries of each tensor of an update, in order."""
        return self.layout.tensor_sizes

    @property
    def received(self) -> Tensor:
        """(d,) or (n, d) the models that the sites trained from."""
        return self.models if self.kept is None else self.kept.received

    @property
    def updates(self) -> Tensor:
        """(n, d) the updates as they came."""
        assert self.kept is not None
        return self.kept.sent

    def _read_inputs(self, record: RoundRecord) -> RoundInputs:
        inputs = super()._read_inputs(record)
        reports = replace(inputs.reports, products=gram(self.updates))
        self.measured = replace(inputs, reports=reports, measured=None, parts=None)
        return self.measured

    def _read_parts(self, inputs: RoundInputs, admission: Admission) -> Tensor | None:
        places = self.method.parts(self.state)
        parts = (
            part_products(admission.updates, replace(admission.reports, parts=None), places) if len(places) else None
        )
        self.measured = replace(inputs, parts=parts, measured=admission.measured)
        return parts

    def _observe(
        self, record: RoundRecord, received: Tensor, admission: Admission, reports: Reports, given: Outcome
    ) -> None:
        began = observed_start(received, given, self.withheld.nonzero().flatten().tolist())
        seen = began, given.models, admission.updates, given.weights, reports
        view = RoundView(record.round, self.config.rounds, *seen, self.layout.tensor_sizes)
        first, counted = admission.reward_groups.first, admission.counted
        self.observed = {
            name: (one.candidates, expand_groups(one.coalitions, first, counted))
            for name, one in self.observers.observe(view)
        }

    def _conclude(self, admission: Admission, outcome: Outcome) -> Mapping[str, Tensor]:
        self.mean_update, quantities = measure_updates(
            admission.own, admission.own_products, outcome.weights, admission.answered, self.mean_update
        )
        return quantities


@dataclass(frozen=True)
class _Comparison:
    """A comparison of a round's record, and the logs, with what its kept updates give."""

    files: RunFiles
    record: RoundRecord
    kept: KeptRound
    replay: KeptReplay
    values: Mapping[tuple[str, int, str], Mapping[str, str]]  # of `digest_values`

    def compare(self) -> PlayedRound | None:
        """Compare all of the round, and return it; None if its file is not that of the ledger: later ones follow."""
        sites, record, kept = self.replay.sites, self.record, self.kept
        if self._is_changed(sites):
            return None
        self.replay.kept = kept
        played = self.replay.play(record)
        self._compare_inputs(sites)
        scale = float(kept.received.double().norm()) + float(kept.sent.double().norm())
        if not _are_close(played.outcome.models, kept.after, scale):
            found = float((played.outcome.models.double() - kept.after.double()).norm()) / max(scale, 1e-300)
            self.files.contradict("model of weights", record, found=found)
        models = {**self.replay.candidates, **{name: one for name, (one, _) in self.replay.observed.items()}}
        for what, candidates in models.items():
            self._compare_rated(what, candidates, scale)
        for site, number, observer in self.values:
            if number == record.round and observer not in self.replay.observed:
                place = {"site": site, "round": number, "quantity": observer, "found": "rows that no plan asks for"}
                self.files.contradict("values", self.files.run / OBSERVED, "the plan", **place)
        self.replay.models = kept.after
        return played

    def _report_kept(self, site: str, quantity: str, found: str, expected: str) -> None:
        number = self.record.round
        file = self.files.run / UPDATES / f"round_{number:05d}.pt"
        values = {"quantity": quantity, "found": found, "expected": expected, "ledger": self.files.line(number)}
        self.files.contradict("kept", file, site=site, round=number, **values)

    def _is_changed(self, sites: Sequence[str]) -> bool:
        """Report what in the kept round is not that of which the ledger has a digest; return whether anything is."""
        is_changed = False
        record, kept, n = self.record, self.kept, len(sites)
        shapes = kept.sent.shape, kept.received.shape[-1], kept.after.shape[-1]
        if shapes != ((n, (size := self.record.inputs.size)), size, size):
            raise ValueError(f"round {record.round}: updates of other shapes than (sites, size) = ({n}, {size})")
        if {kept.sent.dtype, kept.received.dtype, kept.after.dtype} != {torch.float32}:  # many have one digest
            raise ValueError(f"round {record.round}: numbers of another type than float32")
        rows = {site: row for row, site in enumerate(sites)}
        checks = [("update", site, kept.sent[rows[site]], sent) for site, sent in record.updates.items()]
        received, after = kept.received.expand(n, -1), kept.after.expand(n, -1)
        checks += [("model before", site, received[rows[site]], began) for site, began in record.began.items()]
        checks += [("model after", site, after[rows[site]], ended) for site, ended in record.ended.items()]
        checks += [] if record.ended else [("model after", join_names(sites), kept.after, record.model)]
        known: dict[tuple[int, int], str] = {}  # a common model is digested once
        for quantity, site, tensor, expected in checks:
            place = tensor.data_ptr(), tensor.numel()
            known[place] = found = known.get(place) or digest(tensor)
            if found != expected:
                is_changed = True
                self._report_kept(site, quantity, found, expected)
        if absent := [site for site in sites if site not in record.updates and bool(kept.sent[rows[site]].any())]:
            is_changed = True
            self._report_kept(join_names(absent), "update", "an update", "none")
        return is_changed

    def _compare_inputs(self, sites: Sequence[str]) -> None:
        recorded = RoundInputs.from_record(self.record.inputs, sites, self.record.participants)
        assert self.replay.measured
        ours, again = _products(recorded), _products(self.replay.measured)
        if ours.keys() != again.keys():
            raise ValueError(f"round {self.record.round}: ledger and updates have other inner products")
        lengths = norms(again["inner product of updates"]) if again else torch.zeros(len(sites))
        scale = torch.outer(lengths, lengths)
        for quantity, expected in again.items():
            tolerance = REST_ROUNDING * scale
            if quantity == "inner product of updates":
                tolerance = GRAM_ROUNDING * scale
            elif quantity == "score":
                tolerance = SCORE_ROUNDING * (1 + expected.nan_to_num(0.0).abs())
            differs = (ours[quantity].nan_to_num(0.0) - expected.nan_to_num(0.0)).abs() > tolerance
            for row, column in differs.triu().nonzero().tolist():
                names = [sites[place] for place in dict.fromkeys((row, column))]
                values = {"found": float(ours[quantity][row, column]), "expected": float(expected[row, column])}
                place = {"site": join_names(names), "quantity": quantity}
                self.files.contradict("measured otherwise", self.record, **place, **values)

    def _compare_rated(self, what: str, candidates: Candidates, scale: float) -> None:
        """Compare the models that were rated with those that the updates give, and with the raters' logs."""
        kept = self.kept.rated.get(what)
        number = self.record.round
        if kept is None:
            raise ValueError(f"round {number}: lacks the models of {what}")
        models, mixtures = kept.task["models"], kept.task["mixtures"]
        same = _are_close(models, candidates.models, scale) and _are_close(mixtures, candidates.mixtures, 1.0)
        split = self._split(what)
        same = same and {**kept.task, "models": 0, "mixtures": 0} == {
            **{"round": number, "split": split, "models": 0, "mixtures": 0},
            **{"bins": candidates.bins, "soft": candidates.soft},
        }
        heard = False
        for log in self.files.logs:
            task = kept.task_of(log.site)
            if task is None and self._uses(what, log.site):
                raise ValueError(f"round {number}: lacks the task of {log.site} for the models of {what}")
            if task is None:
                continue
            question = question_digest(task, task.models)
            entries = self._counted(log)
            asked = [entry for entry in entries if entry.question == question]
            if self._uses(what, log.site) and (not asked or not same):
                heard = True
                self.files.contradict("other models rated", self.record, log, quantity=what)
            elif asked and what in self.replay.observed:
                self._compare_values(what, log, asked)
            elif asked and not any(entry.rating == self._rating(what, log.site) for entry in asked):
                words = {"found": "those of other models", "expected": "what it said of these"}
                if self._uses(what, log.site):
                    self.files.contradict("rating", self.record, log, quantity=what, **words)
        if not same and not heard:
            self._report_kept("all", f"models of {what}", "others", "those that the updates give")

    def _split(self, what: str) -> str:
        """Return the split on which sites rate models: observers', the method's candidates, those without a site."""
        if what in self.replay.observed:
            return "validation"
        if what == CANDIDATES or SERVER in self.record.inputs.ratings.get(what, {}):
            return SERVER_SPLIT
        return rating_split([one.cases for one in self.replay.enrolled.values()], len(self.replay.sites))

    def _counted(self, log: SiteLog) -> list[LogEntry]:
        counted = self.record.evaluated.get(log.site, ())
        lines = log.lines(EVALUATE, self.record.round)
        return [entry for _, entry in lines if entry.overlaps and texts_digest(entry.overlaps) in counted]

    def _rating(self, what: str, site: str) -> object:
        return self.record.inputs.ratings.get(what, {}).get(site)

    def _uses(self, what: str, site: str) -> bool:
        """Return whether anything rests on what a site said of these models."""
        return self._rating(what, site) is not None or (site, self.record.round, what) in self.values

    def _compare_values(self, observer: str, log: SiteLog, asked: Sequence[LogEntry]) -> None:
        """Compare the coalitions in values.csv, in order, with those of the models that the site rated."""
        rows = self.values.get((log.site, self.record.round, observer), {})
        if not rows and all(one == scores_digest(()) for entry in asked for one in entry.scores):
            return  # of no case there is no row
        _, coalitions = self.replay.observed[observer]
        texts = ["+".join(compress(self.replay.sites, row)) or NOBODY for row in coalitions.tolist()]
        if list(rows) != texts or [*rows.values()] not in [entry.scores for entry in asked]:
            place = {"round": self.record.round, "quantity": observer, "found": list(rows)}
            self.files.contradict("values", self.files.run / OBSERVED, log, **place)


def _products(inputs: RoundInputs) -> dict[str, Tensor]:
    """Return (n, n) inner products and scores by name, those that there are."""
    measured = inputs.measured
    found = {
        "inner product of updates": inputs.reports.products,
        "score": measured.scores if measured else None,
        "inner product of rests": measured.rests if measured else None,
    }
    found |= {
        f"inner product of part {number}": part
        for number, part in enumerate(() if inputs.parts is None else inputs.parts)
    }
    return {name: one for name, one in found.items() if one is not None}


def _are_close(first: Tensor, second: Tensor, scale: float) -> bool:
    """Return whether two tensors of models are the same up to float32 rounding, relative to ``scale``."""
    if first.shape != second.shape:
        return False
    return float((first.double() - second.double()).norm()) <= MODEL_ROUNDING * max(scale, 1e-300)
