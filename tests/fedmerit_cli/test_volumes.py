"""Volumes, from training by every method to a mask on its image."""

import nibabel as nib
import numpy as np
import pytest
from rounds import SETTINGS

from fedmerit.files import read_json, write_json
from fedmerit.methods.registry import METHODS
from fedmerit.schema.results import read_results
from fedmerit.schema.site_folder import open_sites
from fedmerit_evaluation.figures.drawing import png
from fedmerit_evaluation.report.overlays import draw_overlays, make_overlays, three_planes
from fedmerit_evaluation.results.runs import open_runs

FEW = ("fedce",)  # in `make test`


@pytest.fixture(scope="module")
def run_of(trained, server_sites_data):
    """A run of two rounds on patches of four slices, of volumes of five."""

    def build(method, **changes):
        settings = {"architecture": "dynunet", "depth": "3", "patch": "4,16,16", **SETTINGS.get(method, {})}
        changes = {"method": method, "sites": server_sites_data, "rounds": 2, "guard": "on"} | changes
        return trained(*(f"{name}={value}" for name, value in settings.items()), **changes)

    return build


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FEW)) for name in METHODS]
)
def test_every_method_trains_on_volumes(fedmerit, run_of, server_sites_data, method):
    run = run_of(method)
    verified = fedmerit("verify", run)
    assert verified.exit_code == 3, verified.output
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
    drawn = make_overlays(open_runs([run]), server_sites_data)
    distance = round(case.spacing[0] / case.spacing[1])
    assert {one.image.shape for one in drawn if one.site == site.name} == {(32 + 5 * distance,) * 2}
    assert png(draw_overlays(drawn)).startswith(b"\x89PNG")


@pytest.mark.slow
def test_one_plan_for_all_sites(fedmerit, sites, tmp_path):
    """From a survey to a run on sites prepared by its plan, and back to the images' own slices."""
    survey, plan, planned, run = (tmp_path / name for name in ("survey", "plan.json", "planned", "run"))
    asked = [
        ("data", "survey", "--sites", sites, "--out", survey),
        ("data", "plan", survey, "--out", plan, "--memory", 0.2, "--field-of-view", 160),
        ("prepare", "prostate-multisite", "--source", sites.with_name("sites-raw"), "--out", planned, "--plan", plan),
        ("run", "--sites", planned, "--out", run, "--method", "fedce", "--rounds", 1, "--engine", "local",
         "--set", "steps=2"),
        ("verify", run),
    ]  # fmt: skip
    for place, command in enumerate(asked):
        result = fedmerit(*command)
        assert result.exit_code == (3 if command[0] == "verify" else 0), result.output  # without logs of sites
        if place == 1:  # slices half as far apart as the files have them
            stated = read_json(plan)["data_plan"] | {"slice_distance": 3.5}
            write_json(plan, {"data_plan": stated})
    trained_on = read_json(run / "run.json")["plan"]
    assert trained_on["network"]["patch"] == stated["patch"]
    assert trained_on["network"]["arguments"]["deep_supervision"]
    assert trained_on["preprocessing"]["slice_distance"] == stated["slice_distance"]
    site = open_sites(planned)[0]
    case = site.cases("testing")[0]
    (raw,) = (sites.with_name("sites-raw") / site.name).rglob(f"{case.name}.nii.gz")
    slices, image = len(case.image), nib.load(raw)
    assert slices == 2 * image.shape[2]
    assert case.spacing[0] == pytest.approx(3.5)
    assert fedmerit("predict", run, raw, "--out", tmp_path / "masks", "--device", "cpu").exit_code == 0
    assert nib.load(tmp_path / "masks" / f"{case.name}_prostate.nii.gz").shape == image.shape
    write_json(plan, {"data_plan": stated | {"batch_size": stated["batch_size"] + 1}})
    single = tmp_path / "single"
    assert fedmerit(*asked[2][:4], "--out", single, "--plan", plan).exit_code == 0
    (planned / site.name).rename(tmp_path / "before")
    (single / site.name).rename(planned / site.name)
    refused = fedmerit(*asked[3][:3], "--out", tmp_path / "other", *asked[3][5:])
    assert refused.exit_code == 2
    assert "data_plan is" in refused.output


def test_three_planes_meet_in_one_voxel():
    volume = np.zeros((3, 4, 5))
    volume[2, 1, 3] = 1
    shown = three_planes(volume, (2, 1, 3), 2.0)
    assert shown.shape == (4 + 6, 5 + 6)
    assert {tuple(map(int, place)) for place in np.argwhere(shown)} == {(1, 3), (1, 9), (1, 10), (4, 3), (5, 3)}
