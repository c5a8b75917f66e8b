"""The report for one hospital: it is the model redacted, and nothing in it tells another hospital's numbers."""

import base64
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_results import made_dice, made_results, made_rounds, made_row, made_runs
from run_factory import SITES, add_models, add_rows, make_run, make_sites, write_ledger
from solving import Key, Shown, ranges

from fedmerit.errors import BadInput
from fedmerit.schema.results import Row
from fedmerit.trust import allow_places
from fedmerit_evaluation.report.assembly import model_of_results
from fedmerit_evaluation.report.limits import Limit
from fedmerit_evaluation.report.model import ReportModel
from fedmerit_evaluation.report.redaction import ROUND_TO, hide_image_shares, rank_thirds, redact, rounded_others
from fedmerit_evaluation.report.report import build_site_model, write_report
from fedmerit_evaluation.report.tables import report_tables
from fedmerit_evaluation.results.runs import combine_results, open_runs
from fedmerit_evaluation.results.views import Results

OWN, OTHERS = SITES[1], [site for site in SITES if site != SITES[1]]
LEVELS = {"standalone": (0.60, 0.61, 0.60, 0.60), "fedce": (0.62, 0.71, 0.83, 0.90)}
IMAGES = {site: 71313 + 1111 * place for place, site in enumerate(SITES)}


def _model(results: Results) -> ReportModel:
    return model_of_results(made_runs(results, Path("nowhere")), results, results)


def _own(seeds: int = 3, **rounds: list[tuple[float, ...]]) -> ReportModel:
    rows = [row for name, values in rounds.items() for row in made_rounds(name, {"fedce": values}, SITES)]
    return redact(_model(made_dice(LEVELS, noise=0.0, seeds=seeds, sites=SITES, rounds=rows)), OWN)


def _numbers(content: Any) -> Iterator[float]:
    """Every number that an object holds, however deep."""
    if isinstance(content, (pd.DataFrame, pd.Series)):
        yield from _numbers(content.reset_index().to_numpy().ravel().tolist())
    elif dataclasses.is_dataclass(content) and not isinstance(content, type):
        yield from (number for one in dataclasses.fields(content) for number in _numbers(getattr(content, one.name)))
    elif isinstance(content, Mapping):
        yield from (number for part in content.items() for number in _numbers(part))
    elif isinstance(content, (list, tuple, set, frozenset)):
        yield from (number for part in content for number in _numbers(part))
    elif isinstance(content, (int, float, np.number)) and not isinstance(content, bool):
        yield float(content)


def _texts(content: Any) -> str:
    return repr(dataclasses.asdict(content))


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 10), place=st.integers(0, 9))
def test_no_number_and_no_name_of_another_hospital_survives(seed: int, count: int, place: int) -> None:
    random = np.random.default_rng(seed)
    sites = tuple(f"Site{number}" for number in range(count))
    levels = {method: tuple(random.uniform(0.3, 0.9, count)) for method in ("standalone", "fedce", "fedavg")}
    rounds = [
        made_row("fedce", run, number, site, quantity, float(value))
        for run in range(2)
        for number in range(2)
        for quantity in ("weight", "contribution", "reputation", "num_samples", "seconds")
        for site, value in zip(sites, random.uniform(0.1, 2.0, count), strict=True)
    ]
    results = made_dice(levels, noise=0.05, seeds=2, cases=3, sites=sites, rounds=rounds)
    model, own = _model(results), sites[place % count]
    hidden, left_out = hide_image_shares(results, count - 1)
    redacted = redact(_model(hidden), own, left_out)
    rows = results.rows
    numbers = {round(abs(number), 9) for number in _numbers(redacted) if number == number}
    known = {0.0, 1.0}
    foreign = set(rows.loc[rows["site"] != own, "value"]) | set(_numbers(model.tested["dice"].drop(own, level="site")))
    assert not {round(abs(number), 9) for number in foreign} - known & numbers
    named = "|".join(site for site in sites if site != own)
    assert not re.search(rf"({named})(?!\d)", _texts(redacted))
    own_rows = rows[(rows["site"] == own) & (rows["quantity"] == "dice")]
    assert set(redacted.cases) == set(model.cases.xs(own, level="site"))
    assert len(redacted.cases) == len(own_rows)


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1))
def test_own_numbers_do_not_depend_on_the_others(seed: int) -> None:
    """Whatever the others' Dice is, the own numbers of Dice are the same."""
    random = np.random.default_rng(seed)

    def own() -> ReportModel:
        levels = {method: (*random.uniform(0.3, 0.9, 3), 0.7 if method == "fedce" else 0.6) for method in LEVELS}
        return redact(_model(made_dice(levels, seeds=2, sites=SITES)), SITES[-1])

    first, second = own(), own()
    pd.testing.assert_frame_equal(first.tested, second.tested)
    columns = ["mean", "low", "high"]
    pd.testing.assert_frame_equal(first.intervals[columns], second.intervals[columns])
    pd.testing.assert_series_equal(first.cases, second.cases)


