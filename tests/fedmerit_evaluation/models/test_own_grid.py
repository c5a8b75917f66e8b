"""Scores by raw images: a run's on each image's own grid, and those of masks of another program."""

import nibabel as nib
import numpy as np
import pytest
from layouts import box, prepare, save_nifti, volume
from torch import nn, zeros
from torch.nn.functional import avg_pool2d

from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites
from fedmerit_evaluation.models import own_grid
from fedmerit_evaluation.models.own_grid import evaluate_masks, evaluate_run
from fedmerit_evaluation.models.predictor import predict_files


class Smooth(nn.Module):
    """Logits without speckles: the image, blurred."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(zeros(1))

    def forward(self, images):
        return avg_pool2d(images, 9, stride=1, padding=4)


SURFACES = ["hd95", "nsd", "nsd_area"]


@pytest.fixture
def cases(sites):
    """By site and position of the test case: the raw image and its mask."""
    raw = sites.with_name("sites-raw")
    return {
        (site.name, f"{place:03d}"): (
            raw / site.name / f"{case.name}.nii.gz",
            raw / site.name / f"{case.name}_segmentation.nii.gz",
        )
        for site in open_sites(sites)
        for place, case in enumerate(site.cases("testing"))
    }


def values(table):
    return table.pivot(index=["site", "case"], columns="quantity", values="value")


def test_a_run_on_the_own_grid_scores_as_the_masks_that_it_predicts(
    trained, predictor, sites, cases, tmp_path, monkeypatch
):
    """Whose Dice is that of the files themselves."""
    monkeypatch.setattr(own_grid, "final_models", lambda run: lambda site: Smooth())
    source = sites.with_name("sites-raw")
    own = values(evaluate_run(trained(), sites, source, "testing", "own", ["nsd_area"]))
    object.__setattr__(predictor, "network", Smooth())
    for (site, _), (image, _) in cases.items():
        predict_files(predictor, [image], tmp_path / site)
    again = values(evaluate_masks(tmp_path, sites, source, "testing", "own", ["nsd_area"]))
    assert own.to_numpy(float) == pytest.approx(again.to_numpy(float))
    for (site, case), (image, mask) in cases.items():
        (file,) = (tmp_path / site).glob(f"{image.name.split('.')[0]}_*.nii.gz")
        found, there = (np.asarray(nib.load(one).dataobj) > 0 for one in (file, mask))
        assert own.loc[site, case]["dice"] == pytest.approx(2 * (found & there).sum() / (found.sum() + there.sum()))
    assert own[SURFACES].notna().all(axis=None)


def test_masks_of_another_program(sites, cases, tmp_path):
    """The reference itself scores 1, on both grids, and what is missing or elsewhere is refused."""
    source = sites.with_name("sites-raw")
    for (site, _), (image, mask) in cases.items():
        (tmp_path / "masks" / site).mkdir(parents=True, exist_ok=True)
        nib.save(nib.load(mask), tmp_path / "masks" / site / image.name)
    for grid in ("own", "stored"):
        found = values(evaluate_masks(tmp_path / "masks", sites, source, "testing", grid, ["nsd_area"]))
        assert found[["dice", "nsd", "nsd_area"]].to_numpy(float) == pytest.approx(1)
        assert found["hd95"].to_numpy(float) == pytest.approx(0)
    moved = tmp_path / "masks" / site / image.name
    file = nib.load(mask)
    nib.save(nib.Nifti1Image(np.asarray(file.dataobj), file.affine + np.eye(4, k=3) * 5), moved)
    with pytest.raises(BadInput, match=f"{moved.name}: is up to 5.0 mm away from its image"):
        evaluate_masks(tmp_path / "masks", sites, source, "testing", "own")
    moved.unlink()
    with pytest.raises(BadInput, match=f"no mask of case {image.name.split('.')[0]} of site {site}; expected .*_prost"):
        evaluate_masks(tmp_path / "masks", sites, source, "testing", "stored")


def test_masks_of_sites_by_pairs_and_by_pattern_are_scored_and_changed_files_refused(tmp_path):
    """`evaluate --source` reads the files that `prepare` read, whatever chose them."""
    raw, rows = tmp_path / "raw", ["site,case,patient,image,channel,mask,label"]
    for place in range(6):
        name = f"TCGA_{'CS' if place < 3 else 'DU'}_{place}"
        save_nifti(raw / "scans" / f"{name}.nii.gz", volume(place))
        save_nifti(raw / "drawn" / f"by-{place}.nii.gz", box())
        rows.append(f"all,{name},,scans/{name}.nii.gz,,drawn/by-{place}.nii.gz,")
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    options = {"source": raw, "pairs": tmp_path / "pairs.csv", "site": "TCGA_(..)_", "channels": 1, "size": 16}
    prepare("generic", tmp_path / "sites", **options)
    (tmp_path / "pairs.csv").unlink()
    opened = open_sites(tmp_path / "sites")
    assert [site.name for site in opened] == ["CS", "DU"]
    for site in opened:
        for case in site.cases("testing"):
            save_nifti(tmp_path / "masks" / f"{case.name}.nii.gz", box())
    table = evaluate_masks(tmp_path / "masks", tmp_path / "sites", raw, "testing", "own")
    assert set(table[table["quantity"] == "dice"]["value"]) == {1.0}
    (name,) = (case.name for case in opened[0].cases("testing"))
    save_nifti(raw / "scans" / f"{name}.nii.gz", volume(99))
    with pytest.raises(BadInput, match=rf"{name}\.nii\.gz: another file than the site was prepared from"):
        evaluate_masks(tmp_path / "masks", tmp_path / "sites", raw, "testing", "own")
