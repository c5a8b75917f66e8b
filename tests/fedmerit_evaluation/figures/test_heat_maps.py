"""What sites hold of each other, as coloured cells."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from run_factory import SITES, add_rows, make_run

from fedmerit.records.results import Row
from fedmerit_evaluation.figures import heat_maps
from fedmerit_evaluation.figures.drawing import png
from fedmerit_evaluation.report.all_sites import write_report
from fedmerit_evaluation.results.run_folders import combine_results, open_runs
from fedmerit_evaluation.results.views import Results


def _held(root: Path, rounds: int, seeds: int = 2) -> Results:
    """A run per seed in which a site's reputation with another is a number of both, the round and the seed."""
    made = []
    for seed in range(seeds):
        run = make_run(root / f"cycle-{seed}", method="cycle", seed=seed, rounds=rounds)
        rows = [
            Row(
                "cycle",
                "cycle",
                seed,
                number,
                site,
                "peer_reputation",
                _reputation(i, k, number, seed),
                coalition=holder,
            )
            for number in range(1, rounds)
            for i, holder in enumerate(SITES)
            for k, site in enumerate(SITES)
            if i != k
        ]
        add_rows(run, rows)
        made.append(run)
    return combine_results(open_runs(made))


def _reputation(holder: int, site: int, number: int, seed: int) -> float:
    return (0.1 * holder + 0.2 * site + 0.01 * number + 0.02 * seed) % 1.0


@pytest.mark.parametrize("rounds", [2, 3, 12])
def test_reputations_among_peers_are_drawn_with_the_holder_in_the_row(tmp_path: Path, rounds: int) -> None:
    results = _held(tmp_path, rounds)
    table = results.rounds.pairs("peer_reputation").loc["cycle"]
    for i, holder in enumerate(SITES):
        for k, site in enumerate(SITES):
            found = table.loc[(1, holder), site]
            expected = np.mean([_reputation(i, k, 1, seed) for seed in (0, 1)]) if i != k else np.nan
            np.testing.assert_allclose(found, expected)
    figure = heat_maps.reputations(results)
    shown = [panel for panel in figure.axes if panel.images]
    assert [panel.get_title(loc="left") for panel in shown] == [
        f"Round {n}" for n in {2: [1], 3: [1, 2], 12: [1, 6, 11]}[rounds]
    ]
    cells = np.ma.filled(shown[0].images[0].get_array(), np.nan)
    np.testing.assert_allclose(cells[:-1], table.loc[1].to_numpy())
    np.testing.assert_allclose(cells[-1], table.groupby(level="round").mean().mean().to_numpy())
    assert [label.get_text() for label in shown[0].get_yticklabels()] == [*SITES, "all rounds"]
    assert png(figure).startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_report_shows_reputations_among_peers_where_there_are_any(tmp_path: Path) -> None:
    _held(tmp_path, 3, seeds=1)
    page = write_report([tmp_path / "cycle-0"], tmp_path / "out" / "report.html", images=False)
    assert (tmp_path / "out/figures/peers.png").is_file()
    assert "with each of the others" in page.read_text()
    make_run(tmp_path / "fedavg", method="fedavg")
    page = write_report([tmp_path / "fedavg"], tmp_path / "out" / "report.html", images=False)
    assert not (tmp_path / "out/figures/peers.png").exists()
    assert "with each of the others" not in page.read_text()


def test_who_gains_who_loses_at_what_cost():
    """The highest mean on top; a site without a number is left empty."""
    points = pd.DataFrame({"A": [1.0, 14.0], "B": [-3.0, np.nan]}, index=["fedavg", "fedce"])
    figure = heat_maps.gains(points, pd.Series({"fedce": 1.5, "fedavg": 1.1, "standalone": 0.0}))
    panel, beside = figure.axes
    assert [tick.get_text() for tick in panel.get_yticklabels()] == ["fedce", "fedavg"]
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["A", "B", "all sites"]
    written = [text.get_text() for text in panel.texts]
    assert written == ["+14.0", "+14.0", "+1.0", "\N{MINUS SIGN}3.0", "\N{MINUS SIGN}1.0"]
    assert [bar.get_width() for bar in beside.patches] == [1.5, 1.1]
    assert png(figure)
    assert len(heat_maps.gains(points).axes) == 1


def test_dice_of_many_methods():
    figure = heat_maps.dice(
        pd.DataFrame(
            {"A": [70.0, 80.04], "B": [72.0, np.nan]}, index=["fedavg", "cycle:score=agreement:warmup_by=fedavg"]
        )
    )
    (panel,) = figure.axes
    assert [tick.get_text() for tick in panel.get_yticklabels()] == [
        "cycle: score=agreement:\nwarmup_by=fedavg",
        "fedavg",
    ]
    assert [text.get_text() for text in panel.texts] == ["80.0", "80.0", "70.0", "72.0", "71.0"]
    assert [text.get_color() for text in panel.texts][:3] == ["white", "white", "#1b1e23"]
    assert png(figure)
