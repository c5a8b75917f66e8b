"""What servers pay a friend, or charge another, and record as if it followed; whole in hashes and results."""

import csv
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ledger_records import beside_the_servers_word, sentences
from pretending import NETWORK, SITES, evaluated, generator, tiny_plan
from rounds import beside
from signed_runs import closed_again, log_of, rewritten, rows_again
from stepping import Stepped as Federation

from fedmerit.contract import flat
from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import split_head
from fedmerit.evidence.verification.run import Verification, examine_run, verify_run
from fedmerit.files import write_json
from fedmerit.guard.work import Measurements
from fedmerit.methods.registry import METHODS, build_method
from fedmerit.plugins import Catalogue
from fedmerit.schema.configuration.run import describe
from fedmerit.schema.messages import (
    ClosingReceipt,
    ClosingTask,
    Enrolment,
    EnrolmentTask,
    Evaluation,
    Failure,
    ImportanceTask,
    Purpose,
    Reply,
    Task,
    Work,
)
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS, Overlap
from fedmerit.server import evaluator, run_guard
from fedmerit.site.site_log import SiteLog
from fedmerit.site.step_evidence import list_old_parts, measure_step, measure_work, project_step
from fedmerit.trainers.memory import Memory

SIZE = flat.get_parameters(NETWORK).numel()
IMAGES = dict(zip(SITES, (30, 12, 6), strict=True))
OVERLAPS = (Overlap("000", "prostate", 5, 2, 1),)


class PretendedSite:
    """Moves half the way to its own optimum and to what all find, reports numbers of its own, and keeps a log."""

    def __init__(self, federation: Federation, site: str, run: Path, rests: range):
        self.federation, self.site, self.place, self.rests = federation, site, SITES.index(site), rests
        self.log, self.memory = SiteLog(run / "sites" / site, site, plan=federation.config.digest), {-1: None}
        common = 0.1 * torch.randn(SIZE, generator=generator(7))
        self.optimum = common + 0.05 * torch.randn(SIZE, generator=generator(self.place))

    def answer(self, task: Work) -> Any:
        if isinstance(task, Task):
            return self.train(task)
        if isinstance(task, EnrolmentTask):
            cases = dict.fromkeys((*SPLITS, SERVER_SPLIT), 1)
            images = cases | {"training": IMAGES[self.site]}
            one = Enrolment(task.round, cases, images, (f"{self.place:032x}",), seal="5" * 32)
            self.log.enrolled(task, one)
            return one
        if isinstance(task, ClosingTask):
            self.log.closed(task)
            return ClosingReceipt(task.round)
        said = evaluated(self.federation, self.site)
        if isinstance(task, Evaluation):
            before = self.memory.get(task.round - 1)
            final = len(task.models) == 1 and task.models.shape[1] and task.round == self.federation.config.rounds
            evidence = self.evidence(task, task.models[0], before) if final else {}
            noted = self.log.evaluated(task, task.models, "question", said, evidence)
            return replace(said, log=noted)
        assert isinstance(task, ImportanceTask)
        self.log.measured(task, "question")
        return said

    def train(self, task: Task) -> Reply:
        before, asks = self.memory.get(task.round - 1), self.federation.method.asks
        model = task.changes.apply(before.received) if task.changes else task.parameters
        if not len(model):  # it stays here
            model = before.model if before else flat.get_parameters(NETWORK)
        new = [torch.randn(SIZE, generator=generator(100 * place + task.round + 1)) for place in (self.place, 9)]
        update = 0.5 * (flat.get_parameters(NETWORK) + self.optimum - model) + 0.02 * sum(new)  # the last: common work
        update = 0 * update if task.round in self.rests else update
        latest = next((one for _, one in sorted(self.memory.items(), reverse=True) if one), None)
        old = list_old_parts(model, latest, 0)
        self.memory[task.round] = Memory(model, model + update, task.buffers, old=old)
        update = self.memory[task.round].trained - model
        values = {name: low + (0.2 + 0.1 * self.place) * min(1.0, high - low) for name, (low, high) in asks.items()}
        pairs = {
            name: {peer: round(0.5 + 0.1 * self.place, 6) for peer in task.peers}
            for name in self.federation.can.peer_quantities
            if task.peers
        }
        evidence = {"values": values, "pairs": pairs, **self.evidence(task, model, before, update)}
        noted = self.log.trained(task, model, update, "question", OVERLAPS, IMAGES[self.site], evidence)
        vectors = beside(self.federation.method, update)
        buffers = {name: value + 1 for name, value in task.buffers.items()}
        count = IMAGES[self.site]
        said = Reply(task.round, update, buffers, count, OVERLAPS, values, pairs=pairs, vectors=vectors)
        return replace(said, log=noted)

    def evidence(
        self, task: Any, model: torch.Tensor, before: Memory | None, update: torch.Tensor | None = None
    ) -> dict[str, Any]:
        step = measure_step(model, before, update) | measure_work(list_old_parts(model, before, 0), before)
        return {"step": step, "projections": project_step(model, before, split_head(task.ledger)[0])}


