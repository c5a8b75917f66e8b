"""The rounds of a run, computed again from what the ledger says came, by the code of method and guard.

No outcome is taken from the ledger: all rounds follow from round 0. Each site's update is represented by the vector
with 1 in the site's place, so a model shows which sum of updates was added to it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedmerit.contract.capabilities import Candidates, capabilities
from fedmerit.contract.method import Layout, Outcome, Reports, grow, joining_model
from fedmerit.errors import BadInput
from fedmerit.evidence.verification.chains import RunFiles
from fedmerit.evidence.verification.enrolments import all_images, certified_organisation, require_certified
from fedmerit.evidence.verification.findings import WHOLE, Finding, Movement, make_finding
from fedmerit.guard.admission import Admission
from fedmerit.guard.guard import Enrolled, EnrolledSite
from fedmerit.guard.history import History
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.run import RunConfiguration, plan_network
from fedmerit.schema.configuration.script import derived_parts
from fedmerit.schema.configuration.settings import GuardSettings, Network, Training
from fedmerit.schema.configuration.specs import HE
from fedmerit.schema.declarations import read
from fedmerit.schema.records import EnrolmentRecord, GuardRecord, RoundRecord
from fedmerit.schema.run_info import RunInfo, read_run
from fedmerit.server.membership import departures, grow_all
from fedmerit.server.round_inputs import CANDIDATES, LEAVE_ONE_OUT, SERVER, Rating, Ratings, RoundInputs, pool_ratings
from fedmerit.server.run_guard import RunGuard

ROUNDING = 1e-9  # of numbers that are computed twice in float64, possibly in another order
PLACES = 6  # decimals of bounds in a record
GRAM_ROUNDING = 1e-9  # of eigenvalues of inner products, relative to the largest
REST_ROUNDING = 1e-6  # likewise, of rests, which are differences
OF_VECTORS = ("reward_distance", "model_distance", "output_distance")  # quantities of models, in float32


def all_raters(records: Sequence[RoundRecord]) -> set[str]:
    """Return who rated models in any round."""
    return {rater for record in records for by in record.inputs.ratings.values() for rater in by}


@dataclass(frozen=True)
class PlayedRound:
    """A round that was computed again."""

    record: RoundRecord
    inputs: RoundInputs
    outcome: Outcome  # by site
    guard: GuardRecord
    quantities: Mapping[str, Tensor]  # (n,) of results.csv
    sites: Sequence[str]  # the names of the n sites, sorted
    steps: Tensor | None  # (n, n) share of each column's update in the step of each row's model; None, NaN: unknown


class Replay:
    """A replay of all rounds of a run.

    Args:
        info: the run's run.json.
        records: the ledger's: of which sites joined when, and whether the server rated models on images of its own.
        sites: all that ever took part.
        strict: whether ratings have to be by all that were asked, of as many models as there are, and only by these
            sites; else others are left out, and a rater's results of its models are taken in turn.
    """

    def __init__(self, info: RunInfo, records: Sequence[RoundRecord], sites: Sequence[str], strict: bool = True):
        plan, joined = info["plan"], {site for record in records for site in record.joined}
        self.strict = strict
        self.everyone, self.sites = sorted(sites), sorted(set(sites) - joined)
        n = len(self.sites)
        network = Network.from_dict(plan_network(plan))
        script = derived_parts(plan["script"])["script"] if "script" in plan else None
        last_round = script.last_round if script else plan["training"]["last_round"]
        self.config = RunConfiguration(
            plan["method"],
            plan["task"],
            plan["rounds"],
            plan["seed"],
            network,
            Training(last_round=last_round),
            plan["parameters"],
            guard=read(GuardSettings, plan["guard"], "guard"),
            script=script,
        )
        self.method = self.config.build_guarded_method()
        self.can = capabilities(self.method)
        self.sees_updates = HE not in (info.get("privacy") or ()) and not self.can.exchanges_directly
        self.layout = self._layout(network, len(sites))
        size = sum(self.layout.tensor_sizes) if self.sees_updates else 0
        self.models = self._first_model(size)
        self.state = self.method.start(self.models, n, self.layout)
        self.mean_update: Tensor | None = None  # (d,) of the round before; None: not known
        self.candidates: dict[str, Candidates] = {}  # of the last round that was played, by what was rated
        has_images = bool(plan.get("server_images")) or SERVER in all_raters(records)
        self.rates = (has_images or plan["share_models"]) and self.config.can_evaluate
        self.guard = self._make_guard()
        self.enrolled: dict[str, EnrolmentRecord] = {}
        self.withheld = torch.zeros(n, dtype=torch.bool)

    def _first_model(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.float64)

    def _layout(self, network: Network, n: int) -> Layout:
        """Return a layout of n parameters; the network's own layout if neurons count."""
        if self.can.neurons:
            from fedmerit.trainers.factory import initial_network, read_layout

            return read_layout(initial_network(network, self.config.seed), with_neurons=True)
        return Layout.of(n)

    def _make_guard(self) -> RunGuard:
        settings = self.config, self.method, self.can, self.sites, self.sees_updates, self.rates
        guard = RunGuard(*settings, tensor_sizes=self.forecast_sizes)
        guard.history = History.empty(len(self.sites))
        return guard

    @property
    def forecast_sizes(self) -> tuple[int, ...]:
        """The entries of each tensor of an update; none: updates are not forecast here."""
        return ()

    @property
    def places(self) -> list[int]:
        """The places of the current sites among all that ever take part."""
        return [self.everyone.index(site) for site in self.sites]

    @property
    def received(self) -> Tensor:
        """(d,) or (n, d) the models that the sites train from."""
        return self.models

    @property
    def updates(self) -> Tensor:
        """(n, d) with 1 in each site's place."""
        return torch.eye(len(self.everyone), self.models.shape[-1], dtype=torch.float64)[self.places]

    def _join(self, joined: Sequence[str]) -> None:
        """Grow by sites, as `fedmerit.server.membership` has it."""
        if set(joined) - set(self.everyone) or set(joined) & set(self.sites):
            raise ValueError(f"{', '.join(joined)} joined, expected a site of the run that was not in it yet")
        before, history = self.sites, self.guard.history
        self.sites = sorted([*before, *joined])
        n, rows = len(self.sites), [self.sites.index(site) for site in before]
        self.state = self.method.join(self.state, rows, n, self.layout)
        if self.models.ndim == 2:
            self.models = grow(self.models, joining_model(self.state).repeat(n, 1), rows)
        self.withheld = grow(self.withheld, torch.zeros(n, dtype=torch.bool), rows)
        self.guard = self._make_guard()
        self.guard.history = History.restore(grow_all(history.content(), self.guard.history.content(), rows))
        self._enrol({})

    def play(self, record: RoundRecord) -> PlayedRound:
        """Compute the next round.

        Raises:
            ValueError: the record's inputs are not those of such a round.
        """
        if record.joined:
            self._join(record.joined)
        inputs = self._read_inputs(record)
        self.candidates = {}
        self._enrol(record.guard.enrolled)
        self._allocate(inputs)
        present = inputs.reports.present
        updates = self.updates * present[:, None]
        vectors = {name: torch.zeros_like(updates) for name in self.can.vectors}
        reports = self._complete(replace(inputs.reports, vectors=vectors))
        received, nothing = self.received, [None] * len(self.sites)
        admission = self.guard.admit(
            updates, reports, nothing, [{}] * len(self.sites), self.mean_update, inputs.measured, received
        )
        parts = self._read_parts(inputs, admission)
        admission = replace(admission, reports=replace(admission.reports, parts=parts))
        reports = self._rated(inputs, admission, record)
        self.state, given = self.method.round(self.state, admission.updates, reports)
        self._observe(record, received, admission, reports, given)
        outcome = self.guard.divide_outcome(admission, given, received)
        if record.round == self.config.rounds - 1 and self.config.training.last_round == "own":
            own = given.models.ndim == 1
            outcome = replace(outcome, models=received + updates) if own else outcome
        if outcome.models is not given.models:
            self.state = self.method.restart_from(self.state, outcome.models)
        left = self.withheld & ~admission.withheld  # they come from their own model to that of all
        self.models, self.withheld = outcome.models, admission.withheld
        self._leave_one_out(inputs, admission, given, received, record)
        quantities = self._conclude(admission, outcome)
        steps = None
        if self.method.sums_updates and self.sees_updates:
            steps = (self.models - received).expand(len(self.sites), -1)[:, self.places]
            if not self.method.has_site_models:
                steps = steps.masked_fill(left[:, None], torch.nan)
        guard = GuardRecord.model_validate(self.guard.record(admission, inputs.reports.num_samples))
        return PlayedRound(record, inputs, outcome, guard, quantities, tuple(self.sites), steps)

    def _read_inputs(self, record: RoundRecord) -> RoundInputs:
        inputs = RoundInputs.from_record(record.inputs, self.sites, record.participants)
        if bool(inputs.size) != self.sees_updates:
            raise ValueError(f"size is {inputs.size}, the server saw {'the' if self.sees_updates else 'no'} updates")
        if self.guard.on and self.sees_updates and inputs.measured is None:
            raise ValueError("scores lack, what the guard measures in every round")
        forecasts = self.guard.on and self.sees_updates and self.method.uses_rests
        if forecasts and (inputs.measured is None or inputs.measured.rests is None):
            raise ValueError("rests lack, what the guard measures in every round for this method")
        return inputs

    def _read_parts(self, inputs: RoundInputs, admission: Admission) -> Tensor | None:
        """Return (k, n, n) inner products of the parts of the admitted updates; None: the method needs none."""
        needed, there = len(self.method.parts(self.state)), 0 if inputs.parts is None else len(inputs.parts)
        if needed != there:
            raise ValueError(f"inner products of {there} parts of updates are there, the method has {needed}")
        return inputs.parts

    def _observe(
        self, record: RoundRecord, received: Tensor, admission: Admission, reports: Reports, given: Outcome
    ) -> None:
        """Take note of a round before the guard divides what the method has ``given``; unit vectors show nothing."""

    def _conclude(self, admission: Admission, outcome: Outcome) -> Mapping[str, Tensor]:
        """Take note of a round at its end; return the quantities of results.csv that unit vectors show."""
        return {name: one for name, one in outcome.quantities.items() if name not in OF_VECTORS}

    def _enrol(self, enrolments: Mapping[str, EnrolmentRecord]) -> None:
        self.enrolled |= enrolments
        if not self.enrolled:
            return
        places = {site: place for place, site in enumerate(self.sites)}
        shared = torch.zeros(len(places), len(places), dtype=torch.bool)
        present = {site: one for site, one in self.enrolled.items() if site in places}
        for site, one in present.items():
            for other in one.shares_with:
                if other in places:
                    shared[places[site], places[other]] = shared[places[other], places[site]] = True
        enrolled = {
            site: EnrolledSite(one.images, all_images(one), certified_organisation(one, site), bool(one.filters))
            for site, one in present.items()
        }
        commitments = Enrolled.of_sites(self.sites, enrolled, shared)
        self.guard.guard = replace(self.guard.guard, enrolled=commitments)

    def _allocate(self, inputs: RoundInputs) -> None:
        method = self.can.neurons
        request = method.importance_request(self.state) if method else None
        if (request is None) != (inputs.importance is None):
            raise ValueError(f"importance of neurons {'lacks' if request else 'is there, and was not asked for'}")
        if method and inputs.importance is not None:
            self.state, self.models, _ = method.allocate(self.state, inputs.importance, self.withheld)

    def _complete(self, reports: Reports) -> Reports:
        """Return the reports with NaN for everything that the method asks for and no site reported."""
        n = len(self.sites)
        values = {name: torch.full((n,), torch.nan, dtype=torch.float64) for name in self.method.asks}
        pairs = {name: torch.full((n, n), torch.nan, dtype=torch.float64) for name in self.can.peer_quantities}
        return replace(reports, values=values | dict(reports.values), pairs=pairs | dict(reports.pairs))

    def _rated(self, inputs: RoundInputs, admission: Admission, record: RoundRecord) -> Reports:
        method, reports = self.can.candidates, admission.reports
        candidates = method.candidates(self.state, admission.updates, reports) if method else None
        if candidates is None:
            return reports
        self.candidates[CANDIDATES] = candidates
        ratings = self._require_ratings(CANDIDATES, len(candidates.mixtures), inputs, admission, record)
        if self.guard.on and SERVER not in ratings:
            return replace(reports, candidates=self.guard.judge_candidates(admission, candidates, ratings))
        return replace(reports, candidates=pool_ratings(ratings, self.sites))

    def _leave_one_out(
        self, inputs: RoundInputs, admission: Admission, given: Outcome, received: Tensor, record: RoundRecord
    ) -> None:
        candidates = self.guard.leave_one_out_models(record.round, given, admission, received)
        if candidates is not None:
            self.candidates[LEAVE_ONE_OUT] = candidates
            ratings = self._require_ratings(LEAVE_ONE_OUT, len(candidates.mixtures), inputs, admission, record)
            self.guard.take_leave_one_out(admission, ratings)

    def _require_ratings(
        self, what: str, count: int, inputs: RoundInputs, admission: Admission, record: RoundRecord
    ) -> Ratings:
        """Return the ratings of ``what`` by everyone who was asked for them.

        Raises:
            ValueError: ratings lack without a reason, are by another rater, or of another number of models.
        """
        ratings = inputs.ratings.get(what, {})
        asked = inputs.reports.present & ~admission.withheld
        raters = {site for site, one in zip(self.sites, asked.tolist(), strict=True) if one}
        if not self.strict:
            asked_of = {by: one for by, one in ratings.items() if by in {*raters, SERVER}}
            return {by: _fitted(one, count) for by, one in (asked_of or ratings).items()}
        if SERVER not in ratings and (lost := sorted(raters - set(ratings) - set(record.rejected))):
            raise ValueError(f"ratings of {what} by {lost[0]} lack, and rejected does not say why")
        if not ratings:
            raise ValueError(f"ratings of {what} lack")
        if strangers := set(ratings) - raters - {SERVER}:
            raise ValueError(f"ratings of {what} are by {', '.join(sorted(strangers))}, who was not asked")
        for by, one in ratings.items():
            if len(one.dice) != count:
                raise ValueError(f"ratings of {what} by {by} are of {len(one.dice)} models, expected {count}")
        return ratings


