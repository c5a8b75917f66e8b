"""The guard in a run: enrolment, ratings of models without a site, verdicts, what is recorded, resuming."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from certificates import issue
from one_in import one_in
from pretending import SITES, answers, enrolment, evaluated, tiny_plan
from stepping import Stepped as Federation

from fedmerit.contract import flat
from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.flat import Buffers
from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import log_payload, texts_digest
from fedmerit.evidence.signatures import Signer, read_certificate
from fedmerit.methods.registry import build_method
from fedmerit.schema.configuration.data import Preprocessing
from fedmerit.schema.messages import Answer, EnrolmentTask, Evaluated, Evaluation, Failure, ImportanceTask, Reply
from fedmerit.schema.records import TRAIN
from fedmerit.schema.results import read_results, read_table
from fedmerit.schema.scores import SERVER_SPLIT, Overlap
from fedmerit.server.exchange import Moment
from fedmerit.server.recorder import Recorder
from fedmerit.server.run_guard import RunGuard
from fedmerit_evaluation.results.views import Results


def play(federation: Federation, **arguments) -> None:
    while federation.work:
        federation.take(answers(federation, **arguments))


def plan(method: str = "fedce", rounds: int = 4, **settings):
    return tiny_plan(method, rounds, guard="on", rate_every=2, **settings)


def ledger(run: Path):
    return [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]


def test_sites_commit_before_round_0_and_are_held_to_it(tmp_path):
    federation = Federation(plan("fedavg", 2), SITES, tmp_path / "run")
    assert all(isinstance(task, EnrolmentTask) for task in federation.tasks().values())
    play(federation, change=lambda site, reply: replace(reply, num_samples=99) if site == "Birch" else reply)
    first, second = ledger(tmp_path / "run")
    assert first["guard"]["enrolled"]["Cedar"]["slices"]["training"] == 2
    assert first["rejected"]["Birch"] == "num_samples 99, at first it was 10"
    assert "enrolled" not in second["guard"]


@pytest.mark.parametrize("method", ["fedavg", "fedsac"])
def test_a_site_that_has_not_enrolled_counts_for_nothing_until_it_has(tmp_path, method):
    run, config = tmp_path / "run", plan(method, 4)
    federation = Federation(config, SITES, run, min_sites=2)
    federation.take(answers(federation) | {"Birch": Failure("asleep")})
    asked = []
    while federation.round < 3:
        asked.append((federation.round, type(next(iter(federation.tasks().values()))), set(federation.tasks())))
        fault = {"Birch": enrolment()} if asked[-1][:2] == (1, EnrolmentTask) else {}  # of round 0, in round 1
        if federation.round == 0 and asked[-1][1] is EnrolmentTask:
            fault = {"Birch": Failure("still asleep")}
        federation.take(answers(federation) | fault)
    if method == "fedsac":
        assert {frozenset(sites) for _, kind, sites in asked if kind is ImportanceTask} == {
            frozenset(("Alder", "Cedar"))
        }
    enrolling = [(round, sites) for round, kind, sites in asked if kind is EnrolmentTask]
    assert enrolling == [(0, {"Birch"}), (1, {"Birch"}), (2, {"Birch"})]
    federation = Federation(config, SITES, run, min_sites=2)  # another process
    while federation.round < 4:
        federation.take(answers(federation))
    records = ledger(run)
    assert [record["rejected"].get("Birch", "").removeprefix("reply: ") for record in records] == [
        "has not enrolled (asleep); it is asked to again",
        "has not enrolled (still asleep); it is asked to again",
        "has not enrolled (Enrolment.round: 0, expected 1); it is asked to again",
        "",
    ]
    assert [sorted(record["guard"].get("enrolled", {})) for record in records] == [
        ["Alder", "Cedar"], [], ["Birch"], [],
    ]  # fmt: skip


def asking(config=None) -> RunGuard:
    method = build_method("fedce", {})
    return RunGuard(config or plan(), method, capabilities(method), SITES, in_the_clear=True, rates=True)


def enrol(run_guard: RunGuard, change=lambda site, one: one) -> RunGuard:
    """Have all sites answer what ``change`` makes of their enrolments; a text is why there is none."""
    for exchange in run_guard.ask(SITES, Moment(0, "round 0", "", 0)):
        for place, site in enumerate(SITES):
            answer = change(site, enrolment(place=place))
            exchange.refuse(site, answer) if isinstance(answer, str) else exchange.take(site, answer)
    return run_guard


def test_why_a_site_has_not_enrolled_is_known_until_it_has():
    run_guard = asking()
    for absent in ({"Birch": "asleep", "Cedar": "away"}, {"Cedar": "away"}):  # Birch is late
        enrol(run_guard, lambda site, one, absent=absent: absent.get(site, one))
    assert run_guard.check_site("Birch") is None
    assert "(away)" in (run_guard.check_site("Cedar") or "")


def test_a_site_of_another_data_plan_is_not_enrolled():
    planned = Preprocessing((32, 32), 120.0, slice_distance=3.0, data_plan="5e" * 32)
    other = replace(planned, data_plan="6f" * 32).digest
    prepared = {"Alder": planned.digest, "Birch": other, "Cedar": ""}  # Cedar's folder does not say
    run_guard = asking(replace(plan(), preprocessing=planned))
    enrol(run_guard, lambda site, one: replace(one, preparation=prepared[site]))
    assert [site for site in SITES if run_guard.check_site(site)] == ["Birch"]
    assert "prepared by another data plan" in (run_guard.check_site("Birch") or "")


@pytest.mark.parametrize(
    ("stated", "refused"),
    [
        (("mr", "ct", "mr"), ["Birch"]),
        (("mr", "ct", ""), ["Birch"]),  # of equally many what the first states counts
        (("", "ct", ""), []),
        (("mr", "mr", "mr"), []),
    ],
)
@pytest.mark.parametrize("field", ["channels", "modality"])
def test_enrolments_of_other_channels_or_modality_are_refused(field, stated, refused):
    digests = {site: text and texts_digest([text]) for site, text in zip(SITES, stated, strict=True)}
    run_guard = enrol(asking(), lambda site, one: replace(one, **{field: digests[site]}))
    assert [site for site in SITES if run_guard.check_site(site)] == refused
    if refused:
        assert "than those of other sites; prepare all alike" in (run_guard.check_site("Birch") or "")


def test_a_site_that_stays_away_is_not_waited_for_to_enrol(tmp_path):
    federation = Federation(plan("fedavg", 2), SITES, tmp_path / "run", min_sites=2)
    federation.take({site: answer for site, answer in answers(federation).items() if site != "Birch"})
    assert federation.work == TRAIN
    federation.take({site: answer for site, answer in answers(federation).items() if site != "Birch"})
    assert (federation.round, federation.work) == (1, TRAIN)  # it was not heard: no enrolment is waited for
    federation.take(answers(federation))
    assert (federation.tasks().keys(), federation.exchange.is_complete()) == ({"Birch"}, True)


@pytest.mark.parametrize("split", ["validation", "testing"])
def test_evaluations_are_of_the_cases_that_were_enrolled(tmp_path, split):
    federation = Federation(plan("fedavg", 1), SITES, tmp_path / "run", min_sites=2)
    more = (Overlap("000", "prostate", 5, 2, 1), Overlap("001", "prostate", 5, 2, 1))
    change = {"change": lambda site, reply: replace(reply, overlaps=more) if site == "Birch" else reply}
    refused = "overlaps of 2 validation cases, it enrolled 1"
    if split == "validation":
        federation.take(answers(federation))
        federation.take(answers(federation, **change))
        assert ledger(tmp_path / "run")[0]["rejected"] == {"Birch": refused}
        return
    while federation.training or next(iter(federation.tasks().values())).split != split:
        federation.take(answers(federation))
    exchange = federation.exchange
    federation.take(answers(federation) | {"Birch": evaluated(federation, "Birch", cases=2)})
    assert exchange.faults() == {"Birch": refused.replace("validation", split)}


@pytest.mark.parametrize(("enrolled", "found", "fault"), [(0, 3, False), (4, 4, False), (4, 1, False), (4, 3, True)])
def test_a_script_is_held_to_the_evaluated_cases_that_it_names_unless_it_gives_one_mean(enrolled, found, fault):
    there = SimpleNamespace(enrolments={"Birch": SimpleNamespace(cases={"testing": enrolled})})
    there.config = SimpleNamespace(script=object())
    scores = [Overlap.of_score(f"{number:03d}", "dice", 0.5) for number in range(found)]
    assert bool(RunGuard.check_cases(there, "Birch", "testing", scores)) == fault


def test_fedces_error_is_what_the_others_measured(tmp_path):
    federation, asked = Federation(plan(share=True), SITES, tmp_path / "run"), []
    while federation.work:
        task = next(iter(federation.tasks().values()))
        if isinstance(task, Evaluation) and federation.training:
            asked.append((task.round, task.split, len(task.mixtures)))
        federation.take(answers(federation))
    assert asked == [(0, "validation", 3), (2, "validation", 3)]
    rows = read_results(tmp_path / "run").query("round == 1 and split == ''")
    said = rows[rows["quantity"] == "minus_error"].set_index("site")["value"]
    measured = rows[rows["quantity"] == "measured_error"].set_index("site")["value"]
    assert said.to_dict() == measured.to_dict()
    assert set(said.index) == set(SITES)
    away = rows[rows["quantity"] == "rater_distance"].set_index("site")["value"]
    assert (away >= 0).all()
    assert set(away.dropna().index) == set(SITES)


def test_leave_one_out_loss_without_a_site(tmp_path):
    """By how much their error rises, the mean of two others; of each rater the mean of what it says is the same."""
    dice = {"Alder": [10, 65, 75, 80], "Birch": [48, 99, 52, 60], "Cedar": [80, 80, 5, 90]}  # without each; with all
    federation = Federation(plan(error="others"), SITES, tmp_path / "run")
    while federation.work:
        task = next(iter(federation.tasks().values()))
        said = answers(federation)
        if isinstance(task, Evaluation) and federation.training:
            said = {
                site: replace(
                    said[site],
                    overlaps=tuple((Overlap("000", "prostate", tp, 100 - tp, 100 - tp),) for tp in dice[site]),
                )
                for site in said
            }
        federation.take(said)
    rows = read_results(tmp_path / "run").query("round == 1 and quantity == 'minus_error'").set_index("site")["value"]
    assert rows.to_dict() == pytest.approx({"Alder": 0.11, "Birch": 0.125, "Cedar": 0.065})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("absolute", {"Alder": 0.4, "Birch": 0.25, "Cedar": 0.15}),
        ("others", {"Alder": 0.2, "Birch": 0.05, "Cedar": 0}),  # without Cedar the model is better
    ],
)
def test_a_servers_own_images_say_it_only(tmp_path, monkeypatch, error, expected):
    asked = []

    def evaluate(task):
        asked.append((task.round, task.split, len(task.mixtures)))
        dice = [60, 75, 85, 80][: len(task.mixtures)]  # without each; with all, where that is compared
        overlaps = tuple((Overlap("000", "prostate", tp, 100 - tp, 100 - tp),) for tp in dice)
        return Evaluated(task.round, overlaps, torch.zeros(len(dice), task.bins))

    federation = Federation(plan(error=error, share=True), SITES, tmp_path / "run")
    federation.evaluator = replace(federation.evaluator, images=SimpleNamespace(evaluate=evaluate))
    while federation.work:
        assert not (federation.training and any(isinstance(task, Evaluation) for task in federation.tasks().values()))
        federation.take(answers(federation))
    models = 3 + (error == "others")
    assert asked == [(0, SERVER_SPLIT, models), (2, SERVER_SPLIT, models)]
    rows = read_results(tmp_path / "run").query("round == 1 and quantity == 'minus_error'").set_index("site")["value"]
    assert rows.to_dict() == pytest.approx(expected)


def test_by_default_nobody_rates_and_fedces_error_is_the_sites_own_at_most_the_largest_of_the_others(tmp_path):
    def change(site: str, reply: Reply) -> Reply:
        return replace(reply, values={"cosine": 0.5, "minus_error": 0.25 + 0.25 * SITES.index(site)})

    config = plan()
    federation = Federation(config, SITES, tmp_path / "run")
    while federation.work:
        tasks = federation.tasks().values()
        assert not (federation.training and any(isinstance(task, Evaluation) for task in tasks))
        federation.take(answers(federation, change=change))
    assert not config.share_models
    rows = read_results(tmp_path / "run").query("round == 1 and split == ''")
    said = rows[rows["quantity"] == "minus_error"].set_index("site")["value"]
    assert said.to_dict() == {"Alder": 0.25, "Birch": 0.5, "Cedar": 0.5}
    assert rows[rows["quantity"] == "measured_error"]["value"].isna().all()


def test_a_verdict_has_each_site_test_only_its_own_model(tmp_path):
    """The model that a withheld site keeps is what it trained itself: nobody else tests it."""
    federation, tested = Federation(plan("fedavg", 8), SITES, tmp_path / "run"), []
    while federation.work:
        tasks = federation.tasks()
        if federation.round == 8 and all(isinstance(task, Evaluation) for task in tasks.values()):
            tested.append(tasks)
        federation.take(answers(federation, change=idle))
    assert ledger(tmp_path / "run")[-1]["guard"]["verdicts"] == ["Birch"]
    assert all(len(task.models) == 1 for tasks in tested for task in tasks.values())
    matrix = json.loads((tmp_path / "run" / "cross_site_val" / "cross_val_results.json").read_text())
    assert {site: set(of) for site, of in matrix.items()} == {site: {site} for site in SITES}


def test_leave_one_out_loss_needs_raters_and_the_guard():
    for images in (False, True):
        config = plan(error="others", share=None if not images else False, server_images=images)
        assert config.share_models != images
        assert config.guard.rate_every == 2
    for settings, words in (
        ({"guard": "on", "rate_every": 0}, "rate_every=0: fedce needs the others' error"),
        ({"guard": "off"}, "guard=off: fedce needs the others' error"),
        (
            {"guard": "on", "rate_every": 2, "share": False},
            "error=others: .* --server-sites, or add --share-models if all sites agree",
        ),
    ):
        with pytest.raises(BadInput, match=words):
            tiny_plan("fedce", 4, error="others", **settings)


def idle(site: str, reply: Reply) -> Reply:
    """Birch rides; Cedar goes the others' way, or there were no two to compare it with."""
    factors = {"Alder": 1.0, "Birch": 0.0, "Cedar": -1.0}
    return replace(reply, update=factors[site] * reply.update)


