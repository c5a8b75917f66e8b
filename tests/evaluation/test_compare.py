"""The tables of a comparison against numbers computed by hand; what may be compared; which runs that makes."""

import json
from pathlib import Path

import pandas as pd
import pytest
from run_factory import make_sites

from evaluation import comparison_runs
from evaluation.compare import tables, union_dice
from evaluation.comparison_runs import Planned, parse_methods, parse_seeds, prepare, work_off, write_tables
from evaluation.formats import DASH, csv_text, latex_text
from fedmerit.engines import runs
from fedmerit.errors import BadInput, RunFailed
from fedmerit.methods.registry import METHODS
from fedmerit.records.results import COLUMNS, read_run


def dice(method, seed, site, values, *, split="testing", label="prostate", number=4):
    """Rows of a site's Dice, one per case; ``values`` maps cases to Dice."""
    blank = dict.fromkeys(COLUMNS, "")
    row = {"run": "run", "method": method, "seed": seed, "round": number, "site": site}
    return [
        blank | row | {"split": split, "case": case, "label": label, "quantity": "dice", "value": value}
        for case, value in values.items()
    ]


def long(*parts):
    return pd.DataFrame([row for part in parts for row in part], columns=COLUMNS).astype({"value": float})


def cells(table):
    rows, columns = table.shape
    return [[table.cell(row, column) for column in range(columns)] for row in range(rows)]


# Three sites A, B, C; a site's Dice is the mean over its cases.
TWO_SEEDS = (
    *(dice("fedavg", 0, site, {"000": value}) for site, value in (("A", 0.80), ("B", 0.70), ("C", 0.60))),
    *(dice("fedavg", 1, site, {"000": value}) for site, value in (("A", 0.84), ("B", 0.70), ("C", 0.70))),
    dice("fedce", 0, "A", {"000": 0.9, "001": 0.7, "002": None}),  # 0.8: an empty case does not count
    dice("fedce", 0, "B", {"000": 0.9}),
    dice("fedce", 0, "C", {"000": 0.7}),
    *(dice("fedce", 1, site, {"000": 0.8}) for site in "ABC"),
)


def test_tables_1_and_6_by_hand():
    one, six = tables(long(*TWO_SEEDS), ["fedce", "fedavg"], [0, 1])
    assert (one.name, six.name) == ("table1", "table6")
    assert "Table 1 of Jiang et al. 2023" in one.caption
    assert "Table 6 of Jiang et al. 2023" in six.caption
    assert one.headings == six.headings == ["Method", "A", "B", "C", "Avg.", "Std."]
    # fedavg: 82, 70, 65: mean 72.333, deviations 9.667, -2.333, -7.333, squares sum to 152.667, / 2, root 8.737
    assert cells(one) == [
        ["fedce", "80.00", "85.00", "75.00", "80.00", "5.00"],
        ["fedavg", "82.00", "70.00", "65.00", "72.33", "8.74"],
    ]
    # over seeds: 80 and 84 differ by 4, so by 4 / sqrt(2) = 2.83; 60 and 70 by 7.07
    assert cells(six) == [
        ["fedce", "80.00 ± 0.00", "85.00 ± 7.07", "75.00 ± 7.07", "80.00", "5.00"],
        ["fedavg", "82.00 ± 2.83", "70.00 ± 0.00", "65.00 ± 7.07", "72.33", "8.74"],
    ]


def test_files_of_a_table():
    _, six = tables(long(*TWO_SEEDS), ["fedce", "fedavg"], [0, 1])
    header, _, fedavg = csv_text(six).splitlines()
    assert header.startswith('Method,A,B,C,Avg.,Std.,"A, std over seeds"')
    assert [float(value) for value in fedavg.split(",")[1:6]] == pytest.approx([82, 70, 65, 217 / 3, 8.736895])
    assert float(fedavg.split(",")[6]) == pytest.approx(8**0.5)
    assert r"fedavg & 82.00 $\pm$ 2.83 & 70.00 $\pm$ 0.00 & 65.00 $\pm$ 7.07 & 72.33 & 8.74 \\" in latex_text(six)


