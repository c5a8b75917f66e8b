"""How far the inputs that no site signed could have moved the aggregation weights: the rounds, played with others.

The server's word is taken to its extremes, one kind of input at a time. A variant changes the records, and the rounds
are computed again by the code of method and guard; the largest change of a weight, of a site in a round, is reported.
What the records claim of sites is taken back for each of them; what they might have kept silent about is put in for the
site with the largest weight. Long runs are played only for the first rounds, unless a claim is taken back.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, islice, product

from fedmerit.evidence.closing_record import OBSERVED
from fedmerit.evidence.verification.chains import RunFiles, SiteLog
from fedmerit.evidence.verification.enrolments import all_images, certified_organisation, distinct_cases
from fedmerit.evidence.verification.findings import WHOLE, Finding, Movement, join_names, make_finding
from fedmerit.evidence.verification.replay import PlayedRound, Replay, all_raters
from fedmerit.evidence.verification.site_logs import logged_steps
from fedmerit.guard.enrolment import may_share
from fedmerit.guard.work import ROUNDS
from fedmerit.methods.registry import estimates_contributions
from fedmerit.schema.records import EnrolmentRecord, InputsRecord, RatingRecord, RoundRecord
from fedmerit.schema.run_info import read_run
from fedmerit.server.round_inputs import SERVER

Records = Sequence[RoundRecord]
Weights = Sequence[Mapping[str, float]]  # by round, of each site
WORKS = 8.0  # a score that shows work beyond doubt, in standard deviations
BUDGET = 40  # rounds to play again, beside a quarter of those of the run: a round takes some 3 ms
VERDICT = ROUNDS + 1  # rounds in which invented scores give a verdict, and take effect
WEIGHTY = (  # kinds of open questions with which nothing of a site, or of all, is shown
    *("logs missing", "logs unsigned", "owner of the certificate", "owners of the logs' certificates"),
    *("organisations unproven", "log ends disputed", "update discarded", "rating discarded", "absence unproven"),
    *("sites unheard", "steps unproven"),
)


def rest_on_server(files: RunFiles, played: Sequence[PlayedRound], shown: Collection[str] = ()) -> Iterator[Finding]:
    """Yield the inputs of the outcome that only the server knows, each with how far it could have moved a weight.

    Args:
        files: the run's files.
        played: the rounds of the ledger, computed again.
        shown: kinds of these questions that are answered.
    """
    if not played:
        return
    records, info = files.records, read_run(files.run)
    method = info["plan"]["method"]

    def play(chosen: Records) -> list[PlayedRound]:
        replay = Replay(info, records, files.sites, strict=False)
        return list(map(replay.play, chosen))

    replayed = Sensitivity(play, records, played, estimates_contributions(method))
    enrolled = files.enrolments
    organisations = {site: certified_organisation(one, site) for site, one in enrolled.items()}
    sharing = {tuple(sorted((site, other))) for site, one in enrolled.items() for other in one.shares_with}
    twice, raters = [site for site, one in enrolled.items() if has_duplicates(one)], all_raters(records)
    verdicts = {site for record in records for site in record.guard.verdicts}
    inputs = [record.inputs for record in records]

    def whole() -> Movement:
        return Movement(WHOLE)

    questions: Mapping[str, tuple[bool, Callable[[], Movement], Mapping[str, str]]] = {
        "sharing unproven": (
            len(enrolled) > 1,
            lambda: replayed.by_sharing([*open_pairs(records, organisations)]),
            {"found": "; ".join(" and ".join(pair) for pair in sorted(sharing)) or "none"},
        ),
        "duplicates unproven": (bool(twice), replayed.by_duplicates, {"site": join_names(twice)}),
        "server ratings": (SERVER in raters, replayed.by_ratings, {}),
        "rated models unproven": (bool(raters) and SERVER not in raters, replayed.by_ratings, {}),
        "rests unproven": (any(one.rests for one in inputs), replayed.by_rests, {}),
        "values unproven": ((files.run / OBSERVED).exists(), whole, {"found": OBSERVED}),
        "scores unproven": (any(one.scores for one in inputs), lambda: replayed.by_scores(verdicts), {}),
        "products unproven": (not _are_determined(played, files.logs), replayed.by_products, {}),
        "parts unproven": (any(one.parts for one in inputs), whole, {"found": method}),
        "importance unproven": (any(one.importance for one in inputs), whole, {}),
    }
    for kind, (is_open, moved, words) in questions.items():
        if is_open and kind not in shown:
            movement = moved()
            if movement.weight or kind != "products unproven":
                yield make_finding(kind, **words, moved=movement)


def weigh_question(question: Finding, played: Sequence[PlayedRound]) -> Finding:
    """Return an open question with how far it could have moved a weight, if it is about all that a site says."""
    if question.moved is not None or not played or question.kind not in WEIGHTY:
        return question
    sites = question.site.split(", ") if question.site else sorted({site for one in played for site in one.sites})
    return replace(question, moved=bound_of_sites(played, sites, question.details.get("numbers")))


def _are_determined(played: Sequence[PlayedRound], logs: Sequence[SiteLog]) -> bool:
    """Return whether the steps in the sites' logs determine the inner products of different sites' updates.

    A log has the inner product of the site's update with the model's step, a sum of updates with known weights: n
    logs give n equations a round, for n (n - 1) / 2 products.
    """
    equations: dict[int, int] = {}
    for log in logs:
        for before, _ in logged_steps(played, log):
            equations[before.record.round] = equations.get(before.record.round, 0) + (before.steps is not None)
    return all(
        equations.get(one.record.round, 0) >= (count := len(one.record.participants)) * (count - 1) / 2
        for one in played
    )


def weights_of(played: Iterable[PlayedRound]) -> list[dict[str, float]]:
    """Return the weights of each round, by site."""
    return [dict(zip(one.sites, one.outcome.weights.tolist(), strict=True)) for one in played]


def reputations_of(played: Iterable[PlayedRound]) -> list[dict[str, float]]:
    """Return the shares of the sum of positive reputations of each round, by site; 0 if there are none."""
    shares = []
    for one in played:
        positive = one.outcome.reputation.nan_to_num(nan=0.0).clamp(min=0.0)
        shares.append(dict(zip(one.sites, (positive / positive.sum().clamp(min=1e-300)).tolist(), strict=True)))
    return shares


def largest_movement(movements: Iterable[Movement]) -> Movement:
    """Return the largest of some movements; none if there is none."""
    return max(movements, key=lambda one: one.weight, default=Movement(0.0))


def compare_weights(first: Weights, second: Weights) -> Movement:
    """Return the largest difference of two replays of the same rounds."""
    return largest_movement(
        Movement(abs(weight - other.get(site, 0.0)), site, number)
        for number, (one, other) in enumerate(zip(first, second, strict=True))
        for site, weight in one.items()
    )


def bound_of_sites(
    played: Sequence[PlayedRound], sites: Iterable[str], rounds: Iterable[int] | None = None
) -> Movement:
    """Return how far the weights of ``sites`` could be from others', if all that is known of these is invented."""
    chosen = set(range(len(played)) if rounds is None else rounds)
    places = [(one, site) for one, site in product(played, list(sites)) if one.record.round in chosen]
    known = weights_of(played)
    weights = ((known[one.record.round].get(site, 0.0), one, site) for one, site in places)
    return largest_movement(
        Movement(max(weight, WHOLE - weight), site, one.record.round) for weight, one, site in weights
    )