def _fitted(rating: Rating, count: int) -> Rating:
    """Return a rating of so many models, its results taken in turn."""
    rows = [number % len(rating.dice) for number in range(count)] if rating.dice else []
    dice, cases = tuple(rating.dice[row] for row in rows), tuple(rating.cases[row] for row in rows)
    return Rating(dice, cases, rating.losses[rows])


def replay_rounds(files: RunFiles) -> tuple[list[PlayedRound], list[Finding]]:
    """Compute all rounds again; require the outcomes that the ledger has, and each round to begin where the last ended.

    Returns:
        The rounds, and what is not shown of them.
    """
    records = files.records
    questions = list(_require_same_models(files))
    require_certified(files)
    info = read_run(files.run)
    method = info["plan"]["method"]
    if method not in METHODS.ours:
        return [], [*questions, make_finding("foreign method", found=method, moved=Movement(WHOLE))]
    played = list[PlayedRound]()
    where = f"{info.file}: its plan"
    try:
        if SERVER in all_raters(records) and not info["plan"].get("server_images"):
            first = next(one for one in records if any(SERVER in by for by in one.inputs.ratings.values()))
            files.contradict("server images", first)
        for record in records:
            if record.of != info["plan"]["rounds"]:
                files.contradict("planned rounds", record, found=record.of, expected=info["plan"]["rounds"])
        replay = Replay(info, records, files.sites)
        for record in records:
            where = f"{files.line(record.round)}: inputs of round {record.round}"
            played.append(replay.play(record))
            _require_possible_products(files, played[-1])
            _compare_outcome(files, played[-1])
    except BadInput:
        raise
    except Exception as error:  # of whatever kind the code of methods meets in numbers that no round has
        files.contradict("no outcome", where, found=f"{type(error).__name__}: {error}")
        return played, questions
    if not replay.sees_updates:
        questions.append(make_finding("models unseen"))
    elif not replay.method.sums_updates:
        questions.append(make_finding("models no sums", found=method))
    return played, questions