def test_dice_stands_beside_third_and_rounded_median() -> None:
    others = _own().others.set_index(["quantity", "method"])
    # it ranks third of four, in the middle at 2.5 of 4; the others' median is 83
    dice = others.loc["Dice [%]", "fedce"]
    assert (dice["own"], dice["third"], dice["median"]) == (pytest.approx(0.71), "middle third", pytest.approx(0.85))
    gain = others.loc["Gain [points]", "fedce"]
    assert (gain["third"], math.isnan(gain["median"])) == ("middle third", True)
    table = report_tables(_own())["others"].frame.set_index(["Quantity", "Method"])
    assert table.loc[("Dice [%]", "fedce"), OWN] == 71.0
    assert table.loc[("Gain [points]", "fedce"), OWN] == 10.0
    assert table.loc[("Dice [%]", "fedce"), "Others, median [%]"] == 85.0


def test_weight_and_share_of_contribution() -> None:
    model = _own(
        weight=[(0.1,) * 3, (0.4, 0.3, 0.2), (0.2, 0.3, 0.4), (0.3,) * 3],
        contribution=[(1.0,) * 3, (4.0,) * 3, (2.0,) * 3, (1.0,) * 3],
    )
    (row,) = model.contributions.to_dict("records")
    assert row == pytest.approx({"mean_weight": 0.3, "share": 0.5})
    others = model.others.set_index("quantity")
    assert others.loc["Share of contribution [%]", ["third", "median"]].to_list() == ["upper third", 0.1]
    assert pd.isna(others.loc["Weight, mean [%]", "median"])  # of weights nothing of the others is reported
    assert list(model.rounds) == ["weight"]
    assert list(model.rounds["weight"]) == [OWN]


def test_limits_keep_only_own_counts() -> None:
    limits = [
        Limit("few_patients", counts={"Alder": 3, OWN: 2}),
        Limit("both_empty", counts={"Alder": 3}),
        Limit("negative", values={"methods": ["fedce"]}),
        Limit("preparation", values={"note": "it"}),
    ]
    notes = [Limit("membership", counts={"Alder": 1}, values={"round": 1})]
    model = dataclasses.replace(_model(made_dice(LEVELS, sites=SITES)), limits=limits, notes=notes)
    redacted = redact(model, OWN)
    assert list(redacted.limits) == [Limit("few_patients", counts={OWN: 2}), limits[-1]]
    assert list(redacted.notes) == [Limit("membership", values={"round": 1})]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (
            "Among updates of A, that of A-1 is nearest to B.",
            "Among updates of another site, that of A-1 is nearest to another site.",
        ),
        ("Apart from 'A': 3 of A's cases", "Apart from 'another site': 3 of another site's cases"),
        ("BAD A_B", "BAD A_B"),
    ],
)
def test_reasons_name_no_other_site_and_keep_their_words(tmp_path: Path, reason: str, shown: str) -> None:
    run = make_run(tmp_path / "run", sites=("A", "A-1", "B", "St-C"), rounds=4)
    add_rows(run, [Row("run", "fedce", 0, 3, site, "rejected", 1.0) for site in ("A-1", "B")])
    write_ledger(run, [{"round": 3, "rejected": {"A-1": reason, "B": "no answer"}}])
    (flag,) = build_site_model(open_runs([run]), "A-1").flags.table.to_dict("records")
    assert (flag["Site"], flag["Rounds"], flag["Reason"]) == ("A-1", "3", shown)


