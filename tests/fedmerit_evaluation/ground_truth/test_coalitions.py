"""Trained coalitions of three tiny sites: each an ordinary run, tested on all sites, all prepared or none."""

import shutil

import pandas as pd
import pytest
import torch
from run_factory import make_sites, prepare_again
from tiny import TINY

from fedmerit.contract.semivalues import EMPTY_COALITION, format_spec, required_coalitions, shapley_weights
from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.schema.results import COLUMNS, read_results, read_table
from fedmerit.schema.run_info import read_run
from fedmerit_evaluation.ground_truth import coalitions
from fedmerit_evaluation.ground_truth.ground_truths import coalition_utilities
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.studies.execution import Workers
from fedmerit_evaluation.studies.study import describe_cost

SITES = ("Alder", "Birch", "Cedar")
ALL = [coalition for coalition in required_coalitions(SITES, shapley_weights) if coalition]
GRAND, PAIR, ONE = frozenset(SITES), frozenset({"Alder", "Birch"}), frozenset({"Birch"})
IMAGES = 15  # of each site, to train


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    return make_sites(tmp_path_factory.mktemp("coalitions") / "sites", SITES, size=32)


@pytest.fixture(scope="module")
def prepare(sites):
    """`coalitions.prepare` for tiny runs; keywords replace what is asked for."""

    def build(out, of=ALL, seeds=(0,), method="fedavg", settings=(), **options):
        given = {"sites": sites, "rounds": 2, "engine": "local"} | options
        return coalitions.prepare(out, of, seeds, method, TINY | dict(settings), given)

    return build


def ignore(folder, error):
    """Instead of an `on_end`."""


@pytest.fixture(scope="module")
def study(prepare, tmp_path_factory):
    """All coalitions, trained and tested: never change them."""
    out = tmp_path_factory.mktemp("study") / "out"
    trainings = prepare(out)
    assert coalitions.execute_trainings(trainings, Workers(1), ignore) == {}
    return out, trainings


@pytest.fixture
def own(study, prepare, tmp_path):
    """A copy of `study` that a test may spoil."""
    shutil.copytree(study[0], tmp_path / "out")
    return tmp_path / "out"


def folder_of(trainings, coalition):
    (found,) = [training.folder for training in trainings if training.coalition == coalition]
    return found


def contents(out):
    """Every file, its time and its size."""
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for path in out.rglob("*")
        if path.is_file() and path.name != "study.json"
    }


def train(folder, sites, method, **options):
    runs.create(folder, method=method, sites=sites, rounds=2, engine="local", settings=TINY, **options)
    runs.execute(folder, lambda record: None)
    return folder


def assert_same_model(one, other):
    first, second = (torch.load(file, weights_only=True) for file in (one, other))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_prepare_orders_largest_first(study):
    out, trainings = study
    names = [training.folder.name for training in trainings]
    assert names == [
        *("Alder+Birch+Cedar_seed0", "Alder+Birch_seed0", "Alder+Cedar_seed0", "Birch+Cedar_seed0"),
        *("Alder_seed0", "Birch_seed0", "Cedar_seed0"),
    ]
    assert sorted(path.name for path in (out / "runs").iterdir()) == sorted(names)
    assert sorted(path.name for path in out.iterdir()) == ["runs", "study.json"]
    assert all(training.finished for training in trainings)


@pytest.mark.slow
def test_grand_coalition_equals_ordinary_run(study, sites, tmp_path):
    together = folder_of(study[1], GRAND)
    run = train(tmp_path / "run", sites, "fedavg")
    assert_same_model(run / "models/global.pt", together / "models/global.pt")
    tables = [
        read_results(folder).query("not quantity.str.endswith('seconds')").drop(columns="run")
        for folder in (run, together)
    ]
    assert tables[0].equals(tables[1])
    dice = tables[0].query("split == 'testing' and quantity == 'dice'")
    everywhere = coalitions.collect_results(study[1]).rows.query(
        "coalition == 'Alder+Birch+Cedar' and split == 'testing'"
    )
    assert everywhere["value"].to_list() == dice["value"].to_list()


@pytest.mark.slow
def test_single_coalition_equals_standalone_model(study, sites, tmp_path):
    run = train(tmp_path / "run", sites, "standalone")
    for site in SITES:
        single = folder_of(study[1], frozenset({site}))
        assert read_run(single)["method"] == "standalone"
        assert [path.name for path in (single / "models").glob("*.pt")] == [f"{site}.pt"]
        assert_same_model(run / f"models/{site}.pt", single / f"models/{site}.pt")


