"""The local engine: one result from every engine, all of it in the run folder, and pooled training."""

import json
import weakref
from dataclasses import replace

import pytest
import torch
from tiny import TINY

from fedmerit.contract import flat
from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.evidence.digests import digest
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Reply
from fedmerit.schema.results import QUANTITIES, read_results
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit.seeds import random_seed
from fedmerit.site.site import image_site
from fedmerit.trainers.factory import build_network, initial_network, pool_trainers
from fedmerit.trainers.monai.local_training import learning_rate, train
from fedmerit.trainers.monai.samples import Slices
from fedmerit.trainers.monai.trainer import POOLED

NAMES = ["site1", "site2", "site3"]
PAIR = ["site1", "site2"]


@pytest.fixture(scope="module")
def simulated(trained):
    """A run of two sites on the simulator, each in a process of its own, which take seconds to begin."""
    return trained(engine="sim", threads=2, only=",".join(PAIR))


def test_simulator_gives_what_the_local_engine_gives(simulated, trained, assert_same_run, processes_of):
    assert_same_run(trained(only=",".join(PAIR)), simulated)
    assert processes_of(simulated) == []


def test_no_update_outlives_its_round(sites, tmp_path):
    """The server lets go of what a round's sites sent before the next one's have trained."""
    sent, alive = [], []

    def note(tasks, answers):
        if replies := [one for one in answers.values() if isinstance(one, Reply)]:
            alive.append(sum(update() is not None for update in sent))
            sent.extend(weakref.ref(reply.update) for reply in replies)

    settings = TINY
    runs.create(tmp_path / "run", "fedce", sites, rounds=3, engine="local", settings=settings)
    runs.execute(tmp_path / "run", lambda record: None, on_exchange=note)
    assert len(sent) == 9
    assert alive == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "rounds"), [(3, 3), (2, 2)], ids=["a process per site", "in turns"])
def test_three_sites_on_the_simulator(trained, assert_same_run, processes_of, threads, rounds):
    run = trained(engine="sim", threads=threads, rounds=rounds)
    assert_same_run(trained(rounds=rounds), run)
    assert processes_of(run) == []


@pytest.mark.slow
def test_fewer_processes_than_sites_give_the_same(trained, assert_same_run, monkeypatch):
    """Where memory is short, NVFlare begins a process again for every site and task."""
    monkeypatch.setattr("fedmerit.engines.nvflare.program.free_memory", lambda: 0)
    assert_same_run(trained(rounds=2), trained(engine="sim", threads=2, rounds=2, again=1))


@pytest.mark.slow  # `test_every_method.py` has every method with the default settings
def test_group_norms_in_mixed_precision_are_the_same_on_both_engines(trained, assert_same_run):
    settings = ("augmentation=none", "norm=group", "residual_units=0", "amp=true")
    simulated = trained(*settings, method="fedavg", engine="sim", threads=3)
    assert_same_run(trained(*settings, method="fedavg"), simulated)


def test_standalone_is_every_site_training_on_its_own(trained, model, sites):
    run = trained(method="standalone")
    assert sorted(path.stem for path in (run / "models").glob("*.pt")) == NAMES
    config = RunConfiguration.from_dict(read_run(run)["plan"])
    for name in NAMES:
        slices = Slices(SiteFolder(sites / name).cases("training"))
        network = initial_network(config.network, config.seed).to(memory_format=torch.channels_last)
        vector = flat.get_parameters(network)
        for round in range(config.rounds):
            rate = learning_rate(config.training, round, config.rounds)
            train(network, slices, config.training, rate, random_seed(config.seed, name, round))
            vector = vector + (flat.get_parameters(network) - vector)  # updates travel, rounded to float32
            flat.load(network, vector, flat.get_buffers(network))
        expected = network.state_dict()
        found = model(run, name)
        assert [key for key in expected if not torch.equal(found[key], expected[key])] == []


def test_results_hold_every_quantity(trained, sites):
    results = read_results(trained())
    assert set(results["quantity"]) <= set(QUANTITIES)
    assert set(results["run"]) == {"run"}
    assert set(results["method"]) == {"fedce"}
    assert set(results["seed"]) == {0}
    known = {"num_samples", "train_loss", "weight", "reputation", "seconds", "bytes_sent", "bytes_received", "flagged"}
    known |= {"server_seconds", "norm", "cosine_to_mean", "largest_pair_cosine", "repeated"}
    later = known | {"contribution", "cosine", "minus_error", "cosine_to_previous"}
    training = results[(results["case"] == "") & (results["split"] == "")]
    for (round, site), rows in training.groupby(["round", "site"]):
        assert rows["quantity"].is_unique
        values = dict(zip(rows["quantity"], rows["value"], strict=True))
        assert set(values) == later, (round, site)
        assert {name for name, value in values.items() if value == value} == (later if round else known)
        assert values["num_samples"] == len(Slices(SiteFolder(sites / site).cases("training")))
        assert values["seconds"] > 0
        assert values["server_seconds"] > 0
        assert -1 <= values["cosine"] <= 1 or round == 0
        assert 0 <= values["minus_error"] <= 1 or round == 0
        assert values["flagged"] == 0
    weights = results[results["quantity"] == "weight"].groupby("round")["value"].sum()
    assert weights.to_list() == pytest.approx([1.0] * 3)