Spoil = Callable[[Federation], object]


def played(
    run: Path,
    method: str,
    rounds: int = 4,
    spoil: Spoil = lambda federation: None,
    rests: range = range(0),
    **parameters: Any,
) -> Path:
    """A whole run, by a server that ``spoil`` makes dishonest; Alder sends zeros in rounds in which it ``rests``."""
    plan = replace(tiny_plan(method, rounds, **parameters), share_models=True)
    write_json(run / "run.json", describe("run", plan, SITES, "local"))
    federation = Federation(plan, SITES, run)
    spoil(federation)
    sites = {site: PretendedSite(federation, site, run, rests if site == "Alder" else range(0)) for site in SITES}
    while federation.work:
        federation.take({site: sites[site].answer(task) for site, task in federation.tasks().items()})
    return run


def logs(run: Path, *sites: str) -> list[Path]:
    return [log_of(run, site) for site in sites or SITES]


def open_claims(found: Verification) -> list[str]:
    """What is not shown, beside what a run without certificates leaves open."""
    return [text for text in beside_the_servers_word(found) if "not signed" not in text]


def forged(run: Path, change: Callable[[dict[str, Any]], object], round: int = 1) -> None:
    """One record with something else, results.csv to fit, and the run closed again."""

    def changed(lines: list[dict[str, Any]]) -> None:
        change(lines[round])
        fit(run, lines[round])
        rows_again(run, lines)

    rewritten(run / "ledger.jsonl", changed)
    closed_again(run)


def fit(run: Path, record: dict[str, Any]) -> None:
    """results.csv says of a round what its record says."""
    path, said = run / "results.csv", record["inputs"]["counts"]
    verdicts = {site: float(site in record.get("guard", {}).get("verdicts", ())) for site in SITES}
    parts = {"weight": record["weights"], "reputation": record["reputations"], "num_samples": said, "verdict": verdicts}
    guard = record.get("guard", {})
    parts["clipped"] = guard.get("bounds", {}).get("clipped", {})
    parts["evidence"] = dict.fromkeys(SITES, 0.0) | guard.get("evidence", {})
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if int(row["round"]) == record["round"] and not row["split"] and not row["coalition"]:
            row["value"] = str(parts.get(row["quantity"], {}).get(row["site"], row["value"]))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def paid(record: dict[str, Any]) -> None:
    """The friend's weight, times three."""
    more = record["weights"] | {"Birch": 3 * record["weights"]["Birch"] + 0.1}
    record["weights"] = {site: weight / sum(more.values()) for site, weight in more.items()}


def counted(record: dict[str, Any]) -> None:
    record["inputs"]["counts"]["Birch"] *= 3


def credited(record: dict[str, Any]) -> None:
    record["reputations"]["Birch"] += 0.25


def flagged(record: dict[str, Any]) -> None:
    record.setdefault("guard", {})["verdicts"] = ["Alder"]