def test_median_needs_three_known_others_and_quartiles_eight() -> None:
    table = pd.DataFrame({"own": [0.5, 0.5], "a": [0.11, 0.1], "b": [0.32, None], "c": [0.84, 0.5]}, index=["x", "y"])
    assert rounded_others(table, "own").to_dict() == {"median": pytest.approx({"x": 0.3})}
    many = pd.DataFrame([[0.5, *np.linspace(0.1, 0.8, 8)]], columns=["own", *"abcdefgh"])
    expected = {"median": 0.45, "lower quartile": 0.25, "upper quartile": 0.6}
    assert rounded_others(many, "own").iloc[0].to_dict() == pytest.approx(expected, abs=0.051)


def test_third_of_all_sites_needs_three_others() -> None:
    table = pd.DataFrame([[0.9, 0.5, 0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, None, None, None]], columns=list("abcdef"))
    assert rank_thirds(table, "a").to_list() == ["upper third", "\N{EN DASH}"]
    assert rank_thirds(table, "c").to_list() == ["middle third", "\N{EN DASH}"]
    assert rank_thirds(table, "a", lowest_first=True)[0] == "lower third"


def test_shares_of_training_images_are_hidden(tmp_path: Path) -> None:
    results = combine_results(open_runs([make_run(tmp_path / "run", method="fedavg", rounds=3)]))
    assert hide_image_shares(results, 3) == (results, [])
    rows = results.rows.copy()
    images = {site: 40.0 + 10 * place for place, site in enumerate(SITES)}
    weight = rows["quantity"] == "weight"
    shares = weight & (rows["round"] == 1)
    rows.loc[shares, "value"] = rows.loc[shares, "site"].map(images) / sum(images.values())
    rows.loc[weight & (rows["round"] == 2), "value"] = rows["site"].map(images) / 500
    gone = weight & (rows["round"] == 2) & (rows["site"] == "Alder")
    rows.loc[gone, "value"] = 0.0  # an expelled site: the others share by images still
    kept, left_out = hide_image_shares(Results(rows), 3)
    assert left_out == ["images"]
    assert list(kept.rounds.of("weight").index.get_level_values("round")) == [0]
    assert list(kept.rounds.of("contribution").index.get_level_values("round")) == [0, 1, 2]


def test_two_sites_have_no_weights_and_shares() -> None:
    rounds = made_rounds("weight", {"fedce": [(0.3,), (0.7,)]}, SITES[:2])
    results = made_results([*rounds, *made_rounds("contribution", {"fedce": [(1.0,), (3.0,)]}, SITES[:2])], ["fedce"])
    kept, left_out = hide_image_shares(results, 1)
    assert left_out == ["two_sites"]
    assert kept.rows.empty


def _runs(root: Path, sites: tuple[str, ...] = SITES) -> list[Path]:
    """Runs whose numbers of images can be searched for."""
    made = []
    for method in ("standalone", "fedavg", "fedce"):
        for seed in (0, 1):
            run = make_run(root / f"{method}-{seed}", method=method, seed=seed, rounds=4, sites=sites)
            text = (run / "results.csv").read_text()
            for site, count in IMAGES.items():
                text = re.sub(rf"(,{site},,,,,num_samples),[\d.]+", rf"\1,{count}.0", text)
            (run / "results.csv").write_text(text)
            made.append(run)
    return made


