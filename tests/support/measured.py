"""What a run measured, except what no two runs share."""

from pathlib import Path

from fedmerit.schema.results import read_results


def rows(run: Path) -> list[tuple[object, ...]]:
    """results.csv without the run's name and the seconds."""
    table = read_results(run)
    table = table[~table["quantity"].str.endswith("seconds")].drop(columns="run")
    return [tuple(row) for row in table.astype(str).itertuples(index=False)]
