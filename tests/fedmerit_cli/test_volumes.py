"""Volumes, from training by every method to a mask on its image."""

import nibabel as nib
import numpy as np
import pytest
from rounds import SETTINGS

from fedmerit.methods.registry import METHODS
from fedmerit.records.results import read_results
from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit_evaluation.figures.drawing import png
from fedmerit_evaluation.report.overlays import draw, overlays, three_planes
from fedmerit_evaluation.results.run_folders import open_runs

FEW = ("fedce",)  # in `make test`


@pytest.fixture(scope="module")
def run_of(trained, server_sites_data):
    """A run of two rounds on patches of four slices, of volumes of five."""

    def build(method, **changes):
        settings = {"architecture": "dynunet", "patch": "4,16,16", **SETTINGS.get(method, {})}
        changes = {"method": method, "sites": server_sites_data, "rounds": 2, "guard": "on"} | changes
        return trained(*(f"{name}={value}" for name, value in settings.items()), **changes)

    return build


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FEW)) for name in METHODS]
)
def test_every_method_trains_on_volumes(fedmerit, run_of, server_sites_data, method):
    run = run_of(method)
    verified = fedmerit("verify", run)
    assert verified.exit_code == 0, verified.output
    dice = read_results(run).query("split == 'testing' and quantity == 'dice'")
    assert len(dice) == sum(len(site.cases("testing")) for site in open_sites(server_sites_data))
    assert dice["value"].between(0, 1).all()


def test_a_mask_lies_on_its_image_and_has_the_dice_of_the_run(fedmerit, run_of, server_sites_data, tmp_path):
    run, site = run_of("fedce"), open_sites(server_sites_data)[0]
    case = site.cases("testing")[0]
    (raw,) = (server_sites_data.with_name("sites-raw") / site.name).rglob(f"{case.name}.nii.gz")
    asked = ("predict", run, raw, "--out", tmp_path, "--device", "cpu")
    assert fedmerit(*asked).exit_code == 0
    image, mask = nib.load(raw), nib.load(tmp_path / f"{case.name}_prostate.nii.gz")
    assert mask.shape == image.shape
    np.testing.assert_array_equal(mask.affine, image.affine)
    grid = ("--grid", "own", "--source", raw.parents[1], "--out", tmp_path / "own.csv")
    found = fedmerit("evaluate", run, "--sites", server_sites_data, *grid)
    assert found.exit_code == 0, found.output
    drawn = overlays(open_runs([run]), server_sites_data)
    distance = round(case.spacing[0] / case.spacing[1])
    assert {one.image.shape for one in drawn if one.site == site.name} == {(32 + 5 * distance,) * 2}
    assert png(draw(drawn)).startswith(b"\x89PNG")


def test_three_planes_meet_in_one_voxel():
    volume = np.zeros((3, 4, 5))
    volume[2, 1, 3] = 1
    shown = three_planes(volume, (2, 1, 3), 2.0)
    assert shown.shape == (4 + 6, 5 + 6)
    assert {tuple(map(int, place)) for place in np.argwhere(shown)} == {(1, 3), (1, 9), (1, 10), (4, 3), (5, 3)}