def _everything(page: Path) -> bytes:
    """The bytes of a page, of what it holds encoded, and of all files beside it."""
    content = page.read_bytes()
    inside = [base64.b64decode(part) for part in re.findall(rb"base64,([A-Za-z0-9+/=]+)", content)]
    beside = [file.read_bytes() for file in page.parent.rglob("*") if file.is_file()]
    names = "\n".join(str(file.relative_to(page.parent)) for file in page.parent.rglob("*")).encode()
    return b"\n".join([content, *inside, *beside, names])


@pytest.mark.usefixtures("drawn")
def test_page_and_files_hold_no_other_name_nor_number_of_images(tmp_path: Path) -> None:
    sites = make_sites(tmp_path / "sites")
    allow_places(sites)
    runs = _runs(tmp_path)[1::2]
    for run in runs:
        add_models(run, SITES if "standalone" in run.name else ("global",))
        info = (run / "run.json").read_text()
        (run / "run.json").write_text(info.replace('"sites_folder": null', f'"sites_folder": "{sites}"'))
    add_rows(
        runs[-1], [Row("x", "fedce", 1, 2, "Cedar", "rejected", 1.0), Row("x", "fedce", 1, 2, OWN, "flagged", 1.0)]
    )
    write_ledger(runs[-1], [{"round": 2, "rejected": {"Cedar": "update of Dogwood"}}])
    path = write_report(runs, site=OWN)
    assert path == (tmp_path / f"for-{OWN}" / "report.html").resolve()
    content = _everything(path)
    assert OWN.encode() in content
    assert (path.parent / "report-files" / "figures" / "overlays.png").exists()
    for other in OTHERS:
        assert other.encode() not in content
        assert str(IMAGES[other]).encode() not in content
    assert str(tmp_path).encode() not in content


@pytest.mark.slow
def test_search_finds_names_in_the_report_on_all(tmp_path: Path) -> None:
    steering = _everything(write_report(_runs(tmp_path)[-1:], tmp_path / "all" / "report.html", images=False))
    assert all(other.encode() in steering for other in OTHERS)


@pytest.mark.parametrize("count", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 4, 6, 8))])
def test_nobody_can_solve_for_the_others(tmp_path: Path, count: int) -> None:
    """By all numbers of all tables together, no number of another site is known within 10 percent."""
    sites = tuple(f"Site{place}" for place in range(count))
    runs = [
        make_run(tmp_path / f"{method}-{seed}", method=method, seed=seed, rounds=3, sites=sites, surfaces=True)
        for method in ("standalone", "fedce")
        for seed in (0, 1)
    ]
    tables = report_tables(build_site_model(open_runs(runs), sites[0]))
    shown = dict(_shown({name: table.frame for name, table in tables.items()}, sites[0], count - 1))
    assert {("Dice [%]", "fedce"), ("Dice [%]", "standalone"), ("Gain [points]", "fedce")} <= shown.keys()
    assert count == 2 or {"Weight, mean [%]", "Share of contribution [%]"} <= {quantity for quantity, _ in shown}
    for key, (low, high) in ranges(shown, count - 1).items():
        assert high - low >= 10, (key, low, high)
    digits = [str(cell) for table in tables.values() for cell in table.frame.to_numpy().ravel()]
    assert not [cell for cell in digits if re.fullmatch(r"-?\d+\.\d{2,}", cell)]


