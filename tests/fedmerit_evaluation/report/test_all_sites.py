"""The HTML report: its numbers and what it leaves out."""

import re
from pathlib import Path

import pandas as pd
import pytest
from parsed_page import Page
from run_factory import SITES, add_rows, make_run
from undrawn import drawing_nothing

from fedmerit.schema.results import Row
from fedmerit_evaluation.report.all_sites import write_report

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
    for file in of_earlier:  # of a report beside training alone and a ground truth
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
def test_several_runs_lie_in_their_common_parent_unless_told_otherwise(tmp_path: Path) -> None:
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
    assert all(value.startswith(("data:", "#", "tables/")) for value in addresses)
    inside = {value for _, name, value in page.attributes if name == "id"}
    assert {value[1:] for value in addresses if value.startswith("#")} <= inside
    assert all((compared.parent / value).is_file() for value in addresses if value.startswith("tables/"))
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and "default-src" in value)
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "url(" not in page.text
    assert "@import" not in page.text


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    sites = ("a<script>alert(1)", 'b"onload="x', "c$x$ & y_z")
    run = make_run(tmp_path / "run", sites=sites, command="<img src=http://example.org/x>")
    page = write_report([run]).read_text()
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    assert "<img src=http" not in page
    parsed = Page(page)
    assert {row[1] for row in parsed.tables["table-dice"][1:]} == set(sites)
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]


@pytest.mark.parametrize(("highest", "name"), [(1.0, "accuracy"), (100.0, "accuracy score")])
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


def test_an_incomplete_run_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=10, done=3)
    page = Page(write_report([run]).read_text())
    assert "run incomplete: 3 of 10 rounds" in page.text
    assert "No test Dice yet" in page.text
    assert "table-contributions" in page.tables
    assert "table-dice" not in page.tables


def test_a_site_whose_final_test_is_missing_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    lines = (run / "results.csv").read_text().splitlines(keepends=True)
    (run / "results.csv").write_text("".join(line for line in lines if "Birch,,testing" not in line))
    page = Page(write_report([run]).read_text())
    assert "no test Dice from Birch; means are over the others" in page.text
    heading, row = page.tables["table-comparison"]
    assert row[heading.index("Birch")] == "\N{EN DASH}"


def test_runs_tested_on_other_cases_cannot_be_compared(tmp_path: Path) -> None:
    runs = _runs(tmp_path, seeds=1)
    add_rows(runs[0], [Row("x", "standalone", 0, 11, "Alder", "dice", 0.5, "testing", "099", "prostate")])
    assert "their Dice cannot be compared" in Page(write_report(runs).read_text()).text


def test_intervals_hold_the_means_and_are_written_down(compared: Path) -> None:
    page = Page(compared.read_text())
    table = pd.read_csv(compared.parent / "tables" / "gains.csv").set_index("Method")
    heading, *rows = page.tables["table-gains"]
    for cells in rows:
        row = table.loc[cells[0]]
        for site in SITES:
            assert row[f"{site}, low"] < row[site] < row[f"{site}, high"]
            ends = [f"{row[f'{site}, {end}']:.1f}".replace("-", MINUS) for end in ("low", "high")]
            assert cells[heading.index(site)].endswith(f"[{ends[0]}, {ends[1]}]")
    methods = pd.read_csv(compared.parent / "tables" / "methods.csv")
    assert list(methods["Rank"]) == [1, 2, 3]
    assert methods["Mean Dice [%]"].is_monotonic_decreasing
    assert (methods["Rank, low"] <= methods["Rank"]).all()


def test_gains_are_in_words(compared: Path) -> None:
    text = " ".join(Page(compared.read_text()).text.split())
    assert "gained with 2 of 2 methods (" in text


def test_without_training_alone_nobody_gains_and_the_report_says_how(tmp_path: Path) -> None:
    page = Page(write_report([make_run(tmp_path / "run")]).read_text())
    assert "table-gains" not in page.tables
    assert "fedmerit run --method standalone" in page.text


def test_the_first_screen_is_a_row_per_hospital(compared: Path) -> None:
    page, tables = Page(compared.read_text()), compared.parent / "tables"
    heading, *rows = page.tables["table-benefit"]
    assert heading == ["Hospital", "Local, Dice [%]", "Federated, Dice [%]", "Gain [points]", "Result"]
    assert [row[0] for row in rows] == list(SITES)
    dice = pd.read_csv(tables / "dice.csv").set_index(["Method", "Site"])["Dice [%]"]
    shown = pd.read_csv(tables / "benefit.csv").set_index("Hospital")
    for site in SITES:
        alone, together = dice["standalone", site], dice["fedavg", site]  # the first that estimates contributions
        row = shown.loc[site]
        found = (row["Local, Dice [%]"], row["Federated, Dice [%]"], row["Gain [points]"])
        assert found == pytest.approx((alone, together, together - alone))
    contribution = pd.read_csv(tables / "contribution.csv")
    assert list(contribution["Hospital"]) == list(SITES)
    assert contribution["Share of contribution [%]"].sum() == pytest.approx(100)
    assert page.tables["table-contribution"][0][-2:] == ["Flagged", "Result"]
    better = shown["Gain [points], low"] > 0  # which correction for four hospitals may make insignificant
    assert better.any()
    significant = ["Significantly better with federated" in row[-1] for row in rows]
    assert all(above for above, found in zip(better, significant, strict=True) if found)
    lines = ("Federated training", "Payment: not supported, because", "Benefit: test Dice", "Contribution: share of")
    places = [page.text.index(line) for line in (*lines, "Methods compared", "For statisticians")]
    assert places == sorted(places)
    assert "confidence interval" in page.text


