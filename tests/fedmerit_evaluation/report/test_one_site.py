"""The report for one hospital: what it says of itself, and that nothing in it tells another site's name or images."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from run_factory import SITES, add_models, add_rows, make_run, make_sites, write_ledger
from solving import Key, Shown, ranges

from fedmerit.errors import BadInput
from fedmerit.schema.results import Row
from fedmerit.trust import allow_places
from fedmerit_evaluation.report.all_sites import write_report
from fedmerit_evaluation.report.one_site import write_site_report
from fedmerit_evaluation.report.one_site_tables import MIN_OTHERS, ROUND_TO

OWN, OTHERS = SITES[1], [site for site in SITES if site != SITES[1]]
IMAGES = {site: 71313 + 1111 * place for place, site in enumerate(SITES)}


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
    held = [base64.b64decode(part) for part in re.findall(rb"base64,([A-Za-z0-9+/=]+)", content)]
    beside = [file.read_bytes() for file in page.parent.rglob("*") if file.is_file()]
    named = "\n".join(str(file.relative_to(page.parent)) for file in page.parent.rglob("*")).encode()
    return b"\n".join([content, *held, *beside, named])


@pytest.mark.usefixtures("drawn")
def test_no_other_sites_name_nor_number_of_images_is_anywhere(tmp_path: Path) -> None:
    sites = make_sites(tmp_path / "sites")
    allow_places(sites)
    runs = _runs(tmp_path)[1::2]
    for run in runs:
        add_models(run, SITES if "standalone" in run.name else ("global",))
        info = (run / "run.json").read_text()
        info = info.replace('"sites_folder": null', f'"sites_folder": "{sites}", "attacks": {{"Alder": "zero"}}')
        (run / "run.json").write_text(info)
    add_rows(
        runs[-1], [Row("x", "fedce", 1, 2, "Cedar", "rejected", 1.0), Row("x", "fedce", 1, 2, OWN, "flagged", 1.0)]
    )
    write_ledger(runs[-1], [{"round": 2, "rejected": {"Cedar": "update of Dogwood"}}])

    path = write_site_report(runs, OWN)
    assert path == (tmp_path / f"for-{OWN}" / "report.html").resolve()
    content = _everything(path)
    assert OWN.encode() in content
    assert (path.parent / "report-files" / "figures" / "own-overlays.png").exists()
    for other in OTHERS:
        assert other.encode() not in content
        assert str(IMAGES[other]).encode() not in content
    assert str(tmp_path).encode() not in content


def test_that_search_finds_what_is_there(tmp_path: Path) -> None:
    steering = _everything(write_report(_runs(tmp_path)[-1:], tmp_path / "all" / "report.html", images=False))
    assert all(other.encode() in steering for other in OTHERS)


def test_its_numbers_are_its_own_and_one_rounded_median(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    path = write_site_report(runs, OWN)
    write_report(runs, tmp_path / "all" / "report.html")
    full = pd.read_csv(tmp_path / "all" / "tables" / "dice.csv").pivot(
        index="Method", columns="Site", values="Dice [%]"
    )
    own = pd.read_csv(path.parent / "report-files" / "tables" / "own-dice.csv").set_index("Method")
    assert [name for name in own if "Others" in name] == ["Others, median"]
    for method, row in own.iterrows():
        assert row[OWN] == pytest.approx(full.loc[method, OWN], abs=0.05)
        assert row["Others, median"] == pytest.approx(5 * round(full.loc[method, OTHERS].median() / 5))
    gains = pd.read_csv(path.parent / "report-files" / "tables" / "own-gains.csv").set_index("Method")
    assert gains.loc["fedce", OWN] == pytest.approx(full.loc["fedce", OWN] - full.loc["standalone", OWN], abs=0.05)
    assert not [name for name in gains if "Others" in name]


def test_a_gain_is_over_training_alone_with_the_methods_settings(tmp_path: Path) -> None:
    rounds = {"fedce": 2, "standalone": 2, "standalone-1r": 1}
    runs = [make_run(tmp_path / name, method=name.split("-")[0], rounds=number) for name, number in rounds.items()]
    assert "Gain not known" not in write_site_report(runs, OWN, images=False).read_text()
    assert (
        "Gain not known: runs of standalone that differ"
        in write_site_report(
            [runs[0], runs[2], make_run(tmp_path / "other", method="standalone", rounds=3)], OWN, images=False
        ).read_text()
    )


@pytest.mark.parametrize("count", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 4, 6, 8))])
def test_nobody_can_solve_for_the_others(tmp_path: Path, count: int) -> None:
    """By all numbers of all tables and figures together, no number of another site is known within 10 percent."""
    sites = tuple(f"Site{place}" for place in range(count))
    runs = [
        make_run(tmp_path / f"{method}-{seed}", method=method, seed=seed, rounds=3, sites=sites, surfaces=True)
        for method in ("standalone", "fedce")
        for seed in (0, 1)
    ]
    folder = write_site_report(runs, sites[0]).parent / "report-files"
    shown = {key: one for file in (folder / "tables").glob("*.csv") for key, one in _shown(file, count - 1)}
    assert {("own-dice", "fedce"), ("own-dice", "standalone"), ("own-gains", "fedce")} <= shown.keys()
    assert count == 2 or {"Weight, mean [%]", "Share of contribution [%]"} <= {quantity for quantity, _ in shown}
    for key, (low, high) in ranges(shown, count - 1).items():
        assert high - low >= 10, (key, low, high)
    figures = "".join(file.name for file in (folder / "figures").glob("*.png"))
    assert set(re.findall(r"own-(\w+)\.png", figures)) <= {"dice", "validation", "weights"}  # of the own line alone
    digits = (folder / "tables" / "own-dice.csv").read_text()
    assert not re.search(r"\d\.\d{3}", digits)


def _shown(file: Path, others: int) -> Iterator[tuple[Key, Shown]]:
    """What a table for one site says of each quantity and method."""
    table = pd.read_csv(file)
    if "Site0" not in table:
        return
    for row in table.to_dict("records"):
        quantity, method = str(row.get("Quantity", file.stem)), str(row["Method"])
        limits = (0.0, 300.0) if "mm]" in quantity else (0.0, 100.0)
        median = float(row.get("Others, median", np.nan))
        parts = None
        if quantity == "own-gains":
            limits, parts = (-100.0, 100.0), (("own-dice", method), ("own-dice", "standalone"))
        yield (
            (quantity, method),
            Shown(
                own=float(row["Site0"]),
                median=None if np.isnan(median) else (median - 50 * ROUND_TO, median + 50 * ROUND_TO),
                above=_above(str(row.get("Rank among all sites", "")), others),
                whole=100.0 if quantity.startswith(("Weight", "Share")) else None,
                limits=limits,
                is_difference=parts,
            ),
        )


def _above(band: str, others: int) -> list[int]:
    """How many others may lie above the own number, by the third in which it ranks."""
    thirds = {"upper third": (0, 1), "middle third": (1, 2), "lower third": (2, 3)}
    first, last = thirds.get(band, (0, 3))
    return [above for above in range(others + 1) if first <= 3 * (above + 0.5) / (others + 1) <= last]


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_too_few_others_are_not_shown_and_the_page_says_why(tmp_path: Path, count: int) -> None:
    path = write_site_report(_runs(tmp_path, SITES[:count]), SITES[0])
    page = path.read_text()
    assert f"a median of fewer than {MIN_OTHERS} would reveal single sites' numbers" in page
    own = pd.read_csv(path.parent / "report-files" / "tables" / "own-dice.csv")
    assert [name for name in own if "Others" in name] == []
    assert "Median of the others" not in page
    assert "third" not in "".join(own.astype(str).to_numpy().ravel())


def test_with_one_other_site_nothing_is_shown_that_sums_to_a_whole(tmp_path: Path) -> None:
    page = write_site_report(_runs(tmp_path, SITES[:2]), SITES[0])
    assert "the rest of the whole is the other" in page.read_text()
    assert not list((page.parent / "report-files").glob("*/own-contributions*"))
    assert not list((page.parent / "report-files").glob("*/own-weights*"))


@pytest.mark.slow
def test_what_an_earlier_report_of_another_site_left_is_removed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4)
    add_rows(run, [Row("run", "fedce", 0, 3, "Cedar", "rejected", 1.0)])
    write_ledger(run, [{"round": 3, "rejected": {"Cedar": "update with NaN"}}])
    out = tmp_path / "own" / "page.html"
    write_site_report([run], "Cedar", out)
    write_site_report([run], OWN, out)
    assert b"Cedar" not in _everything(out)


def test_an_unknown_site_is_named_with_those_there_are(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=2)
    with pytest.raises(BadInput, match=r"--site Yew: no site of .*run; its sites are Alder, Birch"):
        write_site_report([run], "Yew")
    assert not list(tmp_path.glob("run/for-*"))


@pytest.mark.slow
@pytest.mark.usefixtures("drawn")
def test_runs_named_after_a_site_are_numbered(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, rounds=3) for name in ("Cedar-study", "Dogwood-study")]
    content = _everything(write_site_report(runs, OWN, tmp_path / "own" / "report.html"))
    assert b"Cedar" not in content
    assert b"fedce [2]" in content


def test_without_images_no_picture_of_a_patient(tmp_path: Path) -> None:
    sites = make_sites(tmp_path / "sites", (OWN,))
    run = make_run(tmp_path / "run", rounds=3)
    add_models(run)
    out = tmp_path / "own" / "report.html"
    assert "must not leave the hospital" in write_site_report([run], OWN, out, sites=sites).read_text()
    page = write_site_report([run], OWN, out, sites=sites, images=False).read_text()
    assert "must not leave" not in page
    assert "image/png" not in page
    assert not (tmp_path / "own" / "report-files" / "figures" / "own-overlays.png").exists()
