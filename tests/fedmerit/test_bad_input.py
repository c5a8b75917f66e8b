"""What cannot be used is refused: on the command line before anything is written, on the server reply by reply."""

import fcntl
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from measured import rows
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from stepping import Stepped as Federation

from fedmerit.configuration.run import TASKS, RunConfiguration, make_configuration
from fedmerit.errors import RunFailed
from fedmerit.files import read_json, write_json
from fedmerit.flare.translation import answer_to_model, model_to_reply, model_to_task, task_to_model
from fedmerit.records.ledger import verify
from fedmerit.records.results import read_results
from fedmerit.seeds import random_seed
from fedmerit.training.networks import initial_network
from fedmerit.training.overlaps import Overlap
from fedmerit.wire.messages import Evaluated, Failure, Reply

# The command line: exit code 2, a message that names the culprit, and nothing written


def refused(result, *words):
    assert result.exit_code == 2, result.output
    assert [word for word in words if word not in result.stderr] == [], result.stderr
    assert "Traceback" not in result.output


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("settings", "changes", "words"),
    [
        ((), {"method": "fedbest"}, ["'fedbest'", "standalone, fedavg, fedce"]),
        (("patience=3",), {}, ["'patience'", "combine", "batch_size", "width"]),
        (("combine=plus",), {"method": "fedavg"}, ["'combine'", "fedavg"]),
        (("in_channels=3",), {}, ["'in_channels'"]),
        (("combine=minus",), {}, ["combine", "minus", "times", "plus"]),
        (("lr=fast",), {}, ["lr", "fast"]),
        (("lr=-1",), {}, ["lr", "positive"]),
        (("lr=nan",), {}, ["lr", "positive"]),
        (("epochs=0",), {}, ["epochs", "1 to 1000"]),
        (("epochs=1.5",), {}, ["epochs", "1.5"]),
        (("augment=perhaps",), {}, ["augment", "perhaps"]),
        (("norm=layer",), {}, ["norm", "batch, instance, group"]),
        (("lr",), {}, ["--set lr", "NAME=VALUE"]),
        (("=3",), {}, ["--set", "NAME=VALUE"]),
        ((), {"rounds": 0}, ["rounds", "1 or more"]),
        ((), {"rounds": "many"}, ["--rounds", "integer"]),
        ((), {"threads": 0}, ["threads", "1 or more"]),
        ((), {"engine": "cloud"}, ["--engine", "cloud"]),
        ((), {"device": "abacus"}, ["abacus", "site1", "cpu, cuda"]),
        ((), {"device": "site2=abacus"}, ["abacus", "site2"]),
        ((), {"device": "site2="}, ["site2=", "SITE=DEVICE"]),
        ((), {"device": "site9=cpu"}, ["no site site9", "site1, site2, site3"]),
        ((), {"seed": -5}, ["seed=-5", "0 or more"]),
        (("width=99999999999",), {}, ["width=99999999999", "1 to 512"]),
        ((), {"device": "cuda:77"}, ["cuda:77", "site1"]),
        (("depth=6",), {}, ["32x32", "depth 6", "--size"]),
        ((), {"method": None}, ["--method"]),
        ((), {"sites": None}, ["--sites"]),
        ((), {"sites": "nowhere"}, ["nowhere", "fedmerit prepare"]),
    ],
)
def test_option_that_cannot_be_used(fedmerit, options, run, settings, changes, words):
    refused(fedmerit("run", "--out", run, *options(*settings, **changes)), *words)
    assert not run.exists()


def test_run_without_out(fedmerit, options):
    refused(fedmerit("run", *options()), "--out")


def spoil_site_json(**changes: Any) -> Callable[[Path], None]:
    return lambda site: write_json(site / "site.json", read_json(site / "site.json") | changes)


def empty_training(site: Path) -> None:
    write_json(site / "datalist.json", read_json(site / "datalist.json") | {"training": []})


def first_array(site: Path) -> Path:
    return site / read_json(site / "datalist.json")["validation"][0]["image"]