def _shown(tables: Mapping[str, pd.DataFrame], site: str, others: int) -> Iterator[tuple[Key, Shown]]:
    """What the tables for one site say of each quantity and method."""
    own = {("Dice [%]", str(row["Method"])): float(row["Dice [%]"]) for row in tables["dice"].to_dict("records")}
    own |= {("Gain [points]", str(row["Method"])): float(row[site]) for row in tables["gains"].to_dict("records")}
    for name in ("Weight, mean [%]", "Share of contribution [%]") if "contributions" in tables else ():
        rows = tables["contributions"].dropna(subset=name).to_dict("records")
        own |= {(name, str(row["Method"])): float(row[name]) for row in rows}
    beside = {(row["Quantity"], row["Method"]): row for row in tables.get("others", pd.DataFrame()).to_dict("records")}
    own |= {(str(quantity), str(method)): float(row[site]) for (quantity, method), row in beside.items()}
    for (quantity, method), number in own.items():
        row = beside.get((quantity, method), {})
        median = float(row.get("Others, median [%]", np.nan))
        is_gain = quantity == "Gain [points]"
        yield (
            (quantity, method),
            Shown(
                own=number,
                median=None if np.isnan(median) else (median - 50 * ROUND_TO, median + 50 * ROUND_TO),
                above=_above(str(row.get("Rank among all sites", "")), others),
                whole=100.0 if quantity.startswith(("Weight", "Share")) else None,
                limits=(-100.0, 100.0) if is_gain else (0.0, 300.0) if "mm]" in quantity else (0.0, 100.0),
                is_difference=(("Dice [%]", method), ("Dice [%]", "standalone")) if is_gain else None,
            ),
        )


def _above(third: str, others: int) -> list[int]:
    """How many others may lie above the own number, by the third in which it ranks."""
    thirds = {"upper third": (0, 1), "middle third": (1, 2), "lower third": (2, 3)}
    first, last = thirds.get(third, (0, 3))
    return [above for above in range(others + 1) if first <= 3 * (above + 0.5) / (others + 1) <= last]


@pytest.mark.parametrize("count", [*(pytest.param(count, marks=pytest.mark.slow) for count in (1, 2)), 3])
def test_too_few_others_are_not_shown_and_the_page_says_why(tmp_path: Path, count: int) -> None:
    runs = _runs(tmp_path, SITES[:count])
    assert build_site_model(open_runs(runs), SITES[0]).others.empty
    page = write_report(runs, site=SITES[0]).read_text()
    assert "Nothing is shown of the other hospitals: of so few, a median would reveal single numbers." in page


@pytest.mark.slow
def test_files_of_an_earlier_report_for_another_site_are_removed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4)
    add_rows(run, [Row("run", "fedce", 0, 3, "Cedar", "rejected", 1.0)])
    write_ledger(run, [{"round": 3, "rejected": {"Cedar": "update with NaN"}}])
    out = tmp_path / "own" / "page.html"
    write_report([run], out, site="Cedar")
    write_report([run], out, site=OWN)
    assert b"Cedar" not in _everything(out)


def test_unknown_site_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=2)
    with pytest.raises(BadInput, match=r"--site Yew: no site of .*run; its sites are Alder, Birch"):
        write_report([run], site="Yew")
    assert not list(tmp_path.glob("run/for-*"))


def test_runs_named_after_a_site_are_numbered(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, rounds=3) for name in ("Cedar-study", "Dogwood-study")]
    model = build_site_model(open_runs(runs), OWN)
    assert model.methods == ["fedce [1]", "fedce [2]"]
    assert "Cedar" not in _texts(model)


def test_without_images_no_picture_of_a_patient(tmp_path: Path) -> None:
    sites = make_sites(tmp_path / "sites", (OWN,))
    run = make_run(tmp_path / "run", rounds=3)
    add_models(run)
    out = tmp_path / "own" / "report.html"
    assert "must not leave the hospital" in write_report([run], out, site=OWN, sites=sites).read_text()
    page = write_report([run], out, site=OWN, sites=sites, images=False).read_text()
    assert "must not leave" not in page
    assert "image/png" not in page
    assert not (tmp_path / "own" / "report-files" / "figures" / "overlays.png").exists()
