"""Commands on finished runs: fairness, report, dossier, verify, evaluate."""

import json
import shutil

import pandas as pd
import pytest
from run_factory import make_run

from fedmerit.schema.results import read_results
from fedmerit_cli.results import expand_runs


def test_evaluate_finds_the_dice_of_the_run(fedmerit, own_run, sites):
    result = fedmerit("evaluate", own_run, "--sites", sites)
    assert result.exit_code == 0, result.output
    tables = list((own_run / "evaluation").glob("*.csv"))
    assert len(tables) == 1
    key = ["site", "case", "label", "quantity"]
    found = pd.read_csv(tables[0], dtype={"case": str}).set_index(key)["value"]
    recorded = read_results(own_run).query("split == 'testing' and case != ''").set_index(key)["value"]
    assert sorted(found.index) == sorted(recorded.index)
    assert found.sort_index().to_list() == pytest.approx(recorded.sort_index().to_list(), nan_ok=True)


@pytest.mark.parametrize("content", ['{"method": "fedce", "si', "null", "{}"])
@pytest.mark.parametrize(
    "command",
    [
        ("value", "estimate"), ("fairness",), ("report",), ("report", "--site", "Alder"),
        ("dossier", "--out", "dossier"), ("evaluate", "--sites", "sites"), ("run", "--resume", "--out")
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_command_names_a_spoiled_run_json(fedmerit, tmp_path, command, content):
    run = make_run(tmp_path / "run", rounds=2)
    (run / "run.json").write_text(content)
    before = {path.name for path in run.iterdir()}
    result = fedmerit(*command, run)
    assert result.exit_code == 2, result.exception
    assert f"{run / 'run.json'}: " in " ".join(result.stderr.split())
    assert {path.name for path in run.iterdir()} <= before | {".lock"}


def test_evaluate_prints_surfaces_and_protocols(fedmerit, own_run, sites):
    result = fedmerit("evaluate", own_run, "--sites", sites)
    assert "HD95 [mm]" in result.output
    assert "NSD at 2 mm [%]" in result.output
    result = fedmerit("lab", "protocols", own_run, "--sites", sites)
    assert result.exit_code == 0, result.output
    table = pd.read_csv(own_run / "tables/protocols.csv").set_index("Protocol")
    assert [name for name in table.index if name not in result.output] == []
    recorded = read_results(own_run).query("split == 'testing' and quantity == 'dice'").groupby("site")["value"].mean()
    assert table.loc["as-used", "site1"] == pytest.approx(100 * recorded["site1"])
    wrong = fedmerit("lab", "protocols", own_run, "--sites", sites, "--protocols", "voxels")
    assert wrong.exit_code == 2
    assert "--protocols 'voxels': unknown; expected one of" in wrong.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "RUN or --masks FOLDER: expected one of them"),
        (("run", "--masks", "m"), "RUN or --masks FOLDER: expected one of them"),
        (("run", "--grid", "own"), "--source: missing"),
        (("run", "--source", "raw"), "--source: belongs to --grid own or --masks"),
        (("--masks", "m", "--source", "raw"), "--out: missing"),
        (("run", "--grid", "own", "--source", "raw", "--estimate-statistics"), "belongs to models on the stored grid"),
    ],
)
def test_evaluate_asks_for_what_scores_of_raw_images_need(fedmerit, options, message):
    result = fedmerit("evaluate", *options, "--sites", "sites")
    assert (result.exit_code, message in " ".join(result.stderr.split())) == (2, True), result.stderr