def cut_array(site: Path) -> None:
    file = first_array(site)
    file.write_bytes(file.read_bytes()[:200])


SPOILED_SITES = {
    "site.json is not JSON": (lambda site: (site / "site.json").write_text("{"), ["site2/site.json"]),
    "site.json lacks a field": (lambda site: write_json(site / "site.json", {"name": "site2"}), ["site2", "'task'"]),
    "no datalist.json": (lambda site: (site / "datalist.json").unlink(), ["site2/datalist.json"]),
    "datalist.json lacks a split": (lambda site: write_json(site / "datalist.json", {}), ["site2", "'training'"]),
    "another name than its folder": (spoil_site_json(name="elsewhere"), ["site2", "'elsewhere'"]),
    "another image size": (spoil_site_json(image_size=[64, 64]), ["site2", "(64, 64)", "(32, 32)"]),
    "other labels": (spoil_site_json(labels=["prostate", "bladder"]), ["site2", "bladder"]),
    "another task": (spoil_site_json(task="fundus"), ["site2", "fundus"]),
    "no training case": (empty_training, ["site2", "training split is empty"]),
    "an array is cut": (cut_array, ["site2", "_image.npy", "fedmerit prepare"]),
    "an array is missing": (lambda site: first_array(site).unlink(), ["site2", "_image.npy", "not found"]),
    "an array is text": (lambda site: first_array(site).write_text("pixels"), ["site2", "_image.npy"]),
    "an array of another shape": (
        lambda site: np.save(first_array(site), np.zeros((10, 1, 16, 16), np.float32)),
        ["site2", "_image.npy", "(10, 1, 16, 16)"],
    ),
}


@pytest.mark.parametrize("engine", ["local", "sim"])
@pytest.mark.parametrize("spoiled", SPOILED_SITES)
def test_site_that_cannot_be_used(fedmerit, options, own_sites, run, spoiled, engine):
    spoil, words = SPOILED_SITES[spoiled]
    spoil(own_sites / "site2")
    refused(fedmerit("run", "--out", run, *options(sites=own_sites, engine=engine)), *words)
    assert not run.exists()


def test_folder_without_sites(fedmerit, options, tmp_path, run):
    (tmp_path / "bare").mkdir()
    refused(fedmerit("run", "--out", run, *options(sites=tmp_path / "bare")), str(tmp_path / "bare"), "no site folders")
    assert not run.exists()


@pytest.mark.parametrize("method", ["fedavg", "fedce"])
def test_single_site_is_told_of_standalone(fedmerit, options, own_sites, run, method):
    for name in ("site2", "site3"):
        shutil.rmtree(own_sites / name)
    refused(fedmerit("run", "--out", run, *options(sites=own_sites, method=method)), "site1", "--method standalone")
    assert not run.exists()


def test_run_that_exists_is_left_alone(fedmerit, options, own_run):
    before = contents(own_run)
    refused(fedmerit("run", "--out", own_run, *options()), str(own_run), "--resume")
    assert contents(own_run) == before


def test_folder_of_something_else_is_left_alone(fedmerit, options, run):
    run.mkdir()
    (run / "thesis.txt").write_text("all of it")
    refused(fedmerit("run", "--out", run, *options()), str(run))
    assert contents(run) == {"thesis.txt": b"all of it"}


@pytest.mark.parametrize("out", ["thesis.txt", "thesis.txt/run"])
def test_file_in_the_way_of_the_run_folder(fedmerit, options, tmp_path, out):
    (tmp_path / "thesis.txt").write_text("all of it")
    refused(fedmerit("run", "--out", tmp_path / out, *options()), str(tmp_path / out))
    assert (tmp_path / "thesis.txt").read_text() == "all of it"


def test_evaluate_with_a_spoiled_model_names_it(fedmerit, own_run, sites):
    (own_run / "models/global.pt").write_bytes(b"junk")
    refused(fedmerit("evaluate", own_run, "--sites", sites), str(own_run / "models/global.pt"))