def test_the_standalone_row_of_the_paper():
    """Table 6, retinal fundus: Avg. 86.51 and Std. 3.95 follow from the sites' means."""
    sites = zip("123456", (86.69, 85.51, 86.21, 89.91, 79.77, 90.98), strict=True)
    one, _ = tables(
        long(*(dice("standalone", 0, site, {"000": value / 100}) for site, value in sites)), ["standalone"], [0]
    )
    assert cells(one)[0][-2:] == ["86.51", "3.95"]


def test_only_the_last_round_and_the_own_test_split_count():
    others = (
        dice("fedavg", 0, "A", {"000": 0.1}, number=3),
        dice("fedavg", 0, "A", {"000": 0.2}, split="validation"),
        dice("fedavg", 0, "A", {"A/000": 0.3}, split="union"),
    )
    one, *_ = tables(long(*TWO_SEEDS, *others), ["fedavg"], [0, 1])
    assert cells(one)[0][1] == "82.00"


def test_one_seed_has_no_deviation():
    _, six = tables(long(*TWO_SEEDS), ["fedavg"], [0])
    assert "±" in cells(six)[0][1]  # of both seeds that there are
    _, six = tables(long(*TWO_SEEDS[:3]), ["fedavg"], [0])
    assert cells(six) == [["fedavg", "80.00", "70.00", "60.00", "70.00", "10.00"]]


def test_a_missing_run_is_counted_and_a_missing_method_empty():
    one, six = tables(long(*TWO_SEEDS[:6], *TWO_SEEDS[6:9]), ["fedce", "standalone", "fedavg"], [0, 1])
    assert cells(one) == [
        ["fedce", "1 of 2", "80.00", "90.00", "70.00", "80.00", "10.00"],
        ["standalone", "0 of 2", DASH, DASH, DASH, DASH, DASH],
        ["fedavg", "2 of 2", "82.00", "70.00", "65.00", "72.33", "8.74"],
    ]
    assert cells(six)[0] == ["fedce", "1 of 2", "80.00", "90.00", "70.00", "80.00", "10.00"]
    assert csv_text(one).splitlines()[2] == "standalone,0 of 2,,,,,"


def test_a_site_missing_in_one_run_is_empty_and_so_are_its_means():
    one, six = tables(long(*TWO_SEEDS[:5], *TWO_SEEDS[6:]), ["fedavg", "fedce"], [0, 1])
    assert cells(one)[0] == ["fedavg", "82.00", "70.00", DASH, DASH, DASH]
    assert cells(six)[0] == ["fedavg", "82.00 ± 2.83", "70.00 ± 0.00", DASH, DASH, DASH]
    assert cells(one)[1][-1] == "5.00"


def test_a_site_that_was_never_tested_keeps_its_column():
    weight = dict.fromkeys(COLUMNS, "") | {"method": "fedavg", "seed": 0, "round": 0, "site": "D"}
    results = long(*TWO_SEEDS[:3], [weight | {"quantity": "weight", "value": 0.25}])
    one, _ = tables(results, ["fedavg"], [0])
    assert one.headings == ["Method", "A", "B", "C", "D", "Avg.", "Std."]
    assert cells(one) == [["fedavg", "80.00", "70.00", "60.00", DASH, DASH, DASH]]


def test_one_table_for_each_label():
    rows = [
        dice("fedavg", 0, site, {"000": value}, label=label)
        for site in "AB"
        for label, value in (("disc", 0.9), ("cup", 0.5 + 0.1 * (site == "B")))
    ]
    found = tables(long(*rows), ["fedavg"], [0])
    assert [table.name for table in found] == ["table1-disc", "table6-disc", "table1-cup", "table6-cup"]
    assert "of the disc" in found[0].caption
    assert cells(found[0]) == [["fedavg", "90.00", "90.00", "90.00", "0.00"]]
    assert cells(found[2]) == [["fedavg", "50.00", "60.00", "55.00", "7.07"]]


def test_no_results_no_tables():
    assert tables(pd.DataFrame(columns=COLUMNS), ["fedavg"], [0]) == []
    assert tables(long(dice("fedavg", 0, "A", {"000": 0.2}, split="validation")), ["fedavg"], [0]) == []


# The union of the test splits


def union(method, seed, site, values, label="prostate"):
    return dice(method, seed, site, values, split="union", label=label)