def swapped(record: dict[str, Any]) -> None:
    record["began"]["Alder"] = "0" * 64


def unrated(record: dict[str, Any]) -> None:
    next(iter(record["inputs"]["ratings"].values())).pop("Alder")


FAST = ("fedce", "fedsac")
EVERY = [
    pytest.param(name, guard, marks=() if (name in FAST and guard == "on") else pytest.mark.slow)
    for name in METHODS.ours
    for guard in ("on", "off")
    if name != "pooled" or guard == "off"
]
OPEN = ("no sums of whole updates", "submodels were allocated", "tested the final models", "have no projections")
BY_VALUES = (  # methods whose outcome, without a guard, does not follow from how many images there are
    *("fedce", "fedce_nvflare", "cgsv", "rffl", "fedave", "fedsac", "qfedavg", "fedci", "fedvalue", "scaffold"),
    *("median", "trimmed", "krum", "afl", "fedfv"),
)


@pytest.mark.parametrize(("method", "guard"), EVERY)
def test_honest_run_verifies_and_a_paid_friend_is_found_in_the_run_folder(tmp_path, method, guard):
    run = played(tmp_path / "run", method, guard=guard)
    found = open_claims(verify_run(run, logs(run)))
    assert [text for text in found if not any(words in text for words in OPEN)] == []
    files = {file: file.read_bytes() for file in (run / "ledger.jsonl", run / "results.csv")}
    for change, words in (
        (flagged, "verdicts of Alder in round 1: True, expected False|verdict of Alder in round 1 is None"),
        (swapped, r"Alder began round 1 with model 0{64}, expected .*a model was swapped"),
        (unrated, "inputs of round 1: .*ratings of candidates by Alder lack"),
        (paid, r"weights of Alder in round 1: .*expected .*follows from the inputs"),
        (counted, r"(weights|contributions|quotas) of \w+ in round 1: .*expected|num_samples of Birch"),
        (credited, "reputations of Birch in round 1: .*expected"),
    ):
        if change is counted and guard == "off" and method in BY_VALUES:
            continue
        if change is swapped and any("submodels were allocated" in text for text in found):
            continue
        if change is unrated and "ratings" not in json.loads(files[run / "ledger.jsonl"].splitlines()[1])["inputs"]:
            continue  # nobody is asked for any
        forged(run, change)
        with pytest.raises(BadInput, match=words):
            verify_run(run)
        for file, content in files.items():
            file.write_bytes(content)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Path:
    """A whole run of FedCE under the guard, whose sites rate models. Never change it."""
    return played(tmp_path_factory.mktemp("guarded") / "run", "fedce", rounds=6, guard="on", rate_every=2)


@pytest.fixture
def run(guarded, tmp_path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(guarded, tmp_path / "run"))


def incriminated(record: dict[str, Any]) -> None:
    record["guard"]["evidence"]["Alder"] = 5.0


def less_bounded(record: dict[str, Any]) -> None:
    record["guard"].setdefault("bounds", {})["clipped"] = {"Alder": 0.5}


def better_rated(record: dict[str, Any]) -> None:
    rating = record["inputs"]["ratings"]["leave_one_out"]["Alder"]["dice"]
    rating[:] = [1 - dice for dice in rating]


def divided(record: dict[str, Any]) -> None:
    record["inputs"]["parts"] = [{}] * 1000


def doubled(record: dict[str, Any]) -> None:
    record["participants"].append("Alder")


@pytest.mark.parametrize(
    ("change", "round", "words"),
    [
        (
            divided,
            3,
            "line 4: inputs of round 3: .*inner products of 1000 parts of updates are there, the method has 0",
        ),
        (doubled, 3, "line 4: inputs of round 3: .*the participants of the round are others"),
        (flagged, 3, r"line 4: verdicts of Alder in round 3: True, expected False"),
        (incriminated, 3, r"line 4: evidence of Alder in round 3: 5.0, expected "),
        (less_bounded, 3, "line 4: bound clipped of Alder in round 3: 0.5, expected None"),
        (swapped, 3, "line 4: Alder began round 3 with model 0{64}, expected .*round 2 ended.*swapped"),
        (unrated, 2, "line 3: inputs of round 2: .*ratings of leave_one_out by Alder lack"),
        (better_rated, 2, r"line \d: \w+ of \w+ in round \d: .*expected .*follows from the inputs"),
    ],
)
def test_what_does_not_follow_is_found_in_the_run_folder(run, change, round, words):
    forged(run, change, round)
    with pytest.raises(BadInput, match=words):
        verify_run(run)


