"""What sites hold of each other, as coloured cells."""

from pathlib import Path

import numpy as np
import pytest
from run_factory import SITES, add_rows, make_run

from fedmerit.schema.results import Row
from fedmerit_evaluation.figures.drawing import png
from fedmerit_evaluation.results.runs import combine_results, open_runs
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.papers.cycle import reputations


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
    figure = reputations(results)
    shown = [panel for panel in figure.axes if panel.images]
    assert [panel.get_title(loc="left") for panel in shown] == [
        f"Round {n}" for n in {2: [1], 3: [1, 2], 12: [1, 6, 11]}[rounds]
    ]
    cells = np.ma.filled(shown[0].images[0].get_array(), np.nan)
    np.testing.assert_allclose(cells[:-1], table.loc[1].to_numpy())
    np.testing.assert_allclose(cells[-1], table.groupby(level="round").mean().mean().to_numpy())
    assert [label.get_text() for label in shown[0].get_yticklabels()] == [*SITES, "all rounds"]
    assert png(figure).startswith(b"\x89PNG")