def test_union_by_hand():
    """The mean over cases, not over sites: B has two of the three."""
    rows = [
        *(dice("standalone", 0, site, {"000": 0.9}) for site in "AB"),
        *(dice("fedavg", 0, site, {"000": 0.5}) for site in "AB"),
        union("standalone", 0, "A", {"A/000": 0.9, "B/000": 0.3, "B/001": 0.3}),
        union("standalone", 0, "B", {"A/000": 0.6, "B/000": 0.8, "B/001": None}),
    ]
    assert union_dice(long(*rows)).to_dict() == pytest.approx(
        {("standalone", 0, "A"): 0.5, ("standalone", 0, "B"): 0.7}
    )
    *_, table = tables(long(*rows), ["fedavg", "standalone"], [0])
    assert table.name == "union"
    assert cells(table) == [["standalone", "50.00", "70.00", "60.00", "14.14"]]


def test_union_is_the_mean_over_labels_too():
    rows = [
        union("standalone", 0, "A", {"A/000": 0.9, "A/001": 0.7}, label="disc"),
        union("standalone", 0, "A", {"A/000": 0.5, "A/001": 0.3}, label="cup"),
    ]
    assert union_dice(long(*rows)).to_list() == pytest.approx([0.6])


def test_union_without_the_cases_of_a_site_is_none():
    rows = [
        *(dice("standalone", 0, site, {"000": 0.9}) for site in "AB"),
        union("standalone", 0, "A", {"A/000": 0.9}),
        union("standalone", 0, "B", {"A/000": 0.6, "B/000": 0.8}),
    ]
    *_, table = tables(long(*rows), ["standalone"], [0])
    assert cells(table) == [["standalone", DASH, "70.00", DASH, DASH]]


def test_no_union_rows_no_union():
    results = long(*TWO_SEEDS)
    assert union_dice(results).empty
    assert [table.name for table in tables(results, ["fedavg"], [0, 1])] == ["table1", "table6"]


# What is asked for


def test_methods_with_and_without_parameters():
    first, second, third = parse_methods("fedce:combine=plus:estimate=server, fedavg,fedce")
    assert (first.label, first.method) == ("fedce:combine=plus:estimate=server", "fedce")
    assert first.settings == {"combine": "plus", "estimate": "server"}
    assert (second.label, second.method, second.settings) == ("fedavg", "fedavg", {})
    assert third.settings == {}


def test_all_is_every_method():
    assert [item.label for item in parse_methods("all")] == list(METHODS)
    assert parse_methods("all,fedce:combine=plus")[-1].settings == {"combine": "plus"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "unknown"),
        ("fedavg,", "unknown"),
        ("fedavg,fedprix", "'fedprix': unknown"),
        ("fedce:", "NAME=VALUE"),
        ("fedce:plus", "'plus'"),
        ("fedce:=plus", "'=plus'"),
        ("fedce:combine=plus:combine=times", "combine is given twice"),
        ("fedavg,fedce,fedavg", "fedavg is given twice"),
        ("fedavg,all", "fedavg is given twice"),
        ("fedce:combine=plus:estimate=site,fedce:estimate=site:combine=plus", "given twice"),
        ("fedce:combine=a/b,fedce:combine=a;b", "same run folder"),
    ],
)
def test_methods_that_cannot_be(text, words):
    with pytest.raises(BadInput, match=words):
        parse_methods(text)


def test_seeds():
    assert parse_seeds("0") == [0]
    assert parse_seeds("2, 0,11") == [2, 0, 11]


@pytest.mark.parametrize("text", ["", "0,", "-1", "1.5", "zero", "0,1,0", "1,01", "٣"])
def test_seeds_that_cannot_be(text):
    with pytest.raises(BadInput, match="--seeds"):
        parse_seeds(text)


# The run folders


@pytest.fixture
def options(tmp_path):
    return {"sites": make_sites(tmp_path / "sites", ("A", "B")), "rounds": 2, "engine": "local"}


def plan_of(tmp_path, options, methods="fedavg,fedce:combine=plus", seeds="0,3", settings=None, **changes):
    return prepare(tmp_path / "out", parse_methods(methods), parse_seeds(seeds), settings or {}, options | changes)


