"""The report for one hospital: what it says of itself, and that nothing in it tells another site's name or images."""

import base64
import re
from pathlib import Path

import pandas as pd
import pytest
from run_factory import SITES, add_models, add_rows, make_run, make_sites, write_ledger

from evaluation.report.all_sites import write_report
from evaluation.report.one_site import write_site_report
from evaluation.report.own_site import FEWEST_OTHERS, QUANTILES, quantiles, without_image_shares
from evaluation.results.run_folders import open_runs, together
from evaluation.results.views import Results
from fedmerit.errors import BadInput
from fedmerit.records.results import Row

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
    runs = _runs(tmp_path)
    for run in runs:
        add_models(run, SITES if "standalone" in run.name else ("global",))
        info = (run / "run.json").read_text()
        info = info.replace('"sites_folder": null', f'"sites_folder": "{sites}", "behaviours": {{"Alder": "zero"}}')
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

    steering = _everything(write_report(runs, tmp_path / "all" / "report.html", images=False))
    assert all(other.encode() in steering for other in OTHERS)  # the search finds what is there


def test_its_numbers_are_its_own_and_the_quantiles_of_the_others(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    path = write_site_report(runs, OWN)
    write_report(runs, tmp_path / "all" / "report.html")
    full = pd.read_csv(tmp_path / "all" / "tables" / "dice.csv").pivot(
        index="Method", columns="Site", values="Dice [%]"
    )
    own = pd.read_csv(path.parent / "report-files" / "tables" / "own-dice.csv").set_index("Method")
    for method, row in own.iterrows():
        assert row[OWN] == pytest.approx(full.loc[method, OWN])
        others = full.loc[method, OTHERS]
        for name, share in QUANTILES.items():
            assert row[f"Others, {name}"] == pytest.approx(others.quantile(share))
    gains = pd.read_csv(path.parent / "report-files" / "tables" / "own-gains.csv").set_index("Method")
    assert gains.loc["fedce", OWN] == pytest.approx(full.loc["fedce", OWN] - full.loc["standalone", OWN])


def test_its_surfaces_beside_the_quantiles_of_the_others(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=2, surfaces=True)
    tables = write_site_report([run], OWN).parent / "report-files" / "tables"
    shown = pd.read_csv(tables / "own-surfaces.csv").set_index("Quantity")
    dice = pd.read_csv(tables / "own-dice.csv").iloc[0]
    assert shown.loc["HD95 [mm]", OWN] == pytest.approx(20 - 0.2 * dice[OWN])
    assert shown.loc["HD95 [mm]", "Others, median"] == pytest.approx(20 - 0.2 * dice["Others, median"])
    assert shown.loc["NSD at 2 mm [%]", "Others, max"] == pytest.approx(dice["Others, max"])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_too_few_others_are_not_shown_and_the_page_says_why(tmp_path: Path, count: int) -> None:
    path = write_site_report(_runs(tmp_path, SITES[:count]), SITES[0])
    page = path.read_text()
    assert f"quantiles of fewer than {FEWEST_OTHERS} would be single sites' numbers" in page
    own = pd.read_csv(path.parent / "report-files" / "tables" / "own-dice.csv")
    assert [name for name in own if "Others" in name] == []
    assert "median of" not in page


def test_quantiles_need_three_known_others() -> None:
    table = pd.DataFrame({"a": [0.1, 0.1], "b": [0.3, None], "c": [0.8, 0.5]}, index=["x", "y"])
    found = quantiles(table)
    assert list(found.index) == ["x"]
    assert found.loc["x"].to_dict() == pytest.approx(
        {"min": 0.1, "lower quartile": 0.2, "median": 0.3, "upper quartile": 0.55, "max": 0.8}
    )


def test_shares_of_training_images_are_left_out(tmp_path: Path) -> None:
    results = together(open_runs([make_run(tmp_path / "run", method="fedavg", rounds=3)]))
    assert without_image_shares(results) == (results, False)
    rows = results.rows.copy()
    images = {site: 40.0 + 10 * place for place, site in enumerate(SITES)}
    weight = rows["quantity"] == "weight"
    shares = weight & (rows["round"] == 1)
    rows.loc[shares, "value"] = rows.loc[shares, "site"].map(images) / sum(images.values())
    rows.loc[weight & (rows["round"] == 2), "value"] = rows["site"].map(images) / 500
    gone = weight & (rows["round"] == 2) & (rows["site"] == "Alder")
    rows.loc[gone, "value"] = 0.0  # an expelled site: the others share by images still
    kept, left_out = without_image_shares(Results(rows))
    assert left_out
    assert list(kept.rounds.of("weight").index.get_level_values("round")) == [0]
    assert list(kept.rounds.of("contribution").index.get_level_values("round")) == [0, 1, 2]


def test_of_the_marks_its_own_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4)
    add_rows(run, [Row("run", "fedce", 0, 3, site, "rejected", 1.0) for site in (OWN, "Cedar")])
    write_ledger(run, [{"round": 3, "rejected": {OWN: "update with NaN", "Cedar": "no answer"}}])
    path = write_site_report([run], OWN)
    marks = pd.read_csv(path.parent / "report-files" / "tables" / "own-marks.csv")
    assert marks[["Site", "Rounds", "Reason"]].to_numpy().tolist() == [[OWN, 3, "update with NaN"]]


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