def test_a_verdict_withholds_weight_and_model_and_is_recorded(tmp_path):
    config = plan("fedavg", 6)
    federation = Federation(config, SITES, tmp_path / "run")
    play(federation, change=idle)
    last = ledger(tmp_path / "run")[-1]
    assert last["guard"]["verdicts"] == ["Birch"]
    assert last["guard"]["evidence"]["Birch"] > 0
    assert last["weights"]["Birch"] == 0
    assert sum(last["weights"].values()) == pytest.approx(1)
    rows = read_results(tmp_path / "run").query("round == 5 and site == 'Birch' and split == ''")
    values = rows.set_index("quantity")["value"]
    assert (values["verdict"], values["contribution"], values["reputation"]) == (1, 0, 0)
    models = federation.models.parameters
    assert models.shape[0] == 3
    assert torch.equal(models[0], models[2])
    assert not torch.equal(models[0], models[1])


@pytest.mark.parametrize("method", ["fedavg", "fedce", "cffl"])
def test_whose_reward_is_withheld_is_sent_no_model_of_the_others_to_rate_or_to_test(tmp_path, method):
    run = tmp_path / "run"
    federation = Federation(plan(method, 8, share=True), SITES, run)
    rated, tested = [], {}
    while federation.work:
        tasks = federation.tasks()
        if all(isinstance(task, Evaluation) for task in tasks.values()):
            if federation.round == 8:
                tested.setdefault(tasks["Alder"].split, tasks)  # of the final models first
            elif federation.round > 3:
                rated.append(sorted(tasks))
        federation.take(answers(federation, change=idle))
    models = federation.models.parameters
    assert ledger(run)[-1]["guard"]["verdicts"] == ["Birch"]
    assert all(asked == ["Alder", "Cedar"] for asked in rated)
    assert bool(rated) == (method != "fedavg")
    assert torch.equal(tested["testing"]["Birch"].models, models[1:2])
    assert tested["testing"]["Alder"].count == 3
    matrix = json.loads((run / "cross_site_val" / "cross_val_results.json").read_text())
    assert {site: set(of) for site, of in matrix.items()} == {
        "Alder": set(SITES),
        "Birch": {"Birch"},
        "Cedar": set(SITES),
    }
    rows = read_results(run).query("split == 'union' and quantity == 'dice'")
    testers = {site: set(of["case"].str.partition("/")[0]) for site, of in rows.groupby("site")}
    assert testers == {"Alder": {"Alder", "Cedar"}, "Birch": set(SITES), "Cedar": {"Alder", "Cedar"}}


