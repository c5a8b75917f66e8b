"""Seconds and memory of methods, engines and preparation: the measured cases, and their ratios."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest
import SimpleITK
from PIL import Image
from run_factory import make_sites
from tiny import TINY

from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import open_sites
from fedmerit.trainers.monai.samples import Slices
from fedmerit_data.preparation import Preparation
from fedmerit_lab.benchmarks import costs
from fedmerit_lab.benchmarks.costs import (
    CASES,
    SETTINGS,
    Work,
    decode,
    generated_sites,
    generated_source,
    growth,
    memory,
    method_costs,
    preparation_costs,
    speed,
)

LEAK = 0.05  # MB a round, at most


@pytest.mark.parametrize(
    "measure",
    [
        lambda out: method_costs(out, out, ["fedce"], 1, 1, {}, print),
        lambda out: speed(out, out, 1, 1, ["local"], TINY, print),
    ],
)
def test_costs_of_a_single_round_are_refused_before_anything_is_measured(tmp_path, measure):
    with pytest.raises(BadInput, match="--rounds 1: expected 2"):
        measure(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_cost_of_a_round_is_the_mean_of_all_except_the_first(tmp_path, monkeypatch):
    """The first round ends at 10 seconds of the process, the others 2 and 4 later: 3 a round. Then the run stops."""
    sites, executed = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=16), []

    def execute(run, on_round):
        executed.append(read_run(run))
        for end in (10.0, 12.0, 16.0, 99.0):
            monkeypatch.setattr(costs.time, "process_time", lambda end=end: end)
            monkeypatch.setattr(costs.time, "perf_counter", lambda end=end: end / 2)
            on_round({})
        pytest.fail("the run went beyond its last round")

    monkeypatch.setattr(costs.runs, "execute", execute)
    benchmark = method_costs(tmp_path / "out", sites, ["cycle", "fedavg"], 3, 2, TINY, lambda *_: None)
    assert [run["method"] for run in executed] == ["fedavg", "cycle"] * 2  # FedAvg first, and once
    assert [run["parameters"].get("warmup") for run in executed[:2]] == [None, SETTINGS["cycle"]["warmup"]]
    table = benchmark.table.set_index(["case", "quantity"])["median"]
    assert table[:, "CPU seconds per round"].to_dict() == {"fedavg": 3, "cycle": 3}
    assert table[:, "seconds per round"].to_dict() == {"fedavg": 1.5, "cycle": 1.5}
    for name, settings in SETTINGS.items():
        METHODS[name](**settings)  # raises for an unknown parameter


def test_the_bare_steps_of_a_round_are_those_of_all_sites(tmp_path, monkeypatch):
    sites, trained = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=16), []
    monkeypatch.setattr(costs, "rounds_of", lambda *_, **named: lambda: {"CPU seconds per round": 1.0})
    monkeypatch.setattr(costs, "train", lambda *given, seed: trained.append((len(given[1]), given[2].steps)))
    method_costs(tmp_path / "out", sites, ["steps"], 2, 1, TINY | {"steps": 3}, lambda *_: None)
    images = sum(len(Slices(site.cases("training"))) for site in open_sites(sites))
    assert trained == [(images, 6)] * 2


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """The measured commands with their runs; each takes as many seconds as its number."""
    found = []

    def measure_command(command, ends):
        found.append((command, read_run(ends.parent / "run"), ends))
        return SimpleNamespace(quantities={"seconds per round": float(len(found)), "memory, PSS [GB]": 0.5})

    def generated(out, size, number):
        names = [f"site{place:03d}" for place in range(number)]
        return make_sites(tmp_path / f"{size}px-{number}", names, size=size)

    monkeypatch.setattr(costs, "measure_command", measure_command)
    monkeypatch.setattr(costs, "generated_sites", generated)
    return found


def test_one_number_is_changed_at_a_time(commands, tmp_path):
    base = Work(sites=2, width=4, size=16, rounds=2)
    axes = {"sites": [3], "width": [2, 6], "size": [32], "rounds": [5]}
    settings = {**TINY, "width": "16"}
    benchmark = growth(tmp_path / "out", axes, "fedavg", 1, settings, lambda *_: None, base, "sim")
    made = [
        (len(run["sites"]), run["plan"]["network"]["width"], run["sites_folder"].split("/")[-1], run["rounds"])
        for _, run, _ in commands
    ]
    assert made == [(3, 4, "16px-3", 2), (2, 2, "16px-2", 2), (2, 6, "16px-2", 2), (2, 4, "32px-2", 2),
                    (2, 4, "16px-2", 5)]  # fmt: skip
    assert {run["engine"] for _, run, _ in commands} == {"sim"}
    table = benchmark.table.set_index(["case", "quantity"])["median"]
    assert table["width 6", "seconds per round"] == 3
    size = sum(file.stat().st_size for file in commands[2][2].parent.joinpath("run").rglob("*") if file.is_file())
    assert table["width 6", "run folder [MB]"] == pytest.approx(size / 1e6)


def test_every_case_is_its_own_command_on_the_same_work(commands, tmp_path):
    sites = make_sites(tmp_path / "sites", ("Alder", "Birch", "Cedar"), size=16)
    benchmark = speed(tmp_path / "out", sites, 3, 1, list(CASES), TINY, lambda *_: None)
    found = {ends.parent.name: (command, run) for command, run, ends in commands}
    modules = {case: command[3].removeprefix("fedmerit_lab.benchmarks.") for case, (command, _) in found.items()}
    assert modules == {"steps": "bare_steps", "local": "one_run", "sim": "one_run", "sim-2": "one_run",
                       "peer": "nvflare_peer", "peer-1": "nvflare_peer"}  # fmt: skip
    for case, (command, run) in found.items():
        work = tmp_path / "out" / "work" / case
        threads = {"peer": ["0"], "peer-1": ["1"]}.get(case)
        more = [str(work / "nvflare"), *threads] if threads else []
        assert command[:3] == [sys.executable, "-P", "-m"]
        assert command[4:] == [str(work / "run"), str(work / "ends.txt"), *more]
        assert (run["method"], run["rounds"], run["engine"]) == ("fedce", 3, "sim" if "sim" in case else "local")
        assert run["plan"]["training"]["augmentation"] == "none"
    assert (found["sim"][1]["threads"], found["sim-2"][1]["threads"]) == (3, 2)
    table = benchmark.table.set_index(["case", "quantity"])["median"]
    assert table[:, "seconds per round"].to_dict() == {case: place + 1 for place, case in enumerate(CASES)}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedce", "cffl"])
def test_memory_does_not_grow_with_the_rounds(server_sites_data, tmp_path, method):
    """With all that sites remember and the server records, the guard on, and next to no training."""
    settings = {**TINY, "steps": "1", "guard": "on"}
    measured = memory(tmp_path, server_sites_data, method, 120, 1, settings, lambda case, repetition: None)
    table = measured.table.set_index("quantity")["median"]
    assert table["growth [MB a round]"] < LEAK


@pytest.fixture
def prepared(monkeypatch):
    """The preparations; two tiny sites replace their sites."""
    prepared = []

    def prepare(preparation, out):
        prepared.append(preparation)
        make_sites(Path(out), ("site1", "site2"), size=16)

    monkeypatch.setattr(costs, "prepare", prepare)
    return prepared


def test_generated_sites_are_prepared_once_and_interrupted_copies_made_again(prepared, monkeypatch, tmp_path):
    for share in (0.0, 0.2, 0.0, 0.2):
        generated_sites(tmp_path, 48, server_share=share)
    assert [(one.kind, one.size, one.server_share) for one in prepared] == [
        ("synthetic-prostate", 48, 0.0), ("synthetic-prostate", 48, 0.2),
    ]  # fmt: skip
    with monkeypatch.context() as interrupted:
        interrupted.setattr(costs, "write_json", lambda path, content: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            generated_sites(tmp_path, 48, 3)
    folders = open_sites(generated_sites(tmp_path, 48, 3))
    assert [folder.name for folder in folders] == ["site001", "site002", "site003"]
    original = (tmp_path / "sites" / "48px" / "site1" / "training0_image.npy").read_bytes()
    assert all((folder.path / "training0_image.npy").read_bytes() == original for folder in folders)
    assert len(prepared) == 2


def photographs(root, cases=3):
    """A site of images and masks of 20 x 20 pixels: a square on a dim ground."""
    mask = np.zeros((20, 20), np.uint8)
    mask[5:12, 6:14] = 255
    for folder, array in (("images", np.dstack([mask // 2 + 40] * 3)), ("masks", mask)):
        (root / "Alder" / folder).mkdir(parents=True)
        for number in range(cases):
            Image.fromarray(array).save(root / "Alder" / folder / f"case{number}.png")
    return root


def test_files_are_read_decoded_and_prepared_and_nothing_prepared_is_left(tmp_path):
    source, seen = photographs(tmp_path / "raw"), []
    asked = Preparation("generic", source=source, size=16, ratios=(0, 0, 1))
    benchmark = preparation_costs(tmp_path / "out", asked, 1, 2, lambda *case: seen.append(case))
    cases = ["read", "decode", "reader", "prepare", "prepare, pictures"]
    assert seen == [(case, repetition) for repetition in range(2) for case in cases]
    settings = json.loads((tmp_path / "out" / "preparation.json").read_text())["settings"]
    assert [settings[name] for name in ("size", "cases", "files", "jobs")] == [16, 3, 6, 1]
    assert all(row["seconds"] > 0 and row["CPU seconds"] >= 0 for row in benchmark.rows)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"preparation.json", "preparation.csv"}


def test_several_processes_have_no_cpu_seconds(tmp_path, monkeypatch):
    asked, jobs_seen = Preparation("generic", source=photographs(tmp_path / "raw"), size=16, ratios=(0, 0, 1)), []

    def prepare(asked, out, *, jobs, progress):
        jobs_seen.append((jobs, asked.pictures))
        out.mkdir(parents=True)

    monkeypatch.setattr(costs, "prepare", prepare)
    benchmark = preparation_costs(tmp_path / "out", asked, 3, 1, lambda *_: None)
    assert jobs_seen == [(1, False), (1, True), (3, False)]
    table = benchmark.table.set_index(["case", "quantity"])
    assert ("prepare", "CPU seconds") in table.index
    assert ("prepare, 3 processes", "seconds") in table.index
    assert ("prepare, 3 processes", "CPU seconds") not in table.index


@pytest.mark.parametrize("source", [None, "raw"])
def test_a_kind_that_generates_its_files_is_refused(tmp_path, source):
    asked = Preparation("synthetic-prostate", source=source and tmp_path / source)
    with pytest.raises(BadInput, match="kind synthetic-prostate: generates its files"):
        preparation_costs(tmp_path / "out", asked, 1, 1, lambda *_: pytest.fail("measured"))


def test_generated_files_are_complete_or_absent(tmp_path, monkeypatch):
    asked = []

    def generate(raw, seed, patients):
        asked.append((seed, patients))
        assert not list(raw.iterdir())
        (raw / "site1").mkdir()
        if len(asked) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(costs.prostate, "generate", generate)
    with pytest.raises(KeyboardInterrupt):
        generated_source(tmp_path, 4)
    assert not (tmp_path / "raw-4").exists()
    for _ in range(2):
        assert generated_source(tmp_path, 4) == tmp_path / "raw-4"
    assert [path.name for path in (tmp_path / "raw-4").iterdir()] == ["site1"]
    assert asked == [(0, 4)] * 2


def test_every_format_is_decoded(tmp_path):
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    nib.save(nib.Nifti1Image(array, np.eye(4)), tmp_path / "a.nii.gz")
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(array), str(tmp_path / "a.nrrd"))
    Image.fromarray(array[0].astype(np.uint8)).save(tmp_path / "a.png")
    np.testing.assert_array_equal(decode(tmp_path / "a.nii.gz"), array)
    np.testing.assert_array_equal(decode(tmp_path / "a.nrrd"), array)
    np.testing.assert_array_equal(decode(tmp_path / "a.png"), array[0])
    image = SimpleITK.GetImageFromArray(np.arange(12, dtype=np.int16).reshape(1, 3, 4))
    SimpleITK.WriteImage(image, str(tmp_path / "000.dcm"))
    np.testing.assert_array_equal(decode(tmp_path / "000.dcm"), np.arange(12).reshape(3, 4))