def on_record(change: Callable[[dict[str, Any]], object], round: int = 2) -> Spoil:
    """A server that writes a record of something else when it is due, as sites acknowledge it."""

    def spoil(federation: Federation) -> None:
        append = federation.recorder.ledger.append

        def write(record: Any) -> None:
            record = json.loads(json.dumps(record))
            if record["round"] == round:
                change(record)
            append(record)

        federation.recorder.ledger.append = write  # type: ignore[method-assign]

    return spoil


def applied(weights: Callable[[torch.Tensor], torch.Tensor], rounds: range = range(2, 3)) -> Spoil:
    """A server whose model has other weights than those that it publishes."""

    def spoil(federation: Federation) -> None:
        divide = federation.run_guard.divide_outcome

        def divided(admission: Any, outcome: Any, received: torch.Tensor) -> Any:
            honest = divide(admission, outcome, received)
            if federation.round not in rounds:
                return honest
            return replace(
                honest, models=received + (weights(honest.weights)[:, None] * admission.own).sum(dim=0).float()
            )

        federation.run_guard.divide_outcome = divided  # type: ignore[method-assign]

    return spoil


def friend_first(weights: torch.Tensor) -> torch.Tensor:
    more = weights * torch.tensor([1.0, 3.0, 1.0])
    return more / more.sum()


def replying(**changes: Any) -> Spoil:
    """A server that takes something else from Birch than what it sent."""

    def spoil(federation: Federation) -> None:
        take = federation.take

        def taken(answers: Any) -> None:
            birch = answers.get("Birch")
            take({**answers, "Birch": replace(birch, **changes)} if isinstance(birch, Reply) else answers)

        federation.take = taken  # type: ignore[method-assign, assignment]

    return spoil


def rerated(federation: Federation) -> None:
    """A server that turns the ratings of Alder round."""
    judge = federation.run_guard.take_leave_one_out

    def judged(admission: Any, rated: Any) -> None:
        rated["Alder"] = replace(rated["Alder"], dice=tuple(1 - dice for dice in rated["Alder"].dice))
        judge(admission, rated)

    federation.run_guard.take_leave_one_out = judged  # type: ignore[method-assign]


STEP, CLAIMS = "step that the weights give.* of {} in round {}", {"cosine": 0.1, "minus_error": 0.9}
ON, RATED = {"rounds": 5, "guard": "on"}, {"guard": "on", "rate_every": 2}
COUNTED = replying(num_samples=3 * IMAGES["Birch"])


@pytest.mark.parametrize(
    ("method", "settings", "spoil", "witness", "words"),
    [
        ("fedce", ON, applied(friend_first), "Alder", "of Alder in round 2: .*expected .*site_log.jsonl"),
        ("fedce", ON, applied(friend_first), "Cedar", STEP.format("Cedar", 2)),
        ("fedce", ON, applied(friend_first, range(4, 5)), "Cedar", STEP.format("Cedar", 4)),  # the last round
        ("fedce", ON, applied(lambda weights: 0 * weights + 1e-3), "Birch", STEP.format("Birch", 2)),
        ("fedce", ON, replying(values=CLAIMS), "Birch", "cosine of Birch in round 0"),
        ("fedavg", {"guard": "off"}, COUNTED, "Birch", r"num_samples of Birch in round 0 is 36.*12"),
        ("fedce", RATED, rerated, "Alder", r"ratings of leave_one_out by Alder in round 0: .*expected what"),
    ],
)
def test_dishonest_server_is_found_by_one_honest_log(tmp_path, method, settings, spoil, witness, words):
    run = played(tmp_path / "run", method, spoil=spoil, **settings)
    verify_run(run)
    with pytest.raises(BadInput, match=words):
        verify_run(run, logs(run, witness))


