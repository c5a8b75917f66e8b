"""Dice, HD95 and NSD, worked out explicitly."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from monai.metrics.utils import do_metric_reduction
from run_factory import make_sites
from torch import Tensor, nn, ones

from fedmerit.files import read_json, write_json
from fedmerit.schema.scores import Overlap, Surface, mean_dice
from fedmerit.schema.site_folder import Case, SiteFolder
from fedmerit.trainers.monai.prediction import evaluate
from fedmerit.trainers.monai.surfaces import measure_surfaces


def test_dice_from_counts():
    assert Overlap("000", "cup", 3, 1, 2).dice == 6 / 9
    assert mean_dice([Overlap("000", "cup", 3, 1, 2), Overlap("001", "cup", 0, 0, 0)]) == 6 / 9


def test_dice_where_prediction_or_reference_is_empty():
    assert Overlap("000", "cup", 0, 0, 5).dice == 0
    assert Overlap("000", "cup", 0, 5, 0).dice == 0
    assert Overlap("000", "cup", 0, 0, 0).dice is None
    assert mean_dice([]) is None
    assert mean_dice([Overlap("000", "cup", 0, 0, 0)]) is None


def test_every_case_counts_alike_however_many_labels_it_has():
    """Dice of 1 and 0.5, mean 0.75, of the first case, and of 0 of the second's one label: the mean is 3/8."""
    first = [Overlap("0", "disc", 1000, 0, 0), Overlap("0", "cup", 1, 1, 1)]
    second = [Overlap("1", "disc", 0, 3, 0), Overlap("1", "cup", 0, 0, 0)]
    assert mean_dice([*first, *second]) == 0.375
    assert do_metric_reduction(torch.tensor([[1.0, 0.5], [0.0, math.nan]]), "mean")[0] == 0.375


def test_cases_of_two_sites_are_apart_though_they_bear_one_number():
    one = [Overlap("0", "disc", 5, 0, 0)]
    assert mean_dice(one, [Overlap("0", "disc", 0, 3, 0), Overlap("1", "disc", 0, 1, 0)]) == 1 / 3


def test_quantities_have_their_names_in_the_table_of_results():
    bare = Overlap("000", "cup", 3, 1, 2)
    counts = {"true_positives": 3, "false_positives": 1, "false_negatives": 2}
    assert bare.scores == {"dice": 6 / 9}
    assert bare.quantities == {"dice": 6 / 9, **counts}
    in_mm = Overlap("000", "cup", 3, 1, 2, Surface("mm", 4.5, 0.75))
    assert in_mm.quantities == {"dice": 6 / 9, "hd95": 4.5, "nsd": 0.75, **counts}
    in_pixels = Overlap("000", "cup", 3, 1, 2, Surface("px", None, 0.0))
    assert in_pixels.scores == {"dice": 6 / 9, "hd95_px": None, "nsd_px": 0.0}


SPACING = (3.0, 0.5, 2.0)  # mm between slices, rows, columns


class AsTheyAre(nn.Module):
    """Takes the image's channels for logits."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(ones(()))

    def forward(self, images: Tensor) -> Tensor:
        return images * self.scale


def block(*places: slice, shape: tuple[int, ...] = (9, 16, 16)) -> np.ndarray:
    """(slices, 1, h, w) of zeros, ones in the block."""
    mask = np.zeros(shape, dtype=np.uint8)
    mask[places] = 1
    return mask[:, None]


CUBE = block(slice(3, 6), slice(4, 10), slice(4, 10))


def test_nsd_explicitly():
    """Rows of a 6 x 6 square moved by 3 rows of 1 mm: of 20 voxels of each outline 6 lie farther off than 2 mm.

    With rows 0 to 5 and 3 to 8, the outlines are the rows' ends and rows 0, 5 and 3, 8. Nearest to column c of row 0,
    six of them, is row 3: 3 mm. Row 1, at its two ends: the corners of row 3, 2 mm. All else is nearer but the inner
    four of row 5, of which the middle two lie 2 from row 3 and from the sides; the others 1. So 6 of 20 are too far.
    """
    square = block(slice(0, 1), slice(2, 8), slice(2, 8), shape=(1, 16, 16))
    (surface,) = measure_surfaces(np.roll(square, 3, axis=2), square, (5.0, 1.0, 1.0))
    assert surface == Surface("mm", 3.0, pytest.approx(14 / 20))


def test_one_slice_is_measured_in_its_plane_in_pixels_where_no_mm_are_known():
    square = block(slice(0, 1), slice(2, 8), slice(2, 8), shape=(1, 16, 16))
    moved = np.roll(square, 3, axis=3)
    assert measure_surfaces(moved, square, (99.0, 1.0, 1.0)) == [Surface("mm", 3.0, 0.7)]
    assert measure_surfaces(moved, square, None) == [Surface("px", 3.0, 0.7)]
    assert measure_surfaces(moved, square, (99.0, 1.0, 0.5))[0].hd95 == pytest.approx(1.5)


@pytest.mark.slow
def test_surfaces_of_more_voxels_than_torch_has_quantiles_of(monkeypatch):
    """As of a network that marks half of a large volume at random."""
    found = torch.ones(2**24 + 1)
    monkeypatch.setattr("monai.metrics.utils.get_surface_distance", lambda *args, **more: found)
    assert measure_surfaces(CUBE, CUBE, SPACING) == [Surface("mm", 1.0, 1.0)]


def test_each_label_for_itself(tmp_path):
    """One label perfect, the other empty in the prediction only; found by `evaluate`, where it is asked for."""
    label = np.concatenate([CUBE, CUBE], axis=1)
    logits = np.where(label, 1.0, -1.0)
    logits[:, 1] = -1
    np.save(tmp_path / "image.npy", logits.astype(np.float32))
    np.save(tmp_path / "label.npy", label)
    case = Case("case", "case", tmp_path / "image.npy", tmp_path / "label.npy", spacing=SPACING)
    disc, cup = evaluate(AsTheyAre(), [case], ("disc", "cup"), final=True)
    assert (disc.surface, disc.dice) == (Surface("mm", 0.0, 1.0), 1.0)
    assert (cup.surface, cup.dice) == (Surface("mm", None, 0.0), 0.0)
    assert cup.scores == {"dice": 0.0, "hd95": None, "nsd": 0.0}
    assert evaluate(AsTheyAre(), [case], ("disc", "cup"))[0].surface is None
    assert Surface("px", 1.0, 0.5).quantities == {"hd95_px": 1.0, "nsd_px": 0.5}


@pytest.mark.parametrize(
    "stated", [None, "1", [1, 1], [1, 0, 1], [1, -1, 1], [1, math.nan, 1], ["1", 1, 1], [[], 1, 1]]
)
def test_a_spacing_that_is_none_is_not_known(tmp_path: Path, stated):
    site = make_sites(tmp_path, ("Yew",)) / "Yew"
    lists = read_json(site / "datalist.json")
    lists["testing"][0] |= {"spacing": stated}
    lists["testing"][1] |= {"spacing": [3, 0.5, 0.25]}
    write_json(site / "datalist.json", lists)
    spacings = [case.spacing for case in SiteFolder(site).cases("testing")]
    assert spacings == [None, (3.0, 0.5, 0.25), None, None, None]
