"""The test loss of final models: its mean, and that it is computed once for the same sites."""

import math
from pathlib import Path

import pandas as pd
import pytest
from run_factory import add_models, make_run, make_sites

from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites
from fedmerit.trainers.monai.prediction import image_losses
from fedmerit.trainers.monai.samples import Slices
from fedmerit_evaluation.results.evaluation import final_models
from fedmerit_lab.papers import cgsv as module
from fedmerit_lab.papers.cgsv import final_losses


def test_it_is_the_mean_over_the_test_images_of_all_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, sites = make_run(tmp_path / "run", sites=("A", "B")), make_sites(tmp_path / "sites", ("A", "B"))
    with pytest.raises(BadInput, match="no model in it"):
        final_losses(run, sites)
    add_models(run)
    found = final_losses(run, sites)
    folders = open_sites(sites)
    images = Slices([case for folder in folders for case in folder.cases("testing")])
    expected = [float(image_losses(final_models(run)(folder), images).mean()) for folder in folders]
    assert found.index.to_list() == ["A", "B"]
    assert found.to_list() == pytest.approx(expected)
    others = make_sites(tmp_path / "others", ("A", "C"), size=32)
    assert final_losses(run, others).index.to_list() == ["A", "C"]
    monkeypatch.setattr(module, "_computed", lambda run, sites: pytest.fail("computed again"))
    assert final_losses(run, sites).to_list() == found.to_list()


def test_sites_may_have_names_of_missing_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("NA", "None", "null")
    losses = pd.Series([0.25, 0.5, math.nan], names, name="loss").rename_axis("site")
    monkeypatch.setattr(module, "_computed", lambda run, sites: losses)
    found = final_losses(make_run(tmp_path / "run", sites=names), make_sites(tmp_path / "sites", names))
    pd.testing.assert_series_equal(found, losses, check_index_type=False)