@pytest.mark.parametrize("on_verdict", ["withhold", "exclude"])
def test_nobody_gets_the_others_model_by_missing_a_round(tmp_path, on_verdict):
    """Birch, whose reward is withheld, does not answer in round 5, nor in the last one."""
    federation = Federation(plan("fedavg", 8, on_verdict=on_verdict), SITES, tmp_path / "run")
    sent, statistics, tested = [], list[Buffers](), {}

    def change(site: str, reply: Reply) -> Reply:
        buffers = {name: value + SITES.index(site) for name, value in reply.buffers.items()}
        return replace(idle(site, reply), buffers=buffers)

    while federation.work:
        tasks, round = federation.tasks(), federation.round
        if federation.work == TRAIN and round > 3:
            sent.append((tasks["Birch"].parameters, tasks["Alder"].parameters))
            statistics.append(tasks["Birch"].buffers)
        if all(isinstance(task, Evaluation) for task in tasks.values()) and round == 8:
            tested.setdefault(tasks["Alder"].split, tasks)
        missing = {"Birch": Failure("asleep")} if round in (5, 7) and federation.work == TRAIN else {}
        federation.take(answers(federation, change=change) | missing)
    assert all(not torch.equal(own, others) for own, others in sent)
    assert torch.equal(sent[2][0], sent[1][0])  # what it trained on in round 5 was not heard of
    assert torch.equal(tested["testing"]["Birch"].models, sent[-1][0][None])
    for earlier, later in ((statistics[1], statistics[2]), (statistics[-1], tested["testing"]["Birch"].buffers[0])):
        assert earlier
        assert all(torch.equal(value, later[name]) for name, value in earlier.items())
    last = ledger(tmp_path / "run")[-1]
    assert last["guard"]["verdicts"] == ["Birch"]
    assert "Birch" not in last["participants"]