def steering(federation: Federation) -> None:
    """A server that moves the model a bit more along Birch's update, and records inner products that fit all logs.

    Each site sees how long the step is, and how far it goes along its own update; three sites leave three products.
    """
    invented: dict[int, list[float]] = {}

    def outcome(honest: Any, admission: Any, received: torch.Tensor) -> Any:
        updates, weights = admission.own.double(), honest.weights
        step = weights @ updates
        other = step + 0.1 * updates[1]
        step = other * float(step @ other) / float(other @ other)  # of the length that the recorded weights give
        along = updates @ step - weights * (updates @ updates.T).diagonal()
        a, b, c = weights.tolist()
        system = torch.tensor([[b, c, 0], [a, 0, c], [0, a, b]], dtype=torch.float64)
        invented[federation.round] = torch.linalg.solve(system, along).tolist()
        return replace(honest, models=(received + step).float())

    def write(record: dict[str, Any]) -> None:
        products = record["inputs"]["products"]
        products["Alder"]["Birch"], products["Alder"]["Cedar"], products["Birch"]["Cedar"] = invented[record["round"]]

    _deciding(federation, outcome, range(9))
    for round in range(4):
        on_record(write, round)(federation)


def test_model_that_other_weights_made_is_found_though_the_recorded_products_fit_every_log(tmp_path, monkeypatch):
    run = played(tmp_path / "run", "fedavg", spoil=steering, guard="off")
    assert verify_run(run, logs(run, "Alder", "Cedar")).faults == ()
    with pytest.raises(BadInput, match="the model was moved otherwise than by the recorded weights") as error:
        verify_run(run, logs(run))
    assert {one.kind for one in error.value.findings} == {"projected step"}
    assert {(one.round, one.site) for one in error.value.findings} == {(n, site) for n in range(4) for site in SITES}
    assert all(one.found > 0.01 for one in error.value.findings)


def test_step_whose_sum_the_logs_do_not_have_is_not_shown(tmp_path):
    run = played(tmp_path / "run", "fedavg", guard="off")
    assert open_claims(verify_run(run, logs(run))) == []

    def forget(lines: Any) -> None:
        for line in lines:
            line.pop("projections", None)

    rewritten(log_of(run, "Birch"), forget)
    closed_again(run)
    found = [one for one in examine_run(run, logs(run)).unproven if one.kind == "steps unproven"]
    assert [(one.site, one.details["numbers"]) for one in found] == [("Birch", [0, 1, 2, 3])]
    assert found[0].moved.weight == pytest.approx(0.75)


def test_products_of_no_vectors_convict_the_server(run):
    def change(record: dict[str, Any]) -> None:
        products = record["inputs"]["products"]
        products["Alder"]["Birch"] = 2 * (products["Alder"]["Alder"] * products["Birch"]["Birch"]) ** 0.5

    forged(run, change, 3)
    assert "impossible products" in {one.kind for one in examine_run(run).faults}


def test_more_images_than_a_site_enrolled_are_a_contradiction(tmp_path, monkeypatch):
    count, more = run_guard.distinct_images, {12: 3.0}  # Birch's
    monkeypatch.setattr(run_guard, "distinct_images", lambda one: count(one) * more.get(one.slices["training"], 1.0))
    run = played(tmp_path / "run", "fedavg", guard="on")
    with pytest.raises(BadInput, match=r"counts 36.0 training images of Birch; it enrolled 12.0"):
        verify_run(run)