@pytest.mark.slow
def test_trainings_are_tested_on_every_site(study):
    out, trainings = study
    coalitions.write_results(out)
    try:
        table = read_table(out / "results.csv")
    finally:
        (out / "results.csv").unlink()
    assert table.columns.to_list() == COLUMNS
    tested = table[table["quantity"] == "dice"]
    assert set(tested["split"]) == {"testing"}
    counts = tested.groupby(["coalition", "site"])["case"].nunique()
    assert counts.to_dict() == {(format_spec(one), site): 5 for one in ALL for site in SITES}
    trained = table[table["quantity"] == "num_samples"]
    assert trained.groupby(["coalition", "site"])["value"].agg(list).to_dict() == {
        (format_spec(one), site): [float(IMAGES)] for one in ALL for site in one
    }
    assert set(coalition_utilities(Results(table))[0]) == {EMPTY_COALITION, *ALL}
    pd.testing.assert_frame_equal(
        table.sort_values(COLUMNS[:-1]).reset_index(drop=True),
        coalitions.collect_results(trainings).rows.sort_values(COLUMNS[:-1]).reset_index(drop=True),
    )


@pytest.mark.slow
def test_only_missing_trainings_are_executed(own, prepare):
    """One coalition was never trained, one trained but not tested."""
    whole = coalitions.collect_results(prepare(own)).rows.query("quantity == 'dice'")
    shutil.rmtree(own / "runs/Alder+Birch_seed0")
    tests = own / "runs/Birch_seed0/evaluation/testing-everywhere.csv"
    tests.unlink()
    before, ledger = contents(own), (own / "runs/Birch_seed0/ledger.jsonl").read_text()
    trainings = prepare(own)
    left = [training.coalition for training in trainings if not training.finished]
    assert left == [PAIR, ONE]
    begun = [training.folder for training in trainings if not training.trained]
    images = 2 * 2 * IMAGES  # rounds x sites x images, of the pair
    assert describe_cost(2, 5, begun) == f"2 of 5 trainings to do, {images} images in all"
    heard = []
    assert (
        coalitions.execute_trainings(trainings, Workers(1), lambda folder, error: heard.append((folder.name, error)))
        == {}
    )
    assert sorted(heard) == [("Alder+Birch_seed0", None), ("Birch_seed0", None)]
    opened = {own / "runs/Birch_seed0" / name for name in (".lock", "ledger.jsonl")}  # and left as they were
    assert (own / "runs/Birch_seed0/ledger.jsonl").read_text() == ledger
    after = contents(own)
    assert {path: after[path] for path in before if path not in opened} == {
        path: state for path, state in before.items() if path not in opened
    }
    pd.testing.assert_frame_equal(coalitions.collect_results(trainings).rows.query("quantity == 'dice'"), whole)


def test_prepare_rejects_sites_prepared_again(prepare, tmp_path):
    """As leave-one-out first, then the others for Shapley values; the study says so where no run of theirs is there."""
    own = make_sites(tmp_path / "sites", SITES, size=32)
    prepare(tmp_path / "out", of=[GRAND], sites=own)
    asked = read_json(tmp_path / "out" / "study.json")
    assert prepare(tmp_path / "out", of=[GRAND, PAIR], sites=own)
    prepare_again(own / "Birch")
    before = contents(tmp_path / "out")
    with pytest.raises(BadInput, match=r"sites: Birch is not what .*out was started with; .* choose another --out"):
        prepare(tmp_path / "out", of=[ONE], sites=own)
    assert contents(tmp_path / "out") == before
    assert read_json(tmp_path / "out" / "study.json") == asked
    (tmp_path / "out" / "study.json").unlink()
    with pytest.raises(BadInput, match=r"Birch is not what .*Alder\+Birch\+Cedar_seed0 was started with"):
        prepare(tmp_path / "out", of=[GRAND], sites=own)


def test_prepare_accepts_moved_images(sites, prepare, tmp_path):
    """One training is still to do, which finds them; of the other nothing is written again."""
    out, asked = tmp_path / "out", {"of": [PAIR, ONE], "rounds": 1}
    assert coalitions.execute_trainings(prepare(out, **asked)[:1], Workers(1), ignore) == {}
    moved = shutil.copytree(sites, tmp_path / "moved")
    before = {path: facts for path, facts in contents(out).items() if "Birch_seed0" not in path.parts}
    left = [training for training in prepare(out, sites=moved, **asked) if not training.finished]
    assert [read_run(training.folder)["sites_folder"] for training in left] == [str(moved)]
    assert {path: facts for path, facts in contents(out).items() if path in before} == before
    assert read_json(out / "study.json")["sites"] == str(moved)


def test_trained_coalition_is_tested_on_moved_images(prepare, tmp_path):
    own, server = make_sites(tmp_path / "sites", SITES, size=32), make_sites(tmp_path / "server", ["Centre"], size=32)
    (training,) = prepare(tmp_path / "out", of=[ONE], rounds=1, sites=own, server_sites=server)
    runs.execute(training.folder, lambda record: None)
    before = (training.folder / "run.json").read_bytes()
    moved = {"sites": own.rename(tmp_path / "moved"), "server_sites": server.rename(tmp_path / "moved_server")}
    (again,) = prepare(tmp_path / "out", of=[ONE], rounds=1, **moved)
    assert again == training
    assert (again.trained, again.finished) == (True, False)
    assert coalitions.execute_trainings([again], Workers(1), ignore) == {}
    assert again.finished
    assert (training.folder / "run.json").read_bytes() == before  # which closing.json covers


