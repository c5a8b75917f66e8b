"""Reports of a run whose run.json the server of a deployment wrote: it knows neither folder of sites nor image."""

from pathlib import Path

import pytest
from run_factory import SITES, make_run

from fedmerit.files import write_json
from fedmerit.schema.configuration.data import Preprocessing
from fedmerit.schema.configuration.run import describe, make_configuration
from fedmerit_dossier.dossier import NOT_KNOWN, write_dossier
from fedmerit_dossier.evidence import open_sources, preparation
from fedmerit_evaluation.report.report import write_report
from fedmerit_evaluation.results.runs import open_runs
from fedmerit_evaluation.valuation.valued_runs import default_estimators, value_runs, value_tables

ROUNDS = 2


def _deployed(run: Path, preprocessing: Preprocessing | None = None) -> Path:
    """As `fedmerit.engines.nvflare.controller` writes it."""
    network = {"in_channels": 1, "labels": ["prostate"]}
    config = make_configuration("fedce", "prostate", ROUNDS, 0, network, {}, preprocessing=preprocessing)
    make_run(run, rounds=ROUNDS)
    write_json(run / "run.json", describe(run.name, config, SITES, "prod") | {"command": "NVFlare job 1"})
    return run


@pytest.mark.usefixtures("undrawn")
def test_report_dossier_and_values(tmp_path: Path) -> None:
    run = _deployed(tmp_path / "run")
    assert "images are not on this machine" in write_report([run]).read_text()
    assert NOT_KNOWN in write_dossier([run], tmp_path / "dossier").read_text()
    specs = default_estimators([run])
    assert specs == ["contribution", "data_size"]
    valued = value_runs([run], specs, draws=2)
    assert {table.name for table in value_tables(valued)} >= {"values-contribution", "values-data-size"}


def test_images_are_described_by_the_plan(tmp_path: Path) -> None:
    run = _deployed(tmp_path / "run", Preprocessing((48, 32)))
    assert preparation(open_sources(open_runs([run]), None)) == "Slices of 48 x 32 pixels."