@pytest.mark.parametrize("method", ["cgsv", "fedce"])
def test_rests_that_only_the_server_computed_are_not_shown(tmp_path, method, monkeypatch):
    """The number is at least what the lie moved."""
    honest, init = played(tmp_path / "honest", method, guard="on"), Measurements.__init__
    scale = torch.tensor([0.05, 1.0, 0.05], dtype=torch.float64)

    def lying(self: Any, size: int, scores: torch.Tensor, rests: torch.Tensor | None = None) -> None:
        init(self, size, scores, None if rests is None else rests * scale[:, None] * scale)

    monkeypatch.setattr(Measurements, "__init__", lying)
    run = played(tmp_path / "run", method, guard="on")
    monkeypatch.setattr(Measurements, "__init__", init)
    before, after = ([json.loads(line)["weights"] for line in (one / "ledger.jsonl").open()] for one in (honest, run))
    gained = max(abs(one[site] - other[site]) for one, other in zip(before, after, strict=True) for site in SITES)
    found = examine_run(run, logs(run))
    (question,) = [one for one in found.unproven if one.kind == "rests unproven"]
    assert found.faults == ()
    assert gained > 0.05
    assert question.moved.weight >= gained


@pytest.mark.parametrize(("quantity", "value"), [("cases", 1000), ("losses", [1.0])])
def test_rating_that_weighs_more_is_found_by_the_log_of_its_rater(tmp_path, quantity, value, monkeypatch):
    of = evaluator.Rating.of

    def weighed(answer: Any, soft: bool = False) -> Any:
        one, many = of(answer, soft), len(answer.overlaps)
        more = torch.tensor([value] * many) if quantity == "losses" else (value,) * many
        return replace(one, **{quantity: more})

    monkeypatch.setattr(evaluator.Rating, "of", weighed)
    run = played(tmp_path / "run", "cffl", guard="off")
    monkeypatch.setattr(evaluator.Rating, "of", of)
    assert verify_run(run).faults == ()
    with pytest.raises(BadInput, match=f"{quantity} behind the ratings of candidates by Alder in round 0 are not"):
        verify_run(run, logs(run, "Alder"))


def test_server_that_has_one_rater_rate_other_models_is_found(tmp_path):
    def spoil(federation: Federation) -> None:
        tasks = federation.evaluator._tasks

        def made(*args: Any, **more: Any) -> Callable[[int | None], Evaluation]:
            make_task = tasks(*args, **more)
            return lambda row: replace(make_task(row), models=make_task(row).models + float(row == 0))

        object.__setattr__(federation.evaluator, "_tasks", made)

    run = played(tmp_path, "fedce", guard="on", spoil=spoil)
    faults = examine_run(run, logs(run)).faults
    assert {(one.kind, one.site) for one in faults} >= {("rated models", "Cedar")}
    assert {one.kind for one in faults} == {"rated models"}


def test_models_that_sites_rated_are_not_shown(tmp_path):
    run = played(tmp_path / "run", "cffl", guard="off")
    (question,) = [one for one in examine_run(run, logs(run)).unproven if one.kind == "rated models unproven"]
    assert question.moved.weight > 0.2


def test_ledger_of_fewer_rounds_than_planned_is_a_contradiction(tmp_path):
    run = played(tmp_path / "run", "fedavg", guard="off")

    def shorten(lines: Any) -> None:
        lines[2]["saved"] = lines.pop()["saved"]
        for line in lines:
            line["of"] = 3

    rewritten(run / "ledger.jsonl", shorten)
    assert "planned rounds" in {one.kind for one in examine_run(run).faults}


def test_run_that_says_that_it_was_encrypted_is_contradicted_by_a_log(tmp_path):
    run = played(tmp_path / "run", "fedavg", guard="off")

    def hide(lines: Any) -> None:
        for line in lines:
            line["inputs"] = {"size": 0, "counts": line["inputs"]["counts"]}

    rewritten(run / "ledger.jsonl", hide)
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"privacy": ["he"]}))
    closed_again(run)
    assert "not encrypted" in {one.kind for one in examine_run(run, logs(run, "Alder")).faults}