def test_prepare_creates_all_or_none(prepare, tmp_path):
    """The last one cannot be: its folder holds something else."""
    out = tmp_path / "out"
    other = out / "runs/Cedar_seed0/notes.txt"
    other.parent.mkdir(parents=True)
    other.write_text("not a run")
    with pytest.raises(BadInput, match=r"Cedar_seed0: holds no run\.json"):
        prepare(out)
    assert [path for path in out.rglob("*") if path.is_file()] == [other]
    assert [path.name for path in out.iterdir()] == ["runs"]
    other.unlink()
    assert len(prepare(out)) == 7
    assert len(list(out.glob("runs/*/run.json"))) == 7


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"method": "fedprix"}, "fedprix"), ({"of": [ONE], "method": "fedprix"}, "fedprix"),
        ({"settings": {"lr": "fast"}}, "lr"), ({"settings": {"depth": "6"}}, "depth"), ({"rounds": 0}, "rounds"),
        ({"device": "cuda:99"}, "cuda:99"), ({"of": [GRAND, frozenset({"Alder", "Elm"})]}, "Elm"),
        ({"method": "standalone"}, "such as fedavg"), ({"method": "rffl"}, "take a method with one model for all"),
        ({"method": "cgsv"}, "add --set reward=global, or"), ({"method": "fedci"}, "--server-sites")
    ],
)  # fmt: skip
def test_prepare_with_bad_input_leaves_no_folder(prepare, tmp_path, changes, reported):
    with pytest.raises(BadInput) as error:
        prepare(tmp_path / "out", **changes)
    assert reported in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_single_coalition_gets_no_method_settings(prepare, tmp_path):
    settings = {"reward": "global", "lr": "0.002"}
    trainings = prepare(tmp_path / "out", [GRAND, ONE], method="cgsv", settings=settings)
    recorded = [read_run(training.folder) for training in trainings]
    assert [info["method"] for info in recorded] == ["cgsv", "standalone"]
    assert [info["training"]["lr"] for info in recorded] == [0.002, 0.002]
    assert recorded[0]["parameters"]["reward"] == "global"
    assert recorded[1]["settings"] == {**TINY, "lr": "0.002"}
    assert prepare(tmp_path / "out", [GRAND, ONE], method="cgsv", settings=settings) == trainings


def test_single_coalition_keeps_preset_of_method(prepare, tmp_path):
    settings = {"reward": "global", "preset": "paper"}
    trainings = prepare(tmp_path / "out", [GRAND, ONE], method="cgsv", settings=settings)
    together, single = (read_run(training.folder) for training in trainings)
    assert (together["settings"]["preset"], single["settings"]["preset"]) == ("paper", "cgsv")
    assert single["training"] == together["training"]
    assert single["training"]["decay"] == 0.977
    assert prepare(tmp_path / "out", [GRAND, ONE], method="cgsv", settings=settings) == trainings


@pytest.mark.slow
def test_long_coalition_names_give_short_folders(tmp_path):
    names = [f"hospital-number-{number:03}" for number in range(20)]
    many = make_sites(tmp_path / "sites", names, size=32)
    of = [frozenset(names), *(frozenset(names) - {name} for name in names[:2])]
    options = {"sites": many, "rounds": 1, "engine": "local"}
    first = coalitions.prepare(tmp_path / "out", of, [0], "fedavg", TINY, options)
    assert len({training.folder for training in first}) == 3
    assert all(len(training.folder.name) < 255 for training in first)
    assert [frozenset(read_run(training.folder)["sites"]) for training in first] == [one.coalition for one in first]
    assert coalitions.prepare(tmp_path / "out", of, [0], "fedavg", TINY, options) == first


@pytest.mark.parametrize(
    ("method", "settings", "way"),
    [
        ("fedavg", {"statistics": "own"}, "leave it out, or take statistics=mean"),
        ("fedavg", {"last_round": "own"}, "leave it out"),
        ("silobn", {}, "add --set statistics=mean, or take a method with one model for all, such as fedavg"),
        ("silobn", {"statistics": "own"}, "leave it out, or take statistics=mean"),
        ("ditto", {"statistics": "mean"}, "take a method with one model for all, such as fedavg"),
        ("cgsv", {}, "add --set reward=global, or take a method with one model for all, such as fedavg"),
    ],
)
def test_prepare_rejects_models_per_site(prepare, tmp_path, method, settings, way):
    with pytest.raises(BadInput) as error:
        prepare(tmp_path / "out", [GRAND, ONE], method=method, settings=settings)
    assert str(error.value).endswith(f"sites outside a coalition have none to test; {way}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rule", ["mean", "weights", "recalibrated", "frozen"])
def test_require_one_model_accepts_mean_statistics(prepare, tmp_path, rule):
    """Unchanged, whatever the method's own rule."""
    assert len(prepare(tmp_path / "out", [PAIR], method="silobn", settings={"statistics": rule})) == 1
