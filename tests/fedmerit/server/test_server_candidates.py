"""Whole runs: candidates on images set aside for the server, sparse updates, a folder of the server's own."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from finished_runs import buffer_bytes, by_site, remembered
from rounds import SETTINGS
from stopping import stop_at
from tiny import TINY

from fedmerit.contract import flat
from fedmerit.contract.capabilities import EvaluatesCandidates
from fedmerit.engines import runs
from fedmerit.engines.image_sites import ImageSites
from fedmerit.evidence.ledger import Ledger
from fedmerit.files import read_json, write_json
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Evaluation
from fedmerit.schema.results import read_results
from fedmerit.schema.run_info import read_run
from fedmerit.schema.scores import SERVER_SPLIT, mean_dice
from fedmerit.schema.site_folder import Case, SiteFolder, open_sites
from fedmerit.server.exchange import Exchange
from fedmerit.server.server import Federation
from fedmerit.site.site import Site
from fedmerit.trainers.factory import initial_network, load_network
from fedmerit.trainers.monai.prediction import evaluate

NAMES = ["site1", "site2", "site3"]
WITH_CANDIDATES = [name for name, kind in METHODS.items() if issubclass(kind, EvaluatesCandidates)]


def dice(run: Path, parameters: torch.Tensor, buffers: Mapping[str, torch.Tensor], cases: Sequence[Case]) -> float:
    """Of any model on any cases."""
    config = RunConfiguration.from_dict(read_run(run)["plan"])
    network = initial_network(config.network, 0).to(memory_format=torch.channels_last)
    flat.load(network, parameters, buffers)
    return mean_dice(evaluate(network, cases, config.network.labels))


def set_aside(root: Path) -> list[Case]:
    return [case for site in open_sites(root) for case in site.cases(SERVER_SPLIT)]


@pytest.mark.parametrize("own", [False, True], ids=["what sites set aside", "a folder of its own"])
def test_utility_is_the_dice_on_the_server_set(two_rounds, server_sites_data, own_server, own):
    run = two_rounds("cffl", **({"server-sites": own_server} if own else {}))
    if own:
        cases = [case for split in SiteFolder(own_server / "site4").splits.values() for case in split]
        assert len(cases) > 3
    else:
        cases = set_aside(server_sites_data)
        assert len(cases) == 3
    for round in (0, 1):
        utility = by_site(run, "utility", round)
        for name in NAMES:
            memory = remembered(run, name, round)
            arrived = memory["received"] + (memory["trained"] - memory["received"])
            expected = dice(run, arrived, memory["buffers"], cases)
            assert utility[name] == pytest.approx(expected, rel=1e-15, abs=0)  # one rounding: sites are added in turn
    assert len({*by_site(run, "utility", 0).values(), *by_site(run, "utility", 1).values()}) > 1


def test_bytes_of_candidates_count_as_received(two_rounds, own_server):
    asked, spared = two_rounds("cffl"), two_rounds("cffl", **{"server-sites": own_server})
    model = len(remembered(asked, "site1", 1)["received"]) * 4 + buffer_bytes(asked)
    assert by_site(asked, "bytes_received", 0) == dict.fromkeys(NAMES, 4 * model)  # its task, then three to evaluate
    assert by_site(spared, "bytes_received", 0) == dict.fromkeys(NAMES, model)
    assert by_site(asked, "bytes_sent", 0) == by_site(spared, "bytes_sent", 0) == dict.fromkeys(NAMES, model)


@pytest.mark.parametrize("round", [0, 1])
def test_fedci_contributions_are_shapley_values_of_coalitions_evaluated_one_by_one(
    two_rounds, server_sites_data, round
):
    run, cases = two_rounds("fedci"), set_aside(server_sites_data)
    images = by_site(run, "num_samples", round)
    memories = {name: remembered(run, name, round) for name in NAMES}
    sent = flat.get_buffers(initial_network(RunConfiguration.from_dict(read_run(run)["plan"]).network, 0))
    if round:  # everybody's of the round before
        shares = torch.tensor([images[name] for name in NAMES], dtype=torch.float64)
        before = [remembered(run, name, 0)["buffers"] for name in NAMES]
        sent = flat.average_buffers(before, shares / shares.sum())

    def utility(members: tuple[str, ...]) -> float:
        if not members:
            return dice(run, memories["site1"]["received"], sent, cases)
        shares = torch.tensor([images[name] for name in members], dtype=torch.float64)
        shares /= shares.sum()
        mean = torch.zeros(len(memories["site1"]["received"]), dtype=torch.float64)
        for part, name in zip(shares, members, strict=True):
            received, trained = memories[name]["received"], memories[name]["trained"]
            mean += part * (received + (trained - received)).double()
        return dice(run, mean.float(), flat.average_buffers([memories[n]["buffers"] for n in members], shares), cases)

    values = {members: utility(members) for size in range(4) for members in combinations(NAMES, size)}
    assert len(set(values.values())) > 1
    expected = dict.fromkeys(NAMES, 0.0)
    for order in permutations(NAMES):
        for place, name in enumerate(order):
            without, joined = tuple(sorted(order[:place])), tuple(sorted(order[: place + 1]))
            expected[name] += (values[joined] - values[without]) / 6
    assert by_site(run, "contribution", round) == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
def test_sites_of_one_model_may_keep_what_they_train_in_the_last_round(trained, model):
    one, apart = trained(method="fedavg"), trained("last_round=own", method="fedavg")
    assert sorted(path.stem for path in (apart / "models").glob("*.pt")) == NAMES
    for name in NAMES:
        last, parameters = remembered(apart, name, 2), model(apart, name)
        assert torch.equal(last["received"], remembered(one, name, 2)["received"])
        network = load_network(apart / "models", name)
        assert torch.allclose(flat.get_parameters(network), last["trained"], atol=1e-6)
        assert all(torch.equal(parameters[key], value) for key, value in last["buffers"].items())
    union = read_results(apart).query("split == 'union' and quantity == 'dice'")
    assert len(set(union.groupby("site")["value"].mean())) == 3


def test_site_that_earned_little_receives_what_changed(trained, contrary_sites):
    run = trained("beta=0.1", "lr=0.0003", method="cgsv", sites=contrary_sites, rounds=2)  # quotas as unlike as updates
    whole = len(remembered(run, "site1", 1)["received"]) * 4 + buffer_bytes(run)
    assert by_site(run, "bytes_received", 0) == dict.fromkeys(NAMES, whole)
    quota, received = by_site(run, "quota", 0), by_site(run, "bytes_received", 1)
    assert quota["site3"] < 0.4  # an entry that changed takes twice the bytes: clearly fewer than the model's
    assert max(quota.values()) == 1
    for name in NAMES:
        changed = int((remembered(run, name, 1)["received"] != remembered(run, name, 0)["received"]).sum())
        assert received[name] == min(8 * changed, whole - buffer_bytes(run)) + buffer_bytes(run)
    assert received["site3"] < whole
    assert max(received.values()) == whole


@pytest.fixture
def stopped(tmp_path):
    """Start a local run and stop it as `stop_at` does: ``stopped(Site, "train", 2, ...)``."""

    def start(owner: Any, name: str, count: int, **options: Any) -> Path:
        run = tmp_path / "run"
        runs.create(run, engine="local", threads=1, settings=TINY, **options)
        stop_at(run, owner, name, count)
        return run

    return start


def test_site_that_lost_its_memory_sits_out_one_round(stopped, contrary_sites, fedmerit):
    run = stopped(Site, "train", 7, method="cgsv", sites=contrary_sites, rounds=4)  # two rounds are done
    for name in ("site1", "site3"):
        shutil.rmtree(run / "sites" / name)
    result = fedmerit("run", "--resume", "--out", run)
    assert result.exit_code == 0, result.output
    records = Ledger(run / "ledger.jsonl").records
    assert [list(record["rejected"]) for record in records] == [[], [], ["site3"], []]
    reason = records[2]["rejected"]["site3"]
    for words in ("what it remembers of the round before is missing", "the whole model in the next round"):
        assert words in reason
    assert f"round 2: site3 rejected: {reason}" in " ".join(result.output.split())
    assert [record["participants"] for record in records[2:]] == [["site1", "site2"], NAMES]
    whole = 4 * len(remembered(run, "site3", 3)["received"])
    buffers = sum(v.numel() * v.element_size() for v in remembered(run, "site3", 3)["buffers"].values())
    assert by_site(run, "bytes_received", 3)["site3"] == whole + buffers
    assert sum(records[3]["weights"].values()) == pytest.approx(1)


# Stopped in the middle of candidates. Per round three sites train and evaluate, and the server takes both.

STOPS: dict[str, tuple[Any, ...]] = {
    "in the middle of the first candidates": (Site, "evaluate", 3),
    "when the first candidates are in": (Exchange, "usable", 2),
    "before the later checkpoint": (Federation, "_checkpoint", 2),
    "in the middle of the final test": (Site, "evaluate", 8),
}


OFTEN = ("when the first candidates are in",)


@pytest.mark.parametrize(
    "stop", [pytest.param(stop, marks=() if stop in OFTEN else pytest.mark.slow) for stop in STOPS]
)
def test_run_stopped_in_its_candidates_ends_the_same(
    stopped, two_rounds, fedmerit, server_sites_data, assert_same_run, stop
):
    run = stopped(*STOPS[stop], method="cffl", sites=server_sites_data, rounds=2)
    result = fedmerit("run", "--resume", "--out", run)
    assert result.exit_code == 0, result.output
    assert_same_run(two_rounds("cffl"), run)


def test_sites_are_not_asked_where_the_server_has_its_own_images(
    two_rounds, own_server, sites, tmp_path, monkeypatch, assert_same_run
):
    asked = []
    original = Site.evaluate

    def evaluate_and_tell(self: Site, task: Evaluation) -> Any:
        asked.append((self.name, task.split))
        return original(self, task)

    monkeypatch.setattr(Site, "evaluate", evaluate_and_tell)
    run = tmp_path / "run"
    runs.create(run, "fedci", sites, 1, engine="local", threads=1, settings=TINY, server_sites=own_server)
    runs.execute(run, lambda record: None)  # of sites that set nothing aside
    assert asked[:9] == [(name, split) for split in ("validation", "testing", "validation") for name in NAMES]
    assert {split for _, split in asked[9:]} <= {"testing"}  # of the best round, where that is not the last
    assert read_run(run)["server_sites"] == str(own_server)
    assert set(read_results(run)["split"]) - {"testing_best"} == {"", "validation", "testing", "union"}


def test_other_server_images_are_another_run(stopped, fedmerit, server_sites_data, own_server):
    run = stopped(Site, "train", 1, method="cffl", sites=server_sites_data, rounds=2, server_sites=own_server)
    result = fedmerit("run", "--resume", "--out", run, "--server-sites", server_sites_data)
    refused(result, str(server_sites_data), "are not what", str(run))


def test_environment_of_sites_names_the_servers_images_of_the_run_whatever_the_shell_has(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDMERIT_SERVER_SITES", "/elsewhere")
    for folder, expected in ((None, ""), (tmp_path, str(tmp_path))):
        sites = ImageSites(tmp_path, [], folder, [], "")
        assert sites.environment()["FEDMERIT_SERVER_SITES"] == expected


def refused(result: Any, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert [word for word in words if word not in result.stderr] == [], result.stderr
    assert "Traceback" not in result.output


WAYS_OUT = ("--server-share", "--server-sites")


@pytest.mark.parametrize("method", WITH_CANDIDATES)
def test_method_that_needs_images_nobody_set_aside(fedmerit, options, tmp_path, method):
    settings = (f"{key}={value}" for key, value in SETTINGS.get(method, {}).items())
    result = fedmerit("run", "--out", tmp_path / "run", *options(*settings, method=method))
    refused(result, f"method {method}", *NAMES, *WAYS_OUT)
    assert list(tmp_path.iterdir()) == []


def test_site_that_set_nothing_aside_is_named(fedmerit, options, server_sites_data, tmp_path):
    root = Path(shutil.copytree(server_sites_data, tmp_path / "sites"))
    lists = read_json(root / "site2/datalist.json")
    lists["training"] += lists.pop(SERVER_SPLIT)
    write_json(root / "site2/datalist.json", lists)
    result = fedmerit("run", "--out", tmp_path / "run", *options(method="cffl", sites=root))
    refused(result, "site2 set none aside", *WAYS_OUT)
    assert "site1" not in result.stderr
    assert not (tmp_path / "run").exists()


def with_info(**changes: Any) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        write_json(root / "site4/site.json", read_json(root / "site4/site.json") | changes)

    return spoil


SPOILED_SERVERS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "another size": (with_info(image_size=[16, 16]), ("site4", "(16, 16)", "(32, 32)", "like the sites'")),
    "another task": (with_info(task="fundus"), ("site4", "'fundus'", "'prostate'", "like the sites'")),
    "other labels": (with_info(labels=["cup"]), ("site4", "'cup'", "'prostate'", "like the sites'")),
    "other channels": (with_info(channels=3), ("site4", "like the sites'")),
    "an array missing": (lambda root: next(root.glob("site4/**/*.npy")).unlink(), ("site4", ".npy", "file not found")),
    "nothing in it": (lambda root: shutil.rmtree(root / "site4"), ("no site folders",)),
    "no such folder": (shutil.rmtree, ("no such folder",)),
}


@pytest.mark.parametrize("spoiled", SPOILED_SERVERS)
def test_servers_folder_that_does_not_fit_the_sites(fedmerit, options, own_server, tmp_path, spoiled):
    server = Path(shutil.copytree(own_server, tmp_path / "server"))
    spoil, words = SPOILED_SERVERS[spoiled]
    spoil(server)
    result = fedmerit("run", "--out", tmp_path / "run", *options(method="cffl"), "--server-sites", server)
    refused(result, str(server), *words)
    assert not (tmp_path / "run").exists()