def test_values_are_those_that_sites_answered_and_rest_on_the_server(tmp_path):
    run = played(tmp_path / "run", "fedavg", guard="off", values=("one_round",))
    (question,) = [one for one in examine_run(run, logs(run)).unproven if one.kind == "values unproven"]
    assert question.moved.weight == 1.0
    path = run / "values.csv"
    lines = path.read_text().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if ",3,Birch," in line and ",dice," in line)
    lines[place] = ",".join([*lines[place].split(",")[:-1], "0.999\n"])
    path.write_text("".join(lines))
    closed_again(run)
    with pytest.raises(BadInput, match=r"values of one_round by Birch in round 3: .* has no such answer"):
        verify_run(run, logs(run, "Birch"))


def test_share_of_reputations_counts_as_a_weight_does_if_the_method_estimates_contributions(tmp_path):
    """Weights by innovation are shares of images; ratings decide the reputations, by which it pays."""
    run = played(tmp_path / "run", "innovation", guard="on")
    (question,) = [one for one in examine_run(run, logs(run)).unproven if one.kind == "rated models unproven"]
    assert question.moved.weight > 0.3


def test_swapped_model_is_found_by_its_digest_or_by_the_step(tmp_path):
    def swap(federation: Federation) -> None:
        def after(record: Any) -> None:
            if record.get("round") == 1:
                federation.models.parameters = federation.models.parameters + 0.01

        federation.on_round = after

    run = played(tmp_path / "run", "fedavg", spoil=swap)
    with pytest.raises(BadInput, match=r"began round 2 with model .*a model was swapped"):
        verify_run(run)


def scoring(scores: Callable[[torch.Tensor], torch.Tensor]) -> Spoil:
    """A server that makes up what only it can compute: from the true scores (3, 3) of a round, those that count."""

    def spoil(federation: Federation) -> None:
        guard = federation.run_guard
        admit = guard.admit

        def admitted(updates: Any, reports: Any, replies: Any, received: Any, step: Any, models: Any) -> Any:
            known, found = guard.history.known.measure(updates, reports.present, step, 0)
            guard.history = replace(guard.history, known=known)
            return admit(updates, reports, replies, received, step, Measurements(updates.shape[1], scores(found)))

        guard.admit = admitted  # type: ignore[method-assign, assignment]

    return spoil


FRAME = torch.tensor([[0.0, 1e-3, 1e-3], [1e-3, 1.0, 1.0], [1e-3, 1.0, 1.0]])  # times Alder's true scores


def test_invented_verdict_is_contradicted_by_the_log_of_its_site(tmp_path):
    run = played(tmp_path / "run", "fedavg", 5, scoring(lambda scores: scores * FRAME), guard="on")
    assert not any("did not work" in text for text in sentences(verify_run(run, logs(run, "Birch", "Cedar"))))
    with pytest.raises(BadInput, match=r"line 3: verdict against Alder .* rounds 0, 1; .* one is untrue"):
        verify_run(run, logs(run, "Alder"))