def _require_possible_products(files: RunFiles, played: PlayedRound) -> None:
    """Require that inner products can be those of some vectors: their matrix has no negative eigenvalue."""
    inputs = played.inputs
    matrices = [("updates", inputs.reports.products, GRAM_ROUNDING)]
    matrices += [("parts of updates", part, REST_ROUNDING) for part in (() if inputs.parts is None else inputs.parts)]
    if inputs.measured is not None:
        matrices.append(("rests of updates", inputs.measured.rests, REST_ROUNDING))
    for what, products, rounding in matrices:
        if products is not None and len(products):
            values = torch.linalg.eigvalsh(products.nan_to_num(0.0))
            if float(values[0]) < -rounding * float(values.abs().max()):
                files.contradict("impossible products", played.record, quantity=what, found=float(values[0]))


def _require_same_models(files: RunFiles) -> Iterator[Finding]:
    """Require that every site began a round with what the round before ended with, and round 0 with one model."""
    records, allocated = files.records, list[int]()
    model, ended = next(iter(records[0].began.values()), ""), dict[str, str]()
    for number, record in enumerate(records):
        if record.inputs.importance:
            allocated.append(number)
        for site, began in record.began.items() if number not in allocated else ():
            expected = ended.get(site, model)
            if ended and site in record.joined:
                yield make_finding("joined model", files.line(number), site=site, round=number)
            elif began != expected:
                because = f"with which round {number - 1} ended" if number else "as the others"
                models = {"found": began, "expected": expected}
                files.contradict("model swapped", record, site=site, **models, because=because)
        if record.left != departures(records[:number], record.left):
            files.contradict("departures", record)
        model, ended = record.model, record.ended
    if allocated:
        yield make_finding("submodels", rounds=", ".join(map(str, allocated)))