def test_a_verdict_leaves_the_others_one_model_with_the_mean_of_their_statistics(tmp_path):
    sent = {}

    def change(site: str, reply: Reply) -> Reply:
        buffers = {name: value + SITES.index(site) for name, value in reply.buffers.items()}
        sent[site] = replace(idle(site, reply), buffers=buffers)
        return sent[site]

    federation = Federation(plan("fedavg", 6), SITES, tmp_path / "run")
    play(federation, change=change)
    assert ledger(tmp_path / "run")[-1]["guard"]["verdicts"] == ["Birch"]
    models = federation.models
    shares = torch.tensor([10, 2]) / 12
    mean = flat.average_buffers([sent["Alder"].buffers, sent["Cedar"].buffers], shares)
    assert mean
    for buffers, expected in zip(models.buffers, (mean, sent["Birch"].buffers, mean), strict=True):
        for name, value in buffers.items():
            torch.testing.assert_close(value, expected[name])
    saved = {path.stem: torch.load(path, weights_only=True) for path in (tmp_path / "run" / "models").glob("*.pt")}
    assert set(saved) == {"global", "Birch"}
    for name, value in mean.items():
        torch.testing.assert_close(saved["global"][name], value)
    models.take_estimates([{"mean": torch.full((1,), value)} for value in (1.0, 50.0, 7.0)], torch.tensor([10, 0, 2]))
    assert [float(buffers["mean"]) for buffers in models.buffers] == pytest.approx([2, 50, 2])