def test_every_run_is_created_seed_by_seed(tmp_path, options):
    planned = plan_of(tmp_path, options, settings={"width": "4"})
    names = ["fedavg_seed0", "fedce_combine-plus_seed0", "fedavg_seed3", "fedce_combine-plus_seed3"]
    assert planned == [
        Planned(label, seed, tmp_path / "out" / name)
        for name, (label, seed) in zip(
            names, [("fedavg", 0), ("fedce:combine=plus", 0), ("fedavg", 3), ("fedce:combine=plus", 3)], strict=True
        )
    ]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([*names, "compare.json"])
    info = read_run(planned[3].folder)
    assert (info["run"], info["method"], info["seed"], info["rounds"]) == (names[3], "fedce", 3, 2)
    assert info["plan"]["parameters"]["combine"] == "plus"
    assert info["plan"]["network"]["width"] == 4
    assert not any(run.finished for run in planned)


def test_compare_json_says_what_was_asked(tmp_path, options):
    plan_of(tmp_path, options, settings={"width": "4"})
    asked = json.loads((tmp_path / "out/compare.json").read_text())
    assert asked == {
        "methods": ["fedavg", "fedce:combine=plus"],
        "seeds": [0, 3],
        "settings": {"width": "4"},
        "rounds": 2,
        "engine": "local",
        "sites": str(tmp_path / "sites"),
        "site_names": ["A", "B"],
    }


def test_more_methods_and_seeds_join_those_that_are_there(tmp_path, options):
    first = plan_of(tmp_path, options)
    before = {run.folder: (run.folder / "run.json").stat().st_mtime_ns for run in first}
    assert len(plan_of(tmp_path, options, methods="standalone,fedavg,fedce:combine=plus", seeds="0,3,4")) == 9
    assert {run.folder: (run.folder / "run.json").stat().st_mtime_ns for run in first} == before


BAD: dict[str, tuple[dict[str, object], str]] = {
    "a parameter of no method": ({"methods": "fedavg,fedce:nonsense=1"}, "'nonsense'"),
    "a value that is none": ({"methods": "fedavg,fedce:combine=minus"}, "combine='minus'"),
    "a setting that not all have": ({"settings": {"combine": "plus"}}, "method fedavg has none"),
    "a parameter in both places": ({"methods": "fedce:combine=plus", "settings": {"combine": "plus"}}, "also given"),
    "no rounds": ({"rounds": 0}, "rounds=0"),
    "no threads": ({"threads": 0}, "threads 0"),
    "a device of no site": ({"device": "C=cpu"}, "no site C"),
    "no sites": ({"sites": Path("nowhere")}, "nowhere"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_leaves_nothing_behind(tmp_path, options, bad):
    changes, words = BAD[bad]
    with pytest.raises(BadInput, match=words):
        plan_of(tmp_path, options, **changes)
    assert not (tmp_path / "out").exists()


def test_bad_input_leaves_what_was_there(tmp_path, options):
    plan_of(tmp_path, options)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput, match="nonsense"):
        plan_of(tmp_path, options, methods="standalone,fedce:nonsense=1")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 3}, "rounds 2, not 3"),
        ({"engine": "sim"}, "engine 'local', not 'sim'"),
        ({"settings": {"width": "4"}}, "settings {}"),
    ],
)
def test_runs_made_otherwise_are_refused(tmp_path, options, changes, words):
    plan_of(tmp_path, options)
    with pytest.raises(BadInput, match=f"{words}.*another --out"):
        plan_of(tmp_path, options, **changes)


def test_settings_left_out_are_noticed(tmp_path, options):
    plan_of(tmp_path, options, settings={"width": "4"})
    with pytest.raises(BadInput, match="another --out"):
        plan_of(tmp_path, options)


def test_server_sites_left_out_are_noticed(tmp_path, options):
    own = make_sites(tmp_path / "own", ("S",))
    plan_of(tmp_path, options, server_sites=own)
    plan_of(tmp_path, options, server_sites=own)
    with pytest.raises(BadInput, match=f"--server-sites {own}"):
        plan_of(tmp_path, options)


