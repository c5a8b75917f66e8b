"""`fedmerit fairness` on made-up runs: what it prints and writes; the numbers are tested with what it calls."""

import pytest
from run_factory import SITES, make_run

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
    names = ("dice", "gains", "performance", "performance-ranks", "rewards")
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {
        *(f"fairness-{name}.{kind}" for name in names for kind in ("csv", "tex")), "fairness.csv", "notes.txt"
    }  # fmt: skip
    for words in ("Table 2 of Jiang et al. 2023", "MCG and CGS of CYCle", "Kendall", f"tables: {tmp_path / 'tables'}"):
        assert words in " ".join(result.output.split())


def test_what_is_missing_is_noted_on_standard_error(fedmerit, runs):
    result = fedmerit("fairness", runs / "fedavg_seed0", *DRAWS)
    assert result.exit_code == 0, result.output
    assert "note: seed 0: no run that trains alone" in result.stderr
    assert "Table 2" not in result.stdout


def test_two_sites_have_no_correlation(fedmerit, tmp_path):
    for method in ("standalone", "fedavg"):
        make_run(tmp_path / f"{method}_seed0", method=method, rounds=2, sites=SITES[:2])
    result = fedmerit("fairness", tmp_path, *DRAWS)
    assert result.exit_code == 0, result.output
    assert "pearson, pearson_p undefined for fedavg: 2 sites; a correlation takes 3" in result.stderr


def test_bad_input(fedmerit, runs, tmp_path):
    for given, words in (
        ((tmp_path / "gone",), "no such run folder"),
        ((runs, "--split", "union"), "--split union: no run was tested on it"),
    ):
        result = fedmerit("fairness", *given, *DRAWS)
        assert result.exit_code == 2
        assert words in result.stderr
        assert "Traceback" not in result.output
