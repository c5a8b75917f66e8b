"""The HTML report: its numbers and what it leaves out."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from run_factory import SITES, add_models, add_rows, make_run, make_sites, write_ledger

from evaluation.report.all_sites import write_report
from fedmerit.errors import BadInput
from fedmerit.records.results import Row

MINUS = "\N{MINUS SIGN}"


class _Page(HTMLParser):
    """Cells of each table by its id, every attribute, and the text."""

    def __init__(self, page: str):
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self._table: list[list[str]] = []
        self._open = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "table":
            self._table = self.tables.setdefault(dict(attrs).get("id") or "settings", [])
        elif tag == "tr":
            self._table.append([])
        elif tag in ("td", "th"):
            self._table[-1].append("")
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._open = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open:
            self._table[-1][-1] += data.strip().replace("\N{NO-BREAK SPACE}", " ")  # an interval stays on one line


def _runs(root: Path, seeds: int = 2) -> list[Path]:
    return [
        make_run(root / f"{method}-{seed}", method=method, seed=seed, level=level)
        for method, level in (("standalone", 0.7), ("fedavg", 0.78), ("fedce", 0.82))
        for seed in range(seeds)
    ]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of three methods with two seeds, whose figures are drawn; its files lie beside it."""
    return write_report(_runs(tmp_path_factory.mktemp("compared")))


@pytest.mark.usefixtures("drawn")
def test_the_report_of_one_run_and_all_that_lies_beside_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", labels=("disc", "cup"))
    path = write_report([run])
    assert path == run / "report.html"
    names = {file.relative_to(run).as_posix() for file in run.glob("*/*")}
    assert names >= {f"figures/{name}.png" for name in ("dice", "shares", "weights", "contributions", "convergence")}
    assert names >= {f"tables/{name}.{kind}" for name in ("comparison", "dice", "labels") for kind in ("csv", "tex")}
    assert "figures/reputation.png" not in names  # it never changes: a panel of flat lines
    assert not list(run.rglob(".*tmp"))


@pytest.mark.slow
def test_surfaces_stand_beside_dice_where_they_were_measured(tmp_path: Path) -> None:
    """One run is of an earlier version and has none."""
    runs = [make_run(tmp_path / method, method=method, rounds=2, labels=("disc", "cup"), surfaces=method == "fedce")
            for method in ("fedavg", "fedce")]  # fmt: skip
    page = write_report(runs, images=False).read_text()
    sites = pd.read_csv(tmp_path / "tables" / "dice.csv").set_index(["Method", "Site"]).sort_index()
    fedce = sites.loc["fedce"]
    assert fedce["HD95 [mm]"].to_list() == pytest.approx((20 - 0.2 * fedce["Dice [%]"]).to_list())
    assert fedce["NSD at 2 mm [%]"].to_list() == pytest.approx(fedce["Dice [%]"].to_list())
    assert sites.loc["fedavg", "HD95 [mm]"].isna().all()
    methods = pd.read_csv(tmp_path / "tables" / "methods.csv").set_index("Method")
    assert methods.loc["fedce", "HD95 [mm]"] == pytest.approx(fedce["HD95 [mm]"].mean())
    labels = pd.read_csv(tmp_path / "tables" / "labels.csv").set_index(["Method", "Site"])
    assert labels.loc[("fedce", "Alder"), "cup, HD95 [mm]"] == pytest.approx(
        20 - 0.2 * labels.loc[("fedce", "Alder"), "cup"]
    )
    assert "Together, HD95 [mm]" not in pd.read_csv(tmp_path / "tables" / "hospitals.csv")  # of fedavg, which has none
    newer = write_report(runs[1:], tmp_path / "newer" / "report.html", images=False)
    first = pd.read_csv(newer.parent / "tables" / "hospitals.csv").set_index("Hospital")
    assert first["Together, HD95 [mm]"].to_list() == pytest.approx(fedce["HD95 [mm]"].to_list())
    assert first["Together, NSD at 2 mm [%]"].to_list() == pytest.approx(fedce["Dice [%]"].to_list())
    assert "HD95 and NSD are not known of" in page
    alone = make_run(tmp_path / "standalone", method="standalone", rounds=2, labels=("disc", "cup"), surfaces=True)
    write_report([alone, runs[1]], tmp_path / "gained" / "report.html", images=False)
    gained, changed = (pd.read_csv(tmp_path / "gained" / "tables" / f"{name}.csv").set_index("Method")
                       for name in ("gains", "surface_changes"))  # fmt: skip
    assert changed["HD95 [mm]"].to_list() == pytest.approx([-0.2 * gained.loc["fedce", site] for site in SITES])
    older = write_report(runs[:1], tmp_path / "older" / "report.html", images=False).read_text()
    assert "HD95 [" not in older


