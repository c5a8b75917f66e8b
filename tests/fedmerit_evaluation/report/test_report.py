"""The HTML report: its page, and what lies beside it."""

import base64
import math
import re
from pathlib import Path

import pandas as pd
import pytest
from parsed_page import Page
from run_factory import SITES, add_rows, make_run
from undrawn import drawing_nothing

from fedmerit.errors import BadInput
from fedmerit.schema.results import Row
from fedmerit_evaluation.report.report import conclude, write_report
from fedmerit_evaluation.results.runs import open_runs

MINUS = "\N{MINUS SIGN}"


def _runs(root: Path, seeds: int = 2) -> list[Path]:
    return [
        make_run(root / f"{method}-{seed}", method=method, seed=seed, level=level)
        for method, level in (("standalone", 0.7), ("fedavg", 0.78), ("fedce", 0.82))
        for seed in range(seeds)
    ]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of three methods with three seeds; its files lie beside it."""
    with drawing_nothing():
        return write_report(_runs(tmp_path_factory.mktemp("compared"), seeds=3))


def test_the_report_of_one_run_and_all_that_lies_beside_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", labels=("disc", "cup"))
    of_earlier = [run / "figures" / f"{name}.png" for name in ("gains", "agreement-shapley", "reputation")]
    of_earlier[0].parent.mkdir()
    for file in of_earlier:  # of a report beside training locally and a ground truth
        file.touch()
    path = write_report([run])
    assert path == run / "report.html"
    names = {file.relative_to(run).as_posix() for file in run.glob("*/*")}
    assert names >= {f"figures/{name}.png" for name in ("dice", "shares", "weights", "contributions", "convergence")}
    assert names >= {f"tables/{name}.{kind}" for name in ("comparison", "dice", "labels") for kind in ("csv", "tex")}
    assert not any(file.exists() for file in of_earlier)  # the reputation never changes: a panel of flat lines
    assert not list(run.rglob(".*tmp"))


def test_tables_in_the_page_are_those_in_the_files(compared: Path) -> None:
    page, tables = Page(compared.read_text()), compared.parent / "tables"
    shown = page.tables["table-comparison"]
    table = pd.read_csv(tables / "comparison.csv")
    assert shown[0] == ["Method", *SITES, "Mean", "Std", "Worst"]
    for cells, (_, row) in zip(shown[1:], table.iterrows(), strict=True):
        assert cells[0] == row["Method"]
        for heading, cell in zip(shown[0][1:], cells[1:], strict=True):
            assert cell == f"{row[heading]:.1f} ± {row[f'{heading}, std over seeds']:.1f}"
    tex = (tables / "comparison.tex").read_text()
    assert all(f"{row['Mean']:.1f} $\\pm$" in tex for _, row in table.iterrows())

    shown = page.tables["table-contributions"]
    table = pd.read_csv(tables / "contributions.csv")
    for cells, (_, row) in zip(shown[1:], table.iterrows(), strict=True):
        number = row["Contribution, mean [own unit]"]
        expected = "\N{EN DASH}" if pd.isna(number) else f"{number:.3f}".replace("-", MINUS)
        assert cells[shown[0].index("Contribution, mean [own unit]")].split(" [")[0] == expected


@pytest.mark.slow
def test_several_runs_lie_in_their_common_parent_by_default(tmp_path: Path) -> None:
    runs = _runs(tmp_path / "deep" / "down", seeds=1)
    assert write_report(runs) == (tmp_path / "deep" / "down" / "report.html").resolve()
    out = tmp_path / "else" / "page.html"
    assert write_report(runs, out) == out
    assert (out.parent / "tables" / "gains.csv").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("drawn")
def test_a_report_repeats_byte_for_byte(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    first = write_report([run]).read_bytes()
    assert write_report([run]).read_bytes() == first


def test_nothing_is_fetched(compared: Path) -> None:
    page = Page(compared.read_text())
    addresses = [value for tag, name, value in page.attributes if name in ("src", "href", "srcset", "data", "action")]
    assert addresses
    assert all(value.startswith(("data:", "#")) for value in addresses)
    inside = {value for _, name, value in page.attributes if name == "id"}
    assert {value[1:] for value in addresses if value.startswith("#")} <= inside
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and "default-src" in value)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "url(" not in page.text
    assert "@import" not in page.text


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    names = ("a<script>alert(1)", 'b"onload="x', "c$x$ & y_z")
    run = make_run(tmp_path / "run", labels=names, command="<img src=http://example.org/x>")
    page = write_report([run]).read_text()
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    assert "<img src=http" not in page
    parsed = Page(page)
    assert all(name in parsed.text for name in names)
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
    with pytest.raises(BadInput, match="letters from A to z"):
        write_report([make_run(tmp_path / "other", sites=names)])


@pytest.mark.parametrize(
    ("highest", "name"), [pytest.param(1.0, "accuracy", marks=pytest.mark.slow), (100.0, "accuracy score")]
)
def test_a_scripts_metric_is_named_in_page_tables_and_figures(tmp_path: Path, highest, name) -> None:
    script = {"metric": "accuracy", "lowest": 0.0, "highest": highest, "better": "higher", "evaluates": True}
    run = make_run(tmp_path / "run", plan={"script": script})
    page = Page(write_report([run]).read_text())
    assert f"test {name}" in page.text
    assert "Dice" not in page.text.replace("Normalised surface Dice", "")
    assert f"{name} [%]" in page.tables["table-dice"][0]
    assert f"{name} [%]" in (run / "tables" / "dice.csv").read_text().splitlines()[0]
    assert ("scaled from 0 to 100" in page.text) == (highest > 1)
    assert "Test Dice" in Page(write_report([make_run(tmp_path / "other")]).read_text()).text


def test_tables_are_in_the_page_as_csv(compared: Path) -> None:
    page = Page(compared.read_text())
    links = [value for tag, name, value in page.attributes if (tag, name) == ("a", "href") if "text/csv" in value]
    files = [value for tag, name, value in page.attributes if (tag, name) == ("a", "download")]
    assert len(links) == len(files)
    assert {"benefit.csv", "contribution.csv", "comparison.csv", "cases-Alder.csv"} <= {*files}
    for file, link in zip(files, links, strict=True):
        content = base64.b64decode(link.partition("base64,")[2]).decode()
        beside = compared.parent / "tables" / file
        assert content == beside.read_text() if beside.exists() else content.startswith("case,local,")


def test_numbers_of_a_picture_are_those_of_the_table(compared: Path) -> None:
    table = pd.read_csv(compared.parent / "tables" / "benefit.csv").set_index("Hospital")
    seen = [value for tag, name, value in Page(compared.read_text()).attributes if (tag, name) == ("svg", "aria-label")]
    for site, row in table.iterrows():
        assert f"{site}: local {row['Local, Dice [%]']:.1f}, fedce {row['Federated, Dice [%]']:.1f}" in seen


def test_every_picture_says_what_is_to_be_seen(compared: Path) -> None:
    page = Page(compared.read_text())
    seen = [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")]
    assert len(seen) >= 3
    assert all(re.search(r"\d", text) for text in seen)
    assert sum(any(site in text for site in SITES) for text in seen) >= len(seen) - 1  # one is of means of all


def test_simulated_free_rider_is_named_on_the_first_screen(tmp_path: Path) -> None:
    guarded = {"plan": {"guard": {"guard": "on"}}}
    honest = make_run(tmp_path / "honest", rounds=2, **guarded)
    attacked = make_run(tmp_path / "attacked", rounds=2, attacks={"Birch": "zero:from=0"}, **guarded)
    for run in (honest, attacked):
        add_rows(run, [Row(run.name, "fedce", 0, 1, site, "verdict", float(run == attacked and site == "Birch"))
                       for site in SITES])  # fmt: skip
    add_rows(attacked, [Row("attacked", "fedce", 0, 1, "Birch", "evidence", 8.0)])
    text = Page(write_report([honest, attacked], tmp_path / "report.html").read_text()).text
    first = " ".join(text[: text.index("Hospital by hospital")].split())
    assert "The guard flagged nobody in runs without a simulated attack; it cannot see every free rider." in first
    assert "it flagged the simulated free rider: Birch" in first
    percent = 100 * 8 / math.log(4 * 2 / 0.01)
    assert re.search(rf"Birch simulated\s*{percent:.0f}\s%\s*⚑ flagged", first)


def test_runs_without_tests_and_with_attackers_render(tmp_path: Path) -> None:
    part = make_run(tmp_path / "part", rounds=10, done=3)
    page = Page(write_report([part]).read_text())
    assert "run incomplete: 3 of 10 rounds" in page.text
    assert "No test Dice yet" in page.text
    assert "table-contributions" in page.tables
    ridden = make_run(tmp_path / "ridden", method="fedce", attacks={"Birch": "zero:from=0"})
    add_rows(ridden, [Row("ridden", "fedce", 0, 11, "Birch", "flagged", 1.0)])
    page = Page(write_report([make_run(tmp_path / "run"), ridden], tmp_path / "x" / "report.html").read_text())
    assert "fedce (attacked), simulated attacks: Birch (zero) was flagged by the server (flagged)" in page.text


@pytest.mark.slow
def test_earlier_tables_and_figures_go_and_others_stay(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / method, method=method, rounds=2) for method in ("fedce", "standalone")]
    page, other = tmp_path / "report.html", tmp_path / "tables" / "table1.csv"
    other.parent.mkdir()
    other.touch()
    write_report(runs, page)
    before = {file.name for file in other.parent.iterdir()}
    assert before >= {"gains.csv", "gains.tex", "benefit.csv", "table1.csv"}
    assert (tmp_path / "figures" / "gains.png").exists()
    write_report(runs[1:], page)
    after = {file.name for file in other.parent.iterdir()}
    assert before > after >= {"table1.csv", "dice.csv", "dice.tex"}
    assert not after & {"gains.csv", "gains.tex", "benefit.csv"}
    assert not (tmp_path / "figures" / "gains.png").exists()


@pytest.mark.parametrize(("name", "site"), [("tables", None), ("figures", None), ("page-files", "Birch")])
def test_folder_that_is_a_link_is_refused(tmp_path: Path, name: str, site: str | None) -> None:
    run, elsewhere = make_run(tmp_path / "run", rounds=2), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(elsewhere)
    with pytest.raises(BadInput, match=f"{name}: is a symbolic link"):
        write_report([run], tmp_path / "out" / "page.html", site=site)
    assert not list(elsewhere.iterdir())


@pytest.mark.slow
def test_conclude_takes_the_sentences_of_the_report(tmp_path: Path) -> None:
    """They end `fedmerit compare`."""
    runs = open_runs(_runs(tmp_path))
    benefit, lead, failed = conclude(runs)
    page = Page(write_report([run.path for run in runs], tmp_path / "report.html").read_text())
    text = page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert "points of Dice above local training" in benefit
    assert benefit in text
    assert lead.startswith("fedce is ")
    assert lead in text
    assert failed.startswith("Patients with a Dice below 50 %: ")
    assert conclude([run for run in runs if not run.tested]) == []


def test_the_report_of_pooled_and_local_training_is_written(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / method, method=method, rounds=1) for method in ("pooled", "standalone")]
    page = Page(write_report(runs).read_text())
    assert "No run is federated" in page.text
    assert "1 seed · 1 round ·" in " ".join(page.text.split())


def test_dice_and_gains_of_unlike_seeds_are_explained(tmp_path: Path) -> None:
    """Of local training a seed is missing or was never tested, so gains are of fewer seeds than Dice."""
    text = "Gains are over seeds and cases that both trainings have, Dice over all."
    runs = [make_run(tmp_path / f"fedce-{seed}", seed=seed) for seed in range(2)]
    local = [make_run(tmp_path / "local-0", method="standalone"), *runs]
    stopped = make_run(tmp_path / "local-1", method="standalone", seed=1, done=2)
    whole = make_run(tmp_path / "local-2", method="standalone", seed=1)
    for given, is_explained in ((local, True), ([*local, stopped], True), ([*local, whole], False)):
        assert (text in Page(write_report(given, tmp_path / "page" / "report.html").read_text()).text) == is_explained