class Sensitivity:
    """A player of the rounds of a run with other inputs.

    Args:
        play: computes the rounds of records again.
        records: the ledger.
        played: its rounds.
        estimates: whether the method estimates contributions: shares of reputations, too, are compared then.
    """

    def __init__(
        self,
        play: Callable[[Records], Sequence[PlayedRound]],
        records: Records,
        played: Sequence[PlayedRound],
        estimates: bool = False,
    ):
        self.play, self.records, self.played = play, records, played
        self.compared = (weights_of, reputations_of) if estimates else (weights_of,)
        self.weights = weights_of(played)
        self.sites = sorted({site for record in records for site in record.participants})
        self.heaviest = max(self.sites, key=lambda site: sum(one.get(site, 0.0) for one in self.weights), default="")
        self.limit = max(1, (BUDGET + len(records) // 4) // (len(self.sites) + 4))

    def largest(self, variants: Iterable[Iterable[RoundRecord]], limit: int | None = None) -> Movement:
        """Return the largest change of a weight by any of these records; `WHOLE` if one cannot be computed.

        ``limit`` is the number of rounds to play; None: all.
        """
        movements = []
        for records in variants:
            try:
                again = self.play([*islice(records, limit)])
                movements += [
                    compare_weights(shares(self.played[: len(again)]), shares(again)) for shares in self.compared
                ]
            except Exception:  # of whatever kind the code of methods meets in numbers that no round has
                movements.append(Movement(WHOLE))
        return largest_movement(movements)

    def by_sharing(self, pairs: Sequence[tuple[str, str]]) -> Movement:
        """Return how far it moves weights which sites hold the same cases.

        One of the ``pairs`` of sites is a reward group or none, or all cases of the heaviest site count half.
        """
        recorded = {pair for pair in pairs if self._shares(*pair)}
        taken_back = [recorded - {pair} for pair in recorded] + ([set[tuple[str, str]]()] if len(recorded) > 1 else [])
        put_in = [recorded | {pair} for pair in pairs if self.heaviest in pair and pair not in recorded]
        by_pairs = [
            self.largest((self._with_enrolments(partial(_shared, pairs, one)) for one in variants), limit)
            for variants, limit in ((taken_back, None), (put_in, self.limit))
        ]
        halved = self._with_enrolments(partial(_held_by_two, self.heaviest))
        return largest_movement([*by_pairs, self.largest([halved], self.limit)])

    def _shares(self, site: str, other: str) -> bool:
        enrolled = {name: one for record in self.records for name, one in record.guard.enrolled.items()}
        return other in enrolled[site].shares_with or site in enrolled[other].shares_with

    def by_duplicates(self) -> Movement:
        """Return how far it moves weights that a site enrolled cases twice."""
        return self.largest(
            [self._with_enrolments(lambda site, one: one.model_copy(update={"images": all_images(one)}))]
        )

    def by_ratings(self) -> Movement:
        """Return how far ratings move weights: for each site in turn, without which all would be lost."""
        return self.largest((self._with_inputs(partial(_rated_for, site)) for site in self.sites), self.limit)

    def by_rests(self) -> Movement:
        """Return how far the rests of updates move weights: for each site in turn, if only it adds to its forecast."""
        return self.largest((self._with_inputs(partial(_adding, site)) for site in self.sites), self.limit)

    def by_scores(self, verdicts: Iterable[str]) -> Movement:
        """Return how far the guard's scores move weights: with each site's verdict taken back, or one put in."""
        against = {site for site in verdicts if site in self.sites}
        put_in = {self.heaviest} - against
        return largest_movement(
            self.largest((self._with_inputs(partial(_scored, site, score)) for site in sorted(sites)), limit)
            for sites, score, limit in ((against, WORKS, None), (put_in, 0.0, max(self.limit, VERDICT)))
        )

    def by_products(self) -> Movement:
        """Return how far the inner products of different sites' updates move weights."""
        of_one = (partial(_related, self.heaviest, cosine) for cosine in (0.0, -1.0))
        changes = (partial(_related, None, 0.0), partial(_related, None, 1.0), *of_one)
        return self.largest((self._with_inputs(change) for change in changes), self.limit)

    def _with_inputs(self, change: Callable[[InputsRecord], InputsRecord]) -> Iterator[RoundRecord]:
        for record in self.records:
            yield record.model_copy(update={"inputs": change(record.inputs)})

    def _with_enrolments(self, change: Callable[[str, EnrolmentRecord], EnrolmentRecord]) -> Iterator[RoundRecord]:
        for record in self.records:
            enrolled = {site: change(site, one) for site, one in record.guard.enrolled.items()}
            guard = record.guard.model_copy(update={"enrolled": enrolled})
            yield record.model_copy(update={"guard": guard}) if enrolled else record


def open_pairs(records: Records, organisations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of sites of different organisations whose counts let them hold the same cases."""
    enrolled = {site: one for record in records for site, one in record.guard.enrolled.items()}
    for site, other in combinations(sorted(enrolled), 2):
        differ = organisations[site] != organisations[other]
        if differ and may_share(distinct_cases(enrolled[site]), distinct_cases(enrolled[other])):
            yield site, other


def has_duplicates(enrolment: EnrolmentRecord) -> bool:
    """Return whether a record counts fewer images than its site enrolled, as if cases were enrolled twice."""
    return float(enrolment.images) < all_images(enrolment) - 1e-6


def _shared(
    pairs: Iterable[tuple[str, str]], chosen: Iterable[tuple[str, str]], site: str, one: EnrolmentRecord
) -> EnrolmentRecord:
    others = {other for pair in pairs if site in pair for other in pair if other != site}
    sharing = {other for pair in chosen if site in pair for other in pair if other != site}
    return one.model_copy(update={"shares_with": sorted(({*one.shares_with} - others) | sharing)})


def _held_by_two(holder: str, site: str, one: EnrolmentRecord) -> EnrolmentRecord:
    """Return an enrolment whose cases a second site holds, if it is that of ``holder``."""
    return one.model_copy(update={"images": all_images(one) / 2}) if site == holder else one


def _rated_for(favoured: str, inputs: InputsRecord) -> InputsRecord:
    """Return inputs with ratings after which the models with the favoured site are good, others bad."""
    sites = sorted(inputs.counts)
    place = sites.index(favoured) if favoured in sites else None

    def rated(what: str, one: RatingRecord) -> RatingRecord:
        is_without = what == "leave_one_out"
        if one.soft:  # `Candidates.soft`: after the first, one for each site; the last is of all
            good = [
                float(place is not None and number in (place + 1, len(one.dice) - 1)) for number in range(len(one.dice))
            ]
        else:
            good = [float((number % len(sites) == place) != is_without) for number in range(len(one.dice))]
        soft = [[dice] * len(row) for dice, row in zip(good, one.soft, strict=False)]
        return one.model_copy(update={"dice": good, "soft": soft})

    ratings = {what: {by: rated(what, one) for by, one in those.items()} for what, those in inputs.ratings.items()}
    return inputs.model_copy(update={"ratings": ratings})


def _adding(site: str, inputs: InputsRecord) -> InputsRecord:
    """Return inputs in which only this site's update adds to its forecast: all of it."""
    rests = {
        row: {
            column: inputs.products.get(row, {}).get(column, 0.0) if row == column == site else 0.0 for column in values
        }
        for row, values in inputs.rests.items()
    }
    return inputs.model_copy(update={"rests": rests})


def _scored(site: str, score: float, inputs: InputsRecord) -> InputsRecord:
    scores = {
        row: {column: score if site in (row, column) and row != column else value for column, value in values.items()}
        for row, values in inputs.scores.items()
    }
    return inputs.model_copy(update={"scores": scores})


def _related(site: str | None, cosine: float, inputs: InputsRecord) -> InputsRecord:
    """Return inputs with this cosine between the updates of a site and of others, or of all; lengths stay."""
    norms = {row: max(values.get(row, 0.0), 0.0) ** 0.5 for row, values in inputs.products.items()}
    products = {
        row: {
            column: cosine * norms[row] * norms[column] if row != column and site in (None, row, column) else value
            for column, value in values.items()
        }
        for row, values in inputs.products.items()
    }
    return inputs.model_copy(update={"products": products})