def test_values_are_observed_while_a_verdict_stands(tmp_path):
    config = plan("fedavg", 6, values=["multi_round"])
    play(Federation(config, SITES, tmp_path / "run"), change=idle)
    assert ledger(tmp_path / "run")[-1]["guard"]["verdicts"] == ["Birch"]
    observed = read_table(tmp_path / "run" / "values.csv")
    assert set(observed["round"]) == set(range(6))
    assert observed["value"].notna().all()


def test_after_a_verdict_sites_still_take_their_own_last_model(tmp_path):
    federation = Federation(plan("fedavg", 6, last_round="own"), SITES, tmp_path / "run")
    play(federation, change=idle)
    models = federation.models.parameters
    assert not torch.equal(models[0], models[2])
    assert {path.stem for path in (tmp_path / "run" / "models").glob("*.pt")} == set(SITES)


def test_a_run_that_was_interrupted_continues_as_if_it_had_not_been(tmp_path):
    config = plan("fedce", 6)
    whole = Federation(config, SITES, tmp_path / "whole")
    play(whole, change=idle)
    part = Federation(config, SITES, tmp_path / "part")
    while part.round < 4:
        part.take(answers(part, change=idle))
    again = Federation(config, SITES, tmp_path / "part")
    assert again.round == 4
    play(again, change=idle)
    assert torch.equal(again.models.parameters, whole.models.parameters)
    assert ledger(tmp_path / "part")[-1]["guard"] == ledger(tmp_path / "whole")[-1]["guard"]