@pytest.mark.parametrize("method", ["fedce", "standalone"])
def test_results_hold_the_dice_of_every_case(trained, sites, method):
    results = read_results(trained(method=method))
    cases = results[results["case"] != ""]
    for site in open_sites(sites):
        own = cases[cases["site"] == site.name]
        for split, rounds in (("validation", [0, 1, 2, 3]), ("testing", [2])):
            part = own[own["split"] == split]
            assert sorted(part["round"].unique()) == rounds
            for _, rows in part.groupby("round"):
                table = rows.pivot(index=["case", "label"], columns="quantity", values="value")
                assert list(table.index) == [(f"{case:03d}", "prostate") for case in range(len(site.cases(split)))]
                tp, fp, fn = (table[f"{name}"] for name in ("true_positives", "false_positives", "false_negatives"))
                assert table["dice"].to_list() == pytest.approx((2 * tp / (2 * tp + fp + fn)).to_list())
                voxels = [int(case.label.sum()) for case in site.cases(split)]
                assert (tp + fn).to_list() == voxels
    assert set(cases["split"]) - {"testing_best"} == {"validation", "testing", "union"}
    surfaces = cases[cases["quantity"].isin(["hd95", "nsd"])]  # of final models only
    final = cases["split"].isin(["testing", "testing_best", "union"]) | (cases["round"] == 3)
    dice = cases[(cases["quantity"] == "dice") & final]
    for name in ("hd95", "nsd"):
        of_one = surfaces[surfaces["quantity"] == name]
        keys = ["site", "split", "round", "case", "label"]
        assert sorted(map(tuple, of_one[keys].to_numpy())) == sorted(map(tuple, dice[keys].to_numpy()))


def test_ledger_holds_the_digests_of_what_sites_sent(trained):
    run = trained()
    last = json.loads((run / "ledger.jsonl").read_text().splitlines()[-1])
    for name in NAMES:
        memory = torch.load(run / "sites" / name / "round_00002.pt", weights_only=True)
        assert last["updates"][name] == digest(memory["trained"] - memory["received"])


@pytest.mark.parametrize("engine", ["local", "sim"])
def test_run_folder_holds_whole_files_and_no_image_names(trained, simulated, sites, engine):
    run = simulated if engine == "sim" else trained()
    for name in ("run.json", "results.csv", "ledger.jsonl", "checkpoint.pt", "models/global.pt", "models/model.json"):
        assert (run / name).is_file()
    assert list(run.rglob("*.tmp")) == []
    assert {path.name for path in (run / "sites").iterdir()} == set(PAIR if engine == "sim" else NAMES)
    reported = (run / "results.csv").read_text() + (run / "ledger.jsonl").read_text()
    for site in open_sites(sites):
        assert [case.name for cases in site.splits.values() for case in cases if case.name in reported] == []


def test_it_is_one_training_on_all_images(trained, model, sites):
    run = trained("optimizer=sgd", method="pooled", rounds=2)  # Adam would enlarge the rounding of biases before a norm
    config = RunConfiguration.from_dict(read_run(run)["plan"])
    slices = Slices([case for site in open_sites(sites) for case in site.cases("training")])
    network = build_network(config.network, torch.device("cpu"))
    network.load_state_dict(initial_network(config.network, config.seed).state_dict())
    for round in range(config.rounds):
        rate = learning_rate(config.training, round, config.rounds)
        train(network, slices, config.training, rate, random_seed(config.seed, POOLED, round))
    found, expected = model(run), network.state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-4)


def test_the_steps_of_all_sites_are_taken_one_after_the_other(trained, sites, tmp_path):
    config = RunConfiguration.from_dict(read_run(trained("optimizer=sgd", method="pooled", rounds=2))["plan"])
    config = replace(config, training=replace(config.training, steps=3))
    own = [image_site(folder, config, tmp_path / folder.name) for folder in open_sites(sites)]
    pooled = pool_trainers([site.trainer for site in own])
    assert {trainer.config.training.steps for trainer in pooled} == {3 * len(own)}
    assert own[0].config is config


def test_pooled_training_on_the_simulator_is_refused(sites, tmp_path):
    with pytest.raises(BadInput, match="--engine local"):
        runs.create(tmp_path / "run", "pooled", sites, rounds=2, engine="sim")
    assert not (tmp_path / "run").exists()