def test_evaluate_scores_masks_of_another_program(fedmerit, sites, tmp_path):
    """Here the references themselves, on both grids."""
    raw = sites.with_name("sites-raw")
    for mask in raw.rglob("*_segmentation.nii.gz"):
        (tmp_path / "masks" / mask.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(mask, tmp_path / "masks" / mask.parent.name / mask.name.replace("_segmentation", ""))
    given = ("--masks", tmp_path / "masks", "--sites", sites, "--source", raw, "--out", tmp_path / "out")
    result = fedmerit("evaluate", *given, "--grid", "own", "--metric", "nsd_area")
    assert (result.exit_code, "on the own grid: " in " ".join(result.stdout.split())) == (0, True), result.output
    for grid in ("stored", "own"):
        found = pd.read_csv(tmp_path / "out" / f"testing-{sites.name}-{grid}-grid.csv")
        assert set(found[found["quantity"].isin(["dice", "nsd_area"])]["value"]) == {1.0}


def test_evaluate_tells_of_sites_that_were_prepared_unlike_the_run(fedmerit, own_run, sites, tmp_path):
    """And says nothing of the run's own."""
    assert fedmerit("evaluate", own_run, "--sites", sites).stderr == ""
    other = shutil.copytree(sites, tmp_path / "sites")
    for file in other.glob("*/site.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"field_of_view": 37.5}))
    for command in (("evaluate",), ("lab", "protocols", "--protocols", "as-used")):
        result = fedmerit(*command, own_run, "--sites", other)
        assert result.exit_code == 0, result.output
        assert result.stderr.startswith(
            f"note: site site1, site2, site3: prepared with field_of_view 37.5, but {own_run} "
        )
        assert result.stderr.count("note:") == 1


@pytest.mark.slow
def test_report_of_one_run(fedmerit, own_run):
    result = fedmerit("report", own_run)
    assert result.exit_code == 0, result.output
    page = (own_run / "report.html").read_text()
    assert str(own_run / "report.html") in result.output
    for word in ("fedce", "site1", "site2", "site3"):
        assert word in page
    assert list((own_run / "tables").glob("*.csv"))
    assert list((own_run / "tables").glob("*.tex"))
    assert list((own_run / "figures").glob("*.png"))


@pytest.mark.slow
def test_report_of_several_runs_for_one_hospital(fedmerit, tmp_path):
    methods = ("fedce", "standalone")
    runs = [make_run(tmp_path / method, method=method, rounds=2) for method in methods]
    result = fedmerit("report", *runs, "--out", tmp_path / "report.html", "--no-images", "--site", "Birch")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "report.html").read_text()
    assert [word for word in (*methods, "Birch") if word not in page] == []
    assert "Alder" not in page


def test_verify_names_the_line_that_was_changed(fedmerit, own_run):
    ledger = own_run / "ledger.jsonl"
    text = ledger.read_text()
    weight = json.loads(text.splitlines()[1])["weights"]["site2"]
    ledger.write_text(text.replace(repr(weight), "0.5", 1))
    result = fedmerit("verify", own_run)
    assert result.exit_code == 1
    assert f"{ledger}, line 2:" in result.stderr


@pytest.mark.slow
def test_report_of_a_folder_of_compare_and_never_of_site_folders(fedmerit, runs, sites):
    result = fedmerit("report", runs, "--out", runs / "report.html", "--no-images")
    assert result.exit_code == 0, result.output
    assert "fedavg" in (runs / "report.html").read_text()


def test_site_folders_are_no_runs(fedmerit, sites):
    for folder in (sites, sites / "site1"):
        result = fedmerit("report", folder)
        assert result.exit_code == 2
        assert f"{folder}: these are site folders; name a run folder" in " ".join(result.stderr.split())


# fairness

DRAWS = ("--draws", 50)


@pytest.fixture
def runs(tmp_path):
    """Runs of two methods, as `compare` leaves them."""
    for method, level in {"standalone": 0.7, "fedavg": 0.8}.items():
        make_run(tmp_path / f"runs/{method}_seed0", method=method, rounds=2, level=level)
    return tmp_path / "runs"


def test_tables_are_printed_and_written(fedmerit, runs, tmp_path):
    result = fedmerit("fairness", runs, "--out", tmp_path / "tables", *DRAWS)
    assert result.exit_code == 0, result.output
    names = ("corrected", "dice", "gains", "performance", "performance-ranks", "rewards")
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {
        *(f"fairness-{name}.{kind}" for name in names for kind in ("csv", "tex")), "fairness.csv", "notes.txt"
    }  # fmt: skip
    for words in ("Table 2 of Jiang et al. 2023", "MCG and CGS of CYCle", "Kendall", f"tables: {tmp_path / 'tables'}"):
        assert words in " ".join(result.output.split())


def test_bad_input(fedmerit, runs, tmp_path):
    for given, words in (
        ((tmp_path / "gone",), "no such run folder"),
        ((runs, "--split", "union"), "--split union: no run was tested on it"),
    ):
        result = fedmerit("fairness", *given, *DRAWS)
        assert result.exit_code == 2
        assert words in result.stderr
        assert "Traceback" not in result.output


def test_runs_of_a_comparison_are_in_the_order_of_its_methods(tmp_path):
    names = ["cgsv_seed0", "fedce_combine-plus_seed0", "fedce_seed0", "fedce_seed1", "other_seed0", "standalone_seed0"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    assert [run.name for run in expand_runs([tmp_path])] == names
    (tmp_path / "compare.json").write_text('{"methods": ["standalone", "fedce", "fedce:combine=plus", "cgsv"]}')
    assert [run.name for run in expand_runs([tmp_path])] == [names[k] for k in (5, 2, 3, 1, 0, 4)]