@pytest.mark.parametrize("method", one_in(7, ["cgsv", "rffl", "cffl", "fedave", "eci", "dw", "eu", "fedsac"]))
def test_the_method_knows_what_withheld_sites_and_copies_train_from(tmp_path, method):
    """Birch rides, then works, then sends what Alder sends; another process takes over while a verdict stands."""
    own = {"standalone_rounds": 2, "importance_interval": 2} if method == "fedsac" else {}
    config, stood, alike, sent, began, kept, resumed = plan(method, 14, **own), [], [], {}, None, None, False

    def change(site: str, reply: Reply) -> Reply:
        reply = idle(site, reply) if site == "Cedar" or reply.round < 5 else reply
        if site == "Birch" and reply.round > 10:
            reply = replace(reply, update=sent["Alder"].update)
        sent[site] = reply
        return reply

    federation = Federation(config, SITES, tmp_path / "run")
    while federation.round < 13:
        if federation.round == 4 and federation.work == TRAIN and not resumed:
            federation, resumed = Federation(config, SITES, tmp_path / "run"), True
        round, began = (
            federation.round,
            federation.models.parameters.expand(3, -1) if federation.work == TRAIN else began,
        )
        federation.take(answers(federation, change=change))
        if federation.round > round:
            models = federation.models.parameters
            assert torch.equal(federation.state.models, models)
            stood.append(bool(federation.run_guard.history.evidence.against[1]))
            if stood[-1]:
                assert torch.equal(models[1], began[1] + sent["Birch"].update)
                assert not stood[-2] or torch.equal(began[1], kept)
            kept = models[1]
            alike.append(torch.equal(models[0], models[1]))
    assert stood == [False, False, *[True] * 5, *[False] * 6]
    assert alike[-1] == (method != "fedsac")  # whose sites hold different neurons