def _compare_outcome(files: RunFiles, played: PlayedRound) -> None:
    record, outcome, n = played.record, played.outcome, len(played.sites)
    computed = {
        "weights": outcome.weights,
        "contributions": outcome.contribution,
        "reputations": outcome.reputation,
        "quotas": outcome.quantities.get("quota", torch.full((n,), math.nan)),
    }
    flags = outcome.quantities.get("flagged", torch.zeros(n))
    for row, site in enumerate(played.sites):
        if site in record.participants:
            for name, values in computed.items():
                _require_same(files, record, name, site, getattr(record, name).get(site), float(values[row]))
            _require_same(files, record, "flagged", site, site in record.flagged, bool(flags[row]))
    recorded, guard, rounded = record.guard, played.guard, 2 * 10.0**-PLACES
    named = {*played.sites, *recorded.verdicts}
    verdicts, expected_verdicts = ({site: site in part.verdicts for site in named} for part in (recorded, guard))
    by_site: list[tuple[str, Mapping[str, Any], Mapping[str, Any], float]] = [
        ("verdicts", verdicts, expected_verdicts, ROUNDING),
        ("evidence", recorded.evidence, guard.evidence, rounded),
    ]
    for name in sorted({*recorded.bounds, *guard.bounds} - {"statistics_bound"}):  # that is of no update
        by_site.append((f"bound {name}", recorded.bounds.get(name, {}), guard.bounds.get(name, {}), rounded))
    if record.ended:
        by_site.append(("models", dict.fromkeys(record.ended, True), dict.fromkeys(played.sites, True), ROUNDING))
    for name, found, expected, tolerance in by_site:
        for site in sorted({*found, *expected}):
            _require_same(files, record, name, site, found.get(site), expected.get(site), tolerance)


def _require_same(
    files: RunFiles, record: RoundRecord, name: str, site: str, found: Any, computed: Any, tolerance: float = ROUNDING
) -> None:
    if isinstance(computed, float) and math.isnan(computed):
        computed = None
    same = found == computed
    if isinstance(found, float | int) and isinstance(computed, float | int) and not same:
        same = math.isclose(found, computed, rel_tol=tolerance, abs_tol=tolerance)
    if not same:
        files.contradict("outcome", record, site=site, quantity=name, found=found, expected=computed)