def test_tables_in_the_page_are_those_in_the_files(compared: Path) -> None:
    page, tables = _Page(compared.read_text()), compared.parent / "tables"
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


def test_the_summary_names_the_worst_site_and_the_largest_weight(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    text = " ".join(_Page(write_report([run]).read_text()).text.split())
    dice = pd.read_csv(run / "tables" / "dice.csv").set_index("Site")["Dice [%]"]
    assert f"lowest at {dice.idxmin()} ({dice.min():.1f} %)" in text
    weights = pd.read_csv(run / "tables" / "contributions.csv").set_index("Site")["Weight, last round [%]"]
    assert f"that of {weights.idxmax()}, {weights.max():.1f} %" in text
    assert "One seed" in text


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
    page = _Page(compared.read_text())
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
    sites = ("<script>alert(1)</script>", '"onload="x', "$x$ & y_z")
    run = make_run(tmp_path / "run", sites=sites, command="<img src=http://example.org/x>")
    page = write_report([run]).read_text()
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    assert "<img src=http" not in page
    parsed = _Page(page)
    assert {row[1] for row in parsed.tables["table-dice"][1:]} == set(sites)
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]


def test_rejected_and_flagged_sites_with_the_reason_from_the_ledger(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    rows = [Row("run", "fedce", 0, number, "Birch", "rejected", 1.0) for number in (3, 4, 5, 9)]
    add_rows(run, [*rows, Row("run", "fedce", 0, 7, "Cedar", "flagged", 1.0)])
    add_rows(run, [Row("run", "fedce", 0, 11, "Alder", "rejected", 1.0, "testing")])
    write_ledger(run, [{"round": number, "rejected": {"Birch": "update with NaN"}} for number in (3, 4, 5, 9)])
    page = _Page(write_report([run]).read_text())
    marks = {(row[2], row[3]): row[4:] for row in page.tables["table-marks"][1:]}
    assert marks["Birch", "rejected"] == ["3\N{EN DASH}5, 9", "update with NaN"]
    assert marks["Cedar", "flagged"][0] == "7"
    assert marks["Alder", "rejected"] == ["11", "no usable reply to the final test"]
    assert "Cedar flagged in at least one round; Alder and Birch with a reply rejected" in page.text


def test_a_ledger_that_is_none_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "ledger.jsonl").write_text("not json\n")
    with pytest.raises(BadInput, match=r"ledger.jsonl: not a ledger.*fedmerit verify"):
        write_report([run])


def test_an_incomplete_run_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=10, done=3)
    page = _Page(write_report([run]).read_text())
    assert "run incomplete: 3 of 10 rounds" in page.text
    assert "No test Dice yet" in page.text
    assert "table-contributions" in page.tables
    assert "table-dice" not in page.tables


def test_a_site_whose_final_test_is_missing_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    lines = (run / "results.csv").read_text().splitlines(keepends=True)
    (run / "results.csv").write_text("".join(line for line in lines if "Birch,,testing" not in line))
    page = _Page(write_report([run]).read_text())
    assert "no test Dice from Birch; means are over the others" in page.text
    heading, row = page.tables["table-comparison"]
    assert row[heading.index("Birch")] == "\N{EN DASH}"