@pytest.mark.parametrize("method", one_in(2, ["fedavg", "fedce", "rffl", "cgsv", "cffl", "fedave", "fedci", "shapfed"]))
def test_sites_that_earn_as_one_keep_what_they_earned_whichever_of_them_is_away(tmp_path, method):
    """Alder and Birch enrolled the same cases; Alder is away in round 2, Birch in round 3."""
    config = plan(method, 5, values=["leave_one_out_loss"] if method == "fedavg" else ())
    federation = Federation(config, SITES, tmp_path / "run")
    while federation.work:
        given = answers(federation)
        if all(isinstance(task, EnrolmentTask) for task in federation.tasks().values()):
            given["Birch"] = replace(given["Birch"], fingerprint=given["Alder"].fingerprint)
        asleep = {2: "Alder", 3: "Birch"}.get(federation.round)
        if federation.work == TRAIN and asleep:
            given[asleep] = Failure("asleep")
        federation.take(given)
    table = read_results(tmp_path / "run").query("split == 'training' or split == ''")
    of_site = table[table["quantity"] == "weight"].pivot_table(index="round", columns="site", values="value")
    together = of_site[["Alder", "Birch"]].sum(axis=1)
    assert together[2] == pytest.approx(together[1], rel=0.5)  # of a newcomer it would be next to nothing
    assert together[3] == pytest.approx(together[2], rel=0.5)
    if config.values:
        rows = read_table(tmp_path / "run" / "values.csv")
        coalitions = rows[rows["quantity"] == "dice"].groupby("round")["coalition"].agg(lambda said: sorted(set(said)))
        assert coalitions[1] == ["Alder+Birch", "Alder+Birch+Cedar", "Cedar"]
        assert coalitions[2] == ["Birch", "Birch+Cedar", "Cedar"]
        assert coalitions[3] == ["Alder", "Alder+Cedar", "Cedar"]


def test_without_a_guard_nothing_is_asked_or_recorded_of_it(tmp_path):
    federation = Federation(tiny_plan("fedavg", 1), SITES, tmp_path / "run")
    assert federation.work == TRAIN
    play(federation)
    assert "guard" not in ledger(tmp_path / "run")[0]
    assert isinstance(federation.recorder, Recorder)
    assert "verdict" not in set(read_results(tmp_path / "run")["quantity"])


def test_no_file_of_a_run_shows_whether_an_image_was_trained_on(tmp_path):
    """In a run that is at work, and in one that is over: no digest of an image, nor one that follows from these."""
    run = tmp_path / "run"
    federation = Federation(plan("fedavg", 2), SITES, run)
    held = [enrolment(place=place).fingerprint for place in range(3)]
    shown = {texts_digest(of_site).encode() for of_site in held} | {one.encode() for of in held for one in of}
    shown.remove(b"0" * 32)  # the first digest of Alder, and part of the hash before a ledger's first record
    while federation.work:
        federation.take(answers(federation))
        files = [path for path in run.rglob("*") if path.is_file()]
        assert not [path for path in files for one in shown if one in path.read_bytes()]
    first, second = enrolment(), replace(enrolment(), seal="1f" * 16)
    assert not {*first.sealed().fingerprint} & {*second.sealed().fingerprint}  # of the same images