def test_log_of_a_free_rider_agrees_with_its_verdict_and_with_the_model_that_it_gets_when_that_ends(tmp_path):
    run = played(tmp_path / "run", "fedavg", 9, rests=range(3), guard="on")
    lines = [json.loads(line)["guard"]["verdicts"] for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert (lines[2], lines[-1]) == (["Alder"], [])
    assert not any("did not work" in text for text in sentences(verify_run(run, logs(run))))


def test_verdict_without_a_common_step_is_not_shown(tmp_path):
    run = played(tmp_path / "run", "median", 5, scoring(lambda scores: scores * FRAME), guard="on")
    assert any("its log cannot show it" in text for text in sentences(verify_run(run, logs(run, "Alder"))))


@pytest.mark.parametrize("change", [paid, flagged, swapped])
def test_record_written_while_the_run_lasts_is_found_though_all_logs_acknowledge_it(tmp_path, change):
    run = played(tmp_path / "run", "fedce", spoil=on_record(change), guard="on")
    with pytest.raises(BadInput, match=r"(Alder|Birch)"):
        verify_run(run, logs(run))


def test_method_of_another_package_is_said_not_to_be_recomputed(run, monkeypatch):
    monkeypatch.setattr(Catalogue, "ours", [])
    found = verify_run(run)
    assert any("fedce is not ours" in text for text in sentences(found))
    assert found.moved.weight == 1.0


@pytest.mark.parametrize("spoilt", [{"counts": {}}, {"products": {"Zoe": {"Alder": 1.0}}}, {"scores": {}}, {"x": 1}])
def test_inputs_of_no_round_are_named(run, spoilt):
    forged_inputs = lambda record: record["inputs"].update(spoilt)  # noqa: E731
    rewritten(run / "ledger.jsonl", lambda lines: forged_inputs(lines[3]))
    closed_again(run)
    with pytest.raises(BadInput, match=r"line 4: (inputs of|not the record of a round: .*inputs)|num_samples of"):
        verify_run(run)


def paying(federation: Federation) -> None:
    """A server that in round 2 gives Birch three times its weight: in model, record and results alike."""

    def outcome(honest: Any, admission: Any, received: torch.Tensor) -> Any:
        weights = friend_first(honest.weights + 0.05)
        step = ((weights - honest.weights)[:, None] * admission.own).sum(dim=0)
        return replace(honest, weights=weights, models=(honest.models + step).to(honest.models.dtype))

    _deciding(federation, outcome)


def swapping(federation: Federation) -> None:
    """A server that swaps the model of round 2, and records the other one."""
    _deciding(federation, lambda honest, admission, received: replace(honest, models=honest.models + 0.01))


def _deciding(federation: Federation, outcome: Callable[..., Any], rounds: range = range(2, 3)) -> None:
    divide = federation.run_guard.divide_outcome

    def divided(admission: Any, given: Any, received: torch.Tensor) -> Any:
        honest = divide(admission, given, received)
        return outcome(honest, admission, received) if federation.round in rounds else honest

    federation.run_guard.divide_outcome = divided  # type: ignore[method-assign]


def dropping(federation: Federation) -> None:
    """A server that takes no rating of Alder's in round 2, as if it had not come."""
    take = federation.take

    def taken(answers: Any) -> None:
        task = federation.tasks().get("Alder")
        lost = isinstance(task, Evaluation) and task.purpose is Purpose.ROUND and federation.round == 2
        take(answers | {"Alder": Failure("no answer")} if lost else answers)

    federation.take = taken  # type: ignore[method-assign, assignment]


MADE_BY = "that the models are made by these weights"
DISHONEST: Mapping[str, tuple[Spoil, str]] = {  # by what the server does: what is not shown if it is not found
    "pays a friend": (paying, ""),
    "swaps a model": (swapping, MADE_BY),
    "drops a rating": (dropping, "why what Alder said of models in round 2 did not count"),
}


@pytest.mark.parametrize("what", DISHONEST)
@pytest.mark.parametrize(
    "method", [pytest.param(one, marks=() if one in ("fedce", "cffl") else pytest.mark.slow) for one in METHODS.ours]
)
def test_one_honest_log_finds_a_dishonest_server_of_every_method_or_verify_says_what_is_not_shown(
    tmp_path, method, what
):
    spoil, claim = DISHONEST[what]
    guard = {"guard": "off"} if method == "pooled" else {"guard": "on", "rate_every": 2}
    run = played(tmp_path / "run", method, spoil=spoil, **guard)
    rated = json.loads((run / "ledger.jsonl").read_text().splitlines()[2])["inputs"].get("ratings")
    found, open_claims = "", ()
    try:
        open_claims = sentences(verify_run(run, logs(run, "Alder")))
    except BadInput as error:
        found = str(error)
    if what == "drops a rating":
        assert not found
        assert any(claim in text for text in open_claims) == bool(rated)
    elif what == "swaps a model" and not build_method(method, {}).sums_updates:
        assert not found
        assert any(claim in text for text in open_claims)
    else:
        assert " in round 2: " in found