def test_a_run_of_one_site(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", method="standalone", sites=("Alder",))
    heading, row = _Page(write_report([run]).read_text()).tables["table-comparison"]
    assert row[heading.index("Std")] == "\N{EN DASH}"


def test_runs_tested_on_other_cases_cannot_be_compared(tmp_path: Path) -> None:
    runs = _runs(tmp_path, seeds=1)
    add_rows(runs[0], [Row("x", "standalone", 0, 11, "Alder", "dice", 0.5, "testing", "099", "prostate")])
    assert "their Dice cannot be compared" in _Page(write_report(runs).read_text()).text


def test_overlays_name_no_patient_and_a_note_stands_where_the_images_are_not(tmp_path: Path) -> None:
    sites = make_sites(tmp_path / "sites")
    run = make_run(tmp_path / "run", sites_folder=str(sites))
    add_models(run)
    page = write_report([run]).read_text()
    assert "it must not leave the hospital" in _Page(page).text
    assert (run / "figures" / "overlays.png").exists()
    for site in sites.iterdir():
        for entry in json.loads((site / "datalist.json").read_text())["testing"]:
            assert entry["case"] not in page
            assert entry["patient"] not in page

    text = _Page(write_report([run], images=False).read_text()).text
    assert "Images were left out" in text
    assert "must not leave" not in text
    assert not (run / "figures" / "overlays.png").exists()  # no older one is left lying beside it

    shutil.rmtree(sites)
    assert "not on this machine" in _Page(write_report([run]).read_text()).text
    with pytest.raises(BadInput, match="no such folder"):
        write_report([run], sites=sites)


def test_intervals_hold_the_means_and_are_written_down(compared: Path) -> None:
    page = _Page(compared.read_text())
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


def test_who_gained_and_who_cannot_be_told_apart_stands_in_words(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    twins = []
    for seed in (0, 1):  # fedavg's own numbers, under another setting
        twins.append(make_run(tmp_path / f"twin-{seed}", method="fedavg", seed=seed, parameters={"twin": 1}))
        (twins[-1] / "results.csv").write_text((tmp_path / f"fedavg-{seed}" / "results.csv").read_text())
    text = " ".join(_Page(write_report([*runs, *twins], tmp_path / "r.html").read_text()).text.split())
    assert "Alder, Birch, Cedar and Dogwood gained under 3 of 3 methods (3 with an" in text
    assert "ranks 2 and 3 (fedavg, fedavg (twin=1)) are not distinguishable" in text
    assert "2 seeds: intervals over seeds are their two numbers" in text


def test_without_training_alone_nobody_gains_and_the_report_says_how(tmp_path: Path) -> None:
    page = _Page(write_report([make_run(tmp_path / "run")]).read_text())
    assert "table-gains" not in page.tables
    assert "fedmerit run --method standalone" in page.text


def test_suspicions_come_with_rounds_values_and_thresholds(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4)
    for number in range(4):
        norms = [1.0, 1.1, 0.9, 0.01 if number >= 2 else 1.0]
        add_rows(run, [Row("run", "fedce", 0, number, site, "norm", norm)
                       for site, norm in zip(SITES, norms, strict=True)])  # fmt: skip
    page = _Page(write_report([run]).read_text())
    heading, *rows = page.tables["table-suspicions"]
    found = {(row[1], row[2]): dict(zip(heading, row, strict=True)) for row in rows}
    small = found["Dogwood", "small norm"]
    assert (small["Seeds"], small["First round"], small["Flagged rounds"]) == ("1 of 1", "2", "2")
    assert (small["Suspicion, highest"], small["Threshold"]) == (f"{MINUS}0.01", f"{MINUS}0.10")
    assert ("Alder", "small norm") not in found
    assert "No evidence recorded for: free-rider value" in page.text


def test_an_expelled_site_is_listed_with_the_threshold(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", method="rffl", rounds=4, parameters={"coef": 1 / 3})
    add_rows(run, [Row("run", "rffl", 0, number, "Birch", "removed", float(number > 1)) for number in range(4)])
    heading, row = _Page(write_report([run]).read_text()).tables["table-marks"]
    assert row[2:] == ["Birch", "expelled", "2\N{EN DASH}3", "its reputation fell below 0.333 of an equal share of the "
                       "remaining sites'"]  # fmt: skip
    assert heading[2:5] == ["Site", "What", "Rounds"]


def test_the_first_screen_is_a_row_per_hospital(compared: Path) -> None:
    page, tables = _Page(compared.read_text()), compared.parent / "tables"
    heading, *rows = page.tables["table-hospitals"]
    numbers = ["Alone, Dice [%]", "Together, Dice [%]", "Gain [points]", "Share of contribution [%]"]
    assert heading == ["Hospital", *numbers, "Flagged", "Verdict"]
    assert [row[0] for row in rows] == list(SITES)
    dice = pd.read_csv(tables / "dice.csv").set_index(["Method", "Site"])["Dice [%]"]
    shown = pd.read_csv(tables / "hospitals.csv").set_index("Hospital")
    for site in SITES:
        alone, together = dice["standalone", site], dice["fedavg", site]  # the first that estimates contributions
        row = shown.loc[site]
        found = (row["Alone, Dice [%]"], row["Together, Dice [%]"], row["Gain [points]"])
        assert found == pytest.approx((alone, together, together - alone))
    assert shown["Share of contribution [%]"].sum() == pytest.approx(100)
    better = shown["Gain [points], low"] > 0
    assert ["Better together." in row[-1] for row in rows] == better.to_list()
    assert better.any()
    assert page.text.index("Who made it better") < page.text.index("Methods compared")


@pytest.mark.slow
def test_runs_with_attackers_say_who_was_told_and_nothing_of_dice(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    runs.append(make_run(tmp_path / "ridden", method="fedce", behaviours={"Birch": "zero:from=0"}))
    add_rows(runs[-1], [Row("ridden", "fedce", 0, 11, site, "norm", float(site != "Birch")) for site in SITES])
    page = _Page(write_report(runs).read_text())
    assert "fedce (attacked) was made with attackers in it: Birch (zero) was flagged by small norm" in page.text
    assert {row[0] for row in page.tables["table-dice"][1:]} == {"standalone", "fedavg", "fedce"}
    assert "fedce (attacked)" in {row[0] for row in page.tables["table-contributions"][1:]}


def test_settings_hold_no_folder_of_this_machine_and_nothing_empty(tmp_path: Path) -> None:
    command = ["/opt/bin/fedmerit", "run", "--out", str(tmp_path / "run"), f"--sites={tmp_path}/raw"]
    run = make_run(tmp_path / "run", command=command, sites_folder=str(tmp_path / "sites"), server_sites=None)
    page = _Page(write_report([run]).read_text())
    settings = {row[0]: row[1] for row in page.tables["settings"]}
    assert settings["command"] == "fedmerit run --out run --sites=raw"
    assert not {"sites_folder", "server_sites"} & set(settings)
    assert all(settings.values())
    assert str(tmp_path) not in page.text


def test_gains_are_drawn_of_methods_with_a_seed_in_common_with_training_alone(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / method, method=method, seed=seed, rounds=2)
            for method, seed in (("standalone", 0), ("fedavg", 1), ("fedce", 0))]  # fmt: skip
    assert "Gains: fedce from" in (page := write_report(runs, images=False).read_text())
    assert "Gains: fedavg" not in page
    page = write_report(runs[:2], images=False).read_text()
    assert "A row per hospital, a line at 0" not in page
    assert "Gain not known: no seed in common" in page
    assert "no finished run of the method standalone with a seed of another" in page


def test_every_picture_says_what_is_to_be_seen(compared: Path) -> None:
    page = _Page(compared.read_text())
    seen = [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")]
    assert len(seen) >= 5
    assert all(re.search(r"\d", text) for text in seen)
    assert sum(any(site in text for site in SITES) for text in seen) >= len(seen) - 1  # one is of means of all