def test_sites_enrol_again_when_a_run_resumes_and_shared_images_are_known_again(tmp_path):
    def enrolled(federation: Federation, **changed: Answer) -> dict[str, Answer]:
        given = answers(federation)
        if "Birch" in given:
            given["Birch"] = replace(given["Birch"], fingerprint=enrolment(place=0).fingerprint)
        return given | changed

    run, config = tmp_path / "run", plan("fedavg", 3)
    federation = Federation(config, SITES, run, min_sites=2)
    federation.take(enrolled(federation))
    federation.take(answers(federation))
    federation = Federation(config, SITES, run, min_sites=2)
    alike = federation.run_guard.guard.enrolled.shared
    assert (int(alike.sum()), bool(alike[0, 1])) == (2, True)
    more = replace(enrolment(images=11), round=1)
    federation.take(enrolled(federation, Alder=more, Birch=Failure("asleep")))
    assert (
        federation.run_guard.not_enrolled["Alder"]
        == "enrolment of other cases or images than before the run was resumed"
    )
    assert torch.equal(federation.run_guard.guard.enrolled.shared, alike)
    federation.take(answers(federation))  # both count still, and are asked once more
    assert federation.tasks().keys() == {"Alder", "Birch"}
    federation.take(enrolled(federation))
    assert torch.equal(federation.run_guard.guard.enrolled.shared, alike)
    assert ledger(run)[1]["participants"] == list(SITES)


@pytest.mark.parametrize(
    "whose", one_in(2, ["its own", "none", "another site's", "of another round", "of another run"])
)
def test_what_a_site_says_of_its_log_is_signed_with_the_key_it_enrolled_with(tmp_path, whose):
    for name in ("root", *SITES):
        issue(tmp_path, name, None if name == "root" else "root")
    federation = Federation(plan("fedavg", 2), SITES, tmp_path / "run", root=read_certificate(tmp_path / "root.crt"))
    pems = {site: (tmp_path / f"{site}.crt").read_text() for site in SITES}
    keys = {site: Signer(tmp_path / f"{site}.key", tmp_path / f"{site}.crt") for site in SITES}
    federation.take({site: replace(one, certificate=pems[site]) for site, one in answers(federation).items()})

    def signed(site: str, head: str, round: int = 0, key: str = "") -> str:
        return f"{'ab' * 32} {keys[key or site].sign(log_payload(head, round, 'ab' * 32))}"

    head = federation.tasks()["Alder"].ledger
    given = {site: replace(one, log=signed(site, head)) for site, one in answers(federation).items()}
    said = {
        "its own": signed("Birch", head),
        "another site's": signed("Birch", head, key="Cedar"),
        "none": "ab" * 32,
        "of another round": signed("Birch", head, round=1),
        "of another run": signed("Birch", "cd" * 32),
    }[whose]
    federation.take(given | {"Birch": replace(given["Birch"], log=said)})
    (record,) = ledger(tmp_path / "run")
    if whose == "its own":
        assert (record["rejected"], record["logs"]) == ({}, {site: one.log for site, one in given.items()})
        assert record["guard"]["enrolled"]["Birch"]["certificate"] == pems["Birch"]
    else:
        assert record["rejected"]["Birch"].startswith("the end of its log is not signed with the key that it enrolled")
        assert sorted(record["logs"]) == ["Alder", "Cedar"]


@pytest.mark.parametrize("method", ["fedavg", pytest.param("fedce", marks=pytest.mark.slow), "cffl"])
def test_zeros_in_10_of_15_rounds_earn_at_most_5_of_15_parts(tmp_path, method):
    """Birch sends zeros in 10 rounds and is honest at the end, or is honest all along."""

    def pay(zeros: int) -> dict[str, float]:
        def change(site: str, reply: Reply) -> Reply:
            return idle(site, reply) if site == "Birch" and reply.round < zeros else reply

        play(Federation(replace(plan(method, 15), share_models=True), SITES, tmp_path / f"{zeros}"), change=change)
        rounds = Results(read_results(tmp_path / f"{zeros}")).rounds
        earned = rounds.contributions.xs("Birch", level="site").iloc[0]
        found = {name: float(earned[name]) for name in ("weight", "mean_weight", "mean_contribution")}
        return found | ({"quota": float(rounds.of("quota")["Birch"].iloc[-1])} if method == "cffl" else {})

    honest, found = pay(0), pay(10)
    assert {name: found[name] / honest[name] <= 1 / 3 for name in honest} == dict.fromkeys(honest, True)