def test_a_site_more_is_noticed(tmp_path, options):
    plan_of(tmp_path, options)
    make_sites(tmp_path / "sites", ("A", "B", "C"))
    with pytest.raises(BadInput, match=r"started with the sites A, B, .* now holds A, B, C"):
        plan_of(tmp_path, options)


def test_a_folder_of_other_things_is_no_run(tmp_path, options):
    (tmp_path / "out/fedavg_seed3").mkdir(parents=True)
    (tmp_path / "out/fedavg_seed3/letter.txt").write_text("dear")
    with pytest.raises(BadInput, match=r"fedavg_seed3: holds no run\.json"):
        plan_of(tmp_path, options)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["fedavg_seed3"]


def test_what_a_killed_process_left_does_not_disturb(tmp_path, options):
    (tmp_path / "out/fedavg_seed0").mkdir(parents=True)
    (tmp_path / "out/.new.1/fedavg_seed0").mkdir(parents=True)
    (tmp_path / "out/.new.1/fedavg_seed0/.run.json.1.tmp").write_text("{")
    assert len(plan_of(tmp_path, options)) == 4


TINY = {"width": "4", "depth": "2"}


def tiny(tmp_path, engine, settings=None):
    sites = make_sites(tmp_path / "sites", ("A", "B"), size=32)
    options = {"sites": sites, "rounds": 1, "engine": engine}
    return plan_of(tmp_path, options, methods="fedavg", seeds="0,1,2", settings=TINY | (settings or {}))


def test_runs_go_side_by_side(tmp_path):
    planned, rounds, ended = tiny(tmp_path, "local"), [], []
    (planned[1].folder / "results.csv").mkdir()
    failed = work_off(
        planned, 2, lambda folder, error: ended.append((folder, error)), lambda folder, record: rounds.append(folder)
    )
    assert list(failed) == [planned[1].folder]
    assert failed[planned[1].folder].startswith("IsADirectoryError")
    assert sorted(ended) == sorted((run.folder, failed.get(run.folder)) for run in planned)
    assert sorted(rounds) == [planned[0].folder, planned[2].folder]
    assert [run.finished for run in planned] == [True, False, True]
    assert work_off(planned[::2], 2, lambda folder, error: ended.clear()) == {}
    assert ended
    assert write_tables(tmp_path / "out", planned)


def test_a_run_of_the_simulator_that_fails_does_not_stop_the_others(tmp_path, monkeypatch):
    planned, done, ended = tiny(tmp_path, "sim"), [], []

    def execute(folder, on_round, threads):
        done.append(folder)
        on_round({"round": 0})
        if folder == planned[0].folder:
            raise RunFailed("the simulator ended")
        if folder == planned[1].folder:
            raise MemoryError("the GPU is full")

    monkeypatch.setattr(runs, "execute", execute)
    rounds = []
    failed = work_off(
        planned, 2, lambda folder, error: ended.append(folder), lambda folder, record: rounds.append(folder)
    )
    assert done == ended == rounds == [run.folder for run in planned]
    log = planned[1].folder / "failed.log"
    told = {planned[0]: "the simulator ended", planned[1]: f"MemoryError: the GPU is full\nlog: {log}"}
    assert failed == {run.folder: reason for run, reason in told.items()}
    assert log.read_text().startswith("Traceback")
    assert write_tables(tmp_path / "out", planned) == []


@pytest.mark.parametrize(
    ("cores", "workers", "asked", "settings", "threads"),
    [
        (8, 2, {}, {}, 4),
        (8, 8, {}, {}, 2),
        (8, 2, {}, {"cpu_threads": "2"}, 2),
        (1, 4, {}, {}, 1),
        (8, 2, {"threads": 3}, {}, 3),
    ],
)
def test_free_cores_go_to_the_sites_of_a_run(tmp_path, options, monkeypatch, cores, workers, asked, settings, threads):
    planned, heard = plan_of(tmp_path, options | asked, settings=settings), {}
    monkeypatch.setattr(comparison_runs, "cores", lambda: cores)
    monkeypatch.setattr(comparison_runs, "execute_all", lambda *arguments, threads: heard.update(threads=threads) or {})
    assert work_off(planned, workers, lambda folder, error: None) == {}
    assert heard == {"threads": threads}