@pytest.mark.parametrize("options", [("--min-sites", 0), ("--rounds", 0), ("--set", "depth=1")])
def test_export_with_a_parameter_that_cannot_be_used(fedmerit, tmp_path, options):
    job = tmp_path / "job"
    refused(fedmerit("export", "--method", "fedce", "--task", "prostate", "--out", job, *options), "=", "expected")
    assert not job.exists()


@pytest.mark.parametrize("out", ["nothing", "bare"])
def test_resume_of_what_is_no_run(fedmerit, tmp_path, out):
    (tmp_path / "bare").mkdir()
    refused(fedmerit("run", "--resume", "--out", tmp_path / out), "run.json")
    assert not (tmp_path / "nothing").exists()
    assert list((tmp_path / "bare").iterdir()) == []


@pytest.mark.parametrize(
    ("file", "content"),
    [("run.json", b"{}"), ("checkpoint.pt", b"half of it"), ("checkpoint.pt", b""), ("ledger.jsonl", b"\xff\n" * 3)],
    ids=["run.json lacks everything", "checkpoint is none", "checkpoint is empty", "ledger is no text"],
)
def test_resume_of_a_spoiled_run_names_the_file(fedmerit, own_run, file, content):
    (own_run / file).write_bytes(content)
    before = contents(own_run)
    refused(fedmerit("run", "--resume", "--out", own_run), str(own_run / file))
    assert contents(own_run) == before


@pytest.mark.parametrize(
    ("settings", "changes", "word"),
    [
        ((), {"method": "fedavg"}, "method"),
        ((), {"rounds": 4}, "rounds"),
        ((), {"seed": 1}, "seed"),
        ((), {"engine": "sim"}, "engine"),
        ((), {"threads": 2}, "threads"),
        ((), {"device": "cpu"}, "device"),
        ((), {"sites": "elsewhere"}, "sites"),
        (("combine=plus",), {}, "combine"),
        (("lr=0.01",), {}, "lr"),
    ],
)
def test_resume_with_another_option(fedmerit, options, own_run, settings, changes, word):
    before = contents(own_run)
    refused(fedmerit("run", "--resume", "--out", own_run, *options(*settings, **changes)), str(own_run), word)
    assert contents(own_run) == before


def test_resume_on_other_sites(fedmerit, options, own_sites, run, tmp_path):
    assert fedmerit("run", "--out", run, *options(sites=own_sites, rounds=1)).exit_code == 0
    shutil.rmtree(own_sites / "site3")
    refused(fedmerit("run", "--resume", "--out", run), "site1, site2", "site1, site2, site3")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds = ", ["TOML"]),
        ("round = 3", ["round", "rounds"]),
        ("[set]\npatience = 3", ["'patience'"]),
        ("[set]\nlr = 'fast'", ["lr", "fast"]),
        ("set = 3", ["set"]),
        ("rounds = 'many'", ["rounds", "many"]),
        ("rounds = 2.5", ["rounds", "2.5"]),
        ("rounds = true", ["rounds"]),
        ("seed = 'x'", ["seed", "x"]),
        ("threads = 'two'", ["threads", "two"]),
        ("engine = 'cloud'", ["engine", "cloud"]),
        ("method = 3", ["method", "3"]),
        ("device = 1", ["device", "1"]),
        ("sites = 5", ["sites", "5"]),
    ],
)
def test_config_file_that_cannot_be_used(fedmerit, options, tmp_path, run, text, words):
    config = tmp_path / "run.toml"
    config.write_text(text)
    name = text.split()[0]
    given = options(**({name: None} if name in ("rounds", "engine", "method", "sites") else {}))
    refused(fedmerit("run", "--out", run, "--config", config, *given), *words)
    assert not run.exists()


def test_config_file_that_is_not_there(fedmerit, options, tmp_path, run):
    refused(fedmerit("run", "--out", run, "--config", tmp_path / "no.toml", *options()), str(tmp_path / "no.toml"))
    assert not run.exists()


