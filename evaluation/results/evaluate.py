"""Dice of a finished run's final models on site folders, also on sites that took no part."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from evaluation.results.final_models import final_models
from evaluation.results.run_folders import open_run
from fedmerit.errors import BadInput
from fedmerit.files import write_text
from fedmerit.records.results import COLUMNS, Row
from fedmerit.training.data import open_sites
from fedmerit.training.overlaps import Overlap
from fedmerit.training.prediction import evaluate as overlaps_of


def evaluate(run: Path, sites: Path, split: str = "testing", out: Path | None = None) -> pd.DataFrame:
    """Evaluate the global model on every site, or each site's own model on its site; and write the table.

    Args:
        run: a finished run folder.
        sites: a folder of site folders.
        split: ``training``, ``validation``, ``testing`` or ``server_validation``.
        out: CSV file to write; ``RUN/evaluation/<split>-<name of the sites folder>.csv`` where not given.

    Returns:
        Rows in the schema of results.csv, of the last round: Dice and the voxel counts per case and label.

    Raises:
        BadInput: no model, no case, or a site that no model fits (channels, labels, image size).
    """
    opened = open_run(run)
    folders = open_sites(sites)
    model_of = final_models(run)
    rows: list[Row] = []
    for site in folders:
        network = model_of(site)
        head = (opened.info["run"], opened.info["method"], opened.seed, max(opened.rounds_done, 1) - 1, site.name)
        for overlap in overlaps_of(network, site.cases(split), site.labels, opened.info["training"].get("amp", False)):
            rows += (Row(*head, name, value, split, overlap.case, overlap.label) for name, value in _measured(overlap))
    if not rows:
        raise BadInput(f"{sites}: no site has a {split} case; choose another --split or prepare the sites again")
    table = pd.DataFrame([asdict(row) for row in rows], columns=COLUMNS).astype({"value": float})
    out = out or Path(run) / "evaluation" / f"{split}-{Path(sites).resolve().name}.csv"
    write_text(out, table.to_csv(index=False, lineterminator="\n"))
    return table


def _measured(overlap: Overlap) -> Iterator[tuple[str, float | None]]:
    yield "dice", overlap.dice
    for name in ("true_positives", "false_positives", "false_negatives"):
        yield name, float(getattr(overlap, name))