def test_a_method_that_counts_images_is_not_said_to_estimate_contributions(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(seed), method="fedavg", seed=seed, rounds=2) for seed in (0, 1)]
    for run in runs:
        rows = pd.read_csv(run / "results.csv", dtype={"case": str}, keep_default_na=False)
        images = rows[rows["quantity"] == "num_samples"].groupby("site")["value"].max()
        share = rows["site"].map(images / images.sum())
        rows["value"] = rows["value"].where(rows["quantity"] != "contribution", share)
        rows.to_csv(run / "results.csv", index=False)
    page = Page(write_report(runs, images=False).read_text())
    assert page.tables["table-contribution"][0][1] == "Share of images [%]"
    assert "Payment: not supported, because the method makes no estimate of contributions." in page.text
    assert "Share of images: largest for" in page.text
    assert "contributed" not in page.text


@pytest.mark.slow
def test_runs_with_attackers_say_who_was_told_and_nothing_of_dice(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    runs.append(make_run(tmp_path / "ridden", method="fedce", attacks={"Birch": "zero:from=0"}))
    add_rows(runs[-1], [Row("ridden", "fedce", 0, 11, "Birch", "flagged", 1.0)])
    page = Page(write_report(runs).read_text())
    assert "fedce (attacked), simulated attacks: Birch (zero) was flagged by the server (flagged)" in page.text
    assert {row[0] for row in page.tables["table-dice"][1:]} == {"standalone", "fedavg", "fedce"}
    assert "fedce (attacked)" in {row[0] for row in page.tables["table-contributions"][1:]}


def test_gains_are_drawn_of_methods_with_a_seed_in_common_with_training_alone(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / method, method=method, seed=seed, rounds=2)
            for method, seed in (("standalone", 0), ("fedavg", 1), ("fedce", 0))]  # fmt: skip
    assert "Gains: fedce from" in (page := write_report(runs, images=False).read_text())
    assert "Gains: fedavg" not in page
    page = write_report(runs[:2], images=False).read_text()
    assert "A row per hospital, a line at 0" not in page
    assert "Gain not known: no seed in common" in page
    assert "no finished run of the method standalone has a seed of another" in page


def test_a_run_of_training_alone_with_other_settings_does_not_hide_that_with_the_methods(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, method=name.split("-")[0], rounds=rounds)
            for name, rounds in (("fedce", 2), ("standalone", 2), ("standalone-1r", 1))]  # fmt: skip
    page = write_report(runs, images=False).read_text()
    assert "Gains: fedce from" in page
    assert "Gain not known" not in page
    for info in (file / "run.json" for file in runs[1:2]):
        info.write_text(info.read_text().replace('"lr": 0.001', '"lr": 0.01'))
    page = write_report(runs, images=False).read_text()
    assert "Gain not known: runs of standalone that differ; report with one of them." in page
    assert "the runs of the method standalone differ, and none has the settings of fedce" in page
    assert "no finished run of the method standalone" not in page


def test_gains_of_too_few_cases_are_not_said_to_have_intervals(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / method, method=method, rounds=2) for method in ("standalone", "fedce")]
    assert "Gain in test Dice over local training, 95" in write_report(runs, images=False).read_text()
    for run in runs:
        rows = pd.read_csv(run / "results.csv", dtype={"case": str}, keep_default_na=False)
        rows[rows["case"].isin(["", "000"])].to_csv(run / "results.csv", index=False)
    assert "Gain in test Dice over local training; left of 0" in write_report(runs, images=False).read_text()


def test_of_more_methods_than_there_are_colours_that_of_the_report_is_drawn(tmp_path: Path) -> None:
    methods = ["standalone", "fedavg", "fedce", "cgsv", "cffl", "rffl", "dw", "eu", "rr", "qfedavg"]
    runs = [make_run(tmp_path / method, method=method, rounds=1) for method in methods]
    page = write_report(runs, images=False).read_text()
    assert page.count("The other methods are in the tables.") == 2
    assert "Mean test Dice: standalone from" in page
    assert "Gains: fedavg from" in page  # the first that estimates contributions
    page = write_report(runs[:6], images=False).read_text()  # five above training alone
    assert "The other methods are in the tables." not in page


def test_every_picture_says_what_is_to_be_seen(compared: Path) -> None:
    page = Page(compared.read_text())
    seen = [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")]
    assert len(seen) >= 5
    assert all(re.search(r"\d", text) for text in seen)
    assert sum(any(site in text for site in SITES) for text in seen) >= len(seen) - 1  # one is of means of all