@pytest.mark.parametrize("engine", ["local", "sim"])
def test_second_process_on_one_run(fedmerit, trained, tmp_path, engine):
    whole = trained(engine=engine, threads=3) if engine == "sim" else trained()
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / "checkpoint.pt").unlink()
    before = contents(run)
    with (run / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused(fedmerit("run", "--resume", "--out", run), str(run), "another process")
    assert contents(run) == before


# The server, reply by reply


SITES = ("Alder", "Birch", "Cedar")
Answer = Reply | Failure


def tiny_plan(method: str = "fedce") -> RunConfiguration:
    return make_configuration(
        method, "prostate", 3, 0, TASKS["prostate"], {"width": 2, "depth": 2, "residual_units": 0}
    )


def good_reply(federation: Federation, site: str) -> Reply:
    """What a site that trains would send: a small update, moved statistics, plausible claims."""
    task = federation.tasks()[site]
    random = torch.Generator().manual_seed(random_seed(federation.round, site))

    def moved(value: torch.Tensor) -> torch.Tensor:
        return value + torch.rand(value.shape, generator=random) if value.is_floating_point() else value + 4

    return Reply(
        round=task.round,
        update=0.01 * torch.randn(task.parameters.shape, generator=random),
        buffers={name: moved(value) for name, value in task.buffers.items()},
        num_samples=10 + SITES.index(site),
        overlaps=(Overlap("000", "prostate", 5, 2, 1),),
        values={"cosine": 0.25, "minus_error": 0.5} if federation.method.asks and task.weight is not None else {},
        train_loss=0.5,
        seconds=1.0,
    )


def federate(
    run: Path, spoil: Callable[[Reply], Answer | None], rounds: tuple[int, ...], method: str = "fedce"
) -> Path:
    """Three rounds; in the ``rounds`` given Birch sends what ``spoil`` makes of its reply, or nothing for `None`."""
    federation = Federation(tiny_plan(method), SITES, run)
    while federation.training:
        answers: dict[str, Answer | None] = {site: good_reply(federation, site) for site in SITES}
        if federation.round in rounds:
            answers["Birch"] = spoil(good_reply(federation, "Birch"))
        federation.take({site: answer for site, answer in answers.items() if answer is not None})
    models = len(federation.tasks()["Birch"].mixtures)
    overlaps = ((Overlap("000", "prostate", 5, 2, 1),),) * models
    federation.take({site: Evaluated(federation.round, overlaps, torch.zeros(models, 0)) for site in SITES})
    assert federation.finished
    return run


def with_first_entry(value: float) -> Callable[[Reply], Reply]:
    def spoil(reply: Reply) -> Reply:
        update = reply.update.clone()
        update[0] = value
        return replace(reply, update=update)

    return spoil


def with_buffers(change: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[Reply], Reply]:
    return lambda reply: replace(reply, buffers={name: change(name, value) for name, value in reply.buffers.items()})


def with_values(**values: Any) -> Callable[[Reply], Reply]:
    return lambda reply: replace(reply, values={**reply.values, **values})


def with_parts(**parts: Any) -> Callable[[Reply], Reply]:
    return lambda reply: replace(reply, **parts)


SPOILED_REPLIES: Mapping[str, tuple[Callable[[Reply], Answer | None], str]] = {
    "NaN in the update": (with_first_entry(float("nan")), "NaN"),
    "infinite entry in the update": (with_first_entry(float("-inf")), "infinite"),
    "update too short": (lambda reply: replace(reply, update=reply.update[:-1]), "shape"),
    "update with two dimensions": (lambda reply: replace(reply, update=reply.update[None]), "shape"),
    "no update": (with_parts(update=torch.empty(0)), "shape"),
    "update in double precision": (lambda reply: replace(reply, update=reply.update.double()), "float64"),
    "update of integers": (lambda reply: replace(reply, update=reply.update.long()), "int64"),
    "no buffers": (with_parts(buffers={}), "buffers"),
    "further buffers": (
        lambda reply: replace(reply, buffers={**reply.buffers, "more": torch.zeros(1)}),
        "buffers of other names",
    ),
    "buffers of another shape": (with_buffers(lambda name, value: value.reshape(-1)[:1].repeat(9)), "buffers of other"),
    "buffers of another type": (with_buffers(lambda name, value: value.double()), "buffers of other"),
    "NaN in the buffers": (
        with_buffers(lambda name, value: value * float("nan") if value.is_floating_point() else value),
        "buffers with NaN",
    ),
    "num_samples 0": (with_parts(num_samples=0), "num_samples 0"),
    "num_samples negative": (with_parts(num_samples=-5), "num_samples -5"),
    "num_samples True": (with_parts(num_samples=True), "num_samples True"),
    "num_samples a float": (with_parts(num_samples=11.0), "num_samples 11.0"),
    "num_samples a text": (with_parts(num_samples="11"), "num_samples 11"),
    "num_samples beyond 64 bits": (with_parts(num_samples=2**63), "num_samples 9223372036854775808"),
    "num_samples of a country": (with_parts(num_samples=2**40), "num_samples 1099511627776"),
    "num_samples None": (with_parts(num_samples=None), "num_samples None"),
    "value not asked for": (with_values(loyalty=1.0), "'loyalty'"),
    "minus_error of a million": (with_values(minus_error=1e6), "minus_error"),
    "minus_error NaN": (with_values(minus_error=float("nan")), "minus_error nan"),
    "minus_error negative": (with_values(minus_error=-0.1), "minus_error -0.1"),
    "cosine beyond 1": (with_values(cosine=1.5), "cosine 1.5"),
    "cosine infinite": (with_values(cosine=float("-inf")), "cosine -inf"),
    "reply of an earlier round": (lambda reply: replace(reply, round=reply.round - 1), "reply of round 0 in round 1"),
    "reply of a later round": (lambda reply: replace(reply, round=reply.round + 1), "reply of round 2 in round 1"),
    "failure at the site": (lambda reply: Failure("out of memory"), "out of memory"),
    "no reply": (lambda reply: None, "no reply"),
}


@pytest.fixture(scope="module")
def sat_out(tmp_path_factory):
    """The run in which Birch took no part in round 1."""
    run = tmp_path_factory.mktemp("server") / "run"
    return federate(run, lambda reply: Failure("sat out"), rounds=(1,))


@pytest.mark.parametrize("spoiled", SPOILED_REPLIES)
def test_spoiled_reply_is_rejected_and_the_others_go_on(tmp_path, sat_out, assert_same_model, spoiled):
    spoil, word = SPOILED_REPLIES[spoiled]
    run = federate(tmp_path / "run", spoil, rounds=(1,))

    records = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert verify(run / "ledger.jsonl") == 3
    assert [list(record["rejected"]) for record in records] == [[], ["Birch"], []]
    assert word in records[1]["rejected"]["Birch"]
    assert records[1]["participants"] == ["Alder", "Cedar"]
    results = read_results(run)
    rejected = results[results["quantity"] == "rejected"]
    assert list(zip(rejected["round"], rejected["site"], rejected["value"], strict=True)) == [(1, "Birch", 1.0)]
    birch = results[(results["round"] == 1) & (results["site"] == "Birch")]
    assert sorted(birch["quantity"]) == ["rejected", "weight"]
    assert birch.set_index("quantity")["value"]["weight"] == 0

    assert_same_model(sat_out / "models/global.pt", run / "models/global.pt")
    assert rows(sat_out) == rows(run)
    model = [json.loads(line)["model"] for line in (sat_out / "ledger.jsonl").read_text().splitlines()]
    assert [record["model"] for record in records] == model


@pytest.mark.parametrize("method", ["fedavg", "standalone"])
def test_value_that_the_method_does_not_ask_for(tmp_path, method, assert_same_model):
    run = federate(tmp_path / "run", with_values(minus_error=0.5), (1,), method)
    same = federate(tmp_path / "other/run", lambda reply: None, (1,), method)
    assert rows(run) == rows(same)
    names = ("global",) if method == "fedavg" else SITES
    for name in names:
        assert_same_model(run / f"models/{name}.pt", same / f"models/{name}.pt")


def test_site_rejected_in_every_round_changes_nothing(tmp_path, assert_same_model):
    runs = [
        federate(tmp_path / str(number) / "run", spoil, rounds=(0, 1, 2))
        for number, spoil in enumerate([with_first_entry(float("nan")), lambda reply: None])
    ]
    assert_same_model(*(run / "models/global.pt" for run in runs))
    assert rows(runs[0]) == rows(runs[1])


def test_all_rejected_ends_the_run_with_every_reason(tmp_path):
    federation = Federation(tiny_plan(), SITES, tmp_path)
    federation.take({site: good_reply(federation, site) for site in SITES})
    before = contents(tmp_path)
    answers = {"Alder": replace(good_reply(federation, "Alder"), num_samples=0), "Birch": Failure("out of memory")}
    with pytest.raises(RunFailed, match="round 1") as caught:
        federation.take(answers)
    for word in ("Alder: num_samples 0", "Birch: out of memory", "Cedar: no reply"):
        assert word in str(caught.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "overlap",
    [
        Overlap("000", "prostate", "many", 2, 1),
        Overlap("000", "prostate", float("nan"), 2, 1),
        Overlap("000", "prostate", -5, 2, 1),
        Overlap("000", "bladder", 5, 2, 1),
        Overlap("Doe, Jane", "prostate", 5, 2, 1),
    ],
    ids=["text for a count", "NaN for a count", "negative count", "unknown label", "a name for a case"],
)
def test_overlaps_that_are_none_reject_the_reply(tmp_path, sat_out, overlap):
    run = federate(tmp_path / "run", with_parts(overlaps=(overlap,)), rounds=(1,))
    assert rows(sat_out) == rows(run)


def test_negative_variances_reject_the_reply(tmp_path, sat_out, assert_same_model):
    spoil = with_buffers(lambda name, value: value - 1e6 if name.endswith("running_var") else value)
    run = federate(tmp_path / "run", spoil, rounds=(1,))
    assert_same_model(sat_out / "models/global.pt", run / "models/global.pt")


# NVFlare's messages


@pytest.fixture
def federation(tmp_path):
    federation = Federation(tiny_plan(), SITES, tmp_path / "run")
    federation.take({site: good_reply(federation, site) for site in SITES})
    return federation


def over_the_wire(model):
    return FLModelUtils.from_shareable(FLModelUtils.to_shareable(model))


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


@pytest.mark.parametrize("known", [True, False])
def test_task_arrives_as_it_was_sent(federation, known):
    task = federation.tasks()["Birch"] if known else replace(federation.tasks()["Birch"], weight=None, data_share=None)
    arrived = model_to_task(over_the_wire(task_to_model(task, federation.network, 3)), federation.network)
    assert torch.equal(arrived.parameters, task.parameters)
    assert same(arrived.buffers, task.buffers)
    assert (arrived.round, arrived.weight, arrived.data_share) == (task.round, task.weight, task.data_share)


def test_reply_arrives_as_it_was_sent(federation):
    reply = good_reply(federation, "Birch")
    arrived = model_to_reply(over_the_wire(answer_to_model(reply, federation.network)), federation.network)
    assert isinstance(arrived, Reply)
    assert torch.equal(arrived.update, reply.update)
    assert same(arrived.buffers, reply.buffers)
    rest = ("round", "num_samples", "overlaps", "values", "train_loss", "seconds")
    assert [getattr(arrived, name) for name in rest] == [getattr(reply, name) for name in rest]


def first(params: Mapping[str, Any]) -> str:
    return next(iter(params))


SPOILED_MODELS: Mapping[str, Callable[[Any], object]] = {
    "a parameter too many": lambda model: model.params.update(more=np.zeros(1, np.float32)),
    "a parameter missing": lambda model: model.params.pop(first(model.params)),
    "a parameter of another shape": lambda model: model.params.update({first(model.params): np.zeros(3, np.float32)}),
    "a parameter of text": lambda model: model.params.update({first(model.params): np.array(["a", "b"])}),
    "a parameter of objects": lambda model: model.params.update({first(model.params): np.array([None, {}])}),
    "a parameter of nothing": lambda model: model.params.update({first(model.params): None}),
    "parameters without names": lambda model: setattr(model, "params", [1, 2]),
    "no meta": lambda model: setattr(model, "meta", None),
    "no round": lambda model: setattr(model, "current_round", None),
    "a round that is text": lambda model: setattr(model, "current_round", "first"),
    "an infinite round": lambda model: setattr(model, "current_round", float("inf")),
    "buffers without names": lambda model: model.meta.update(buffers=[1]),
    "buffers of text": lambda model: model.meta.update(buffers={"a": "b"}),
    "overlaps without counts": lambda model: model.meta.update(overlaps=[{"case": "000"}]),
    "overlaps with more": lambda model: model.meta["overlaps"][0].update(patient="Doe"),
    "overlaps that are a number": lambda model: model.meta.update(overlaps=3),
    "a value that is text": lambda model: model.meta.update(values={"cosine": "much"}),
    "values without names": lambda model: model.meta.update(values=[0.5]),
    "a loss that is text": lambda model: model.meta.update(train_loss="low"),
    "seconds that are a list": lambda model: model.meta.update(seconds=[1.0]),
    **{
        f"no {name}": lambda model, name=name: model.meta.pop(name)
        for name in ("buffers", "overlaps", "values", "num_samples", "train_loss", "seconds")
    },
}


@pytest.mark.parametrize("spoiled", list(SPOILED_MODELS))
def test_message_that_is_none_is_a_failure(federation, spoiled):
    model = over_the_wire(answer_to_model(good_reply(federation, "Birch"), federation.network))
    SPOILED_MODELS[spoiled](model)
    assert isinstance(model_to_reply(model, federation.network), Failure)


def test_message_in_double_precision_gets_no_further_than_the_server(federation):
    model = answer_to_model(good_reply(federation, "Birch"), federation.network)
    model.params = {name: value.astype(np.float64) for name, value in model.params.items()}
    answers = {site: good_reply(federation, site) for site in SITES}
    answers["Birch"] = model_to_reply(model, initial_network(tiny_plan().network, 0))
    federation.take(answers)
    assert "float64" in federation.recorder.ledger.records[-1]["rejected"]["Birch"]


# All of it


def spoil_images(site: Path) -> None:
    """NaN in every training image."""
    for entry in read_json(site / "datalist.json")["training"]:
        image = np.load(site / entry["image"])
        image[:, :, 0, 0] = np.nan
        np.save(site / entry["image"], image)


@pytest.mark.parametrize("engine", ["local", "sim"])
def test_site_whose_images_are_nan_is_rejected_in_every_round(
    trained, own_sites, options, fedmerit, tmp_path, assert_same_model, engine
):
    spoil_images(own_sites / "site2")
    run = tmp_path / "spoiled/run"
    result = fedmerit("run", "--out", run, *options(method="fedavg", sites=own_sites, engine=engine, rounds=2))
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    assert [list(record["rejected"]) for record in records] == [["site2"]] * 2
    assert all("NaN" in record["rejected"]["site2"] for record in records)
    assert "site2 rejected: update with NaN" in result.output

    shutil.rmtree(own_sites / "site2")
    without = tmp_path / "without/run"
    fedmerit("run", "--out", without, *options(method="fedavg", sites=own_sites, rounds=2))
    assert_same_model(run / "models/global.pt", without / "models/global.pt")
    tested = read_results(run).query("split == 'testing' and quantity == 'dice'")
    assert set(tested["site"]) == {"site1", "site2", "site3"}
