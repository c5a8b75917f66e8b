"""Dice and the other quantities of counts and surfaces, worked by hand."""

import math

import torch
from monai.metrics.utils import do_metric_reduction

from fedmerit.trainers.monai_trainer.overlaps import Overlap, Surface, mean_dice


def test_dice_from_counts():
    assert Overlap("000", "cup", 3, 1, 2).dice == 6 / 9
    assert mean_dice([Overlap("000", "cup", 3, 1, 2), Overlap("001", "cup", 0, 0, 0)]) == 6 / 9


def test_dice_where_prediction_or_reference_is_empty():
    assert Overlap("000", "cup", 0, 0, 5).dice == 0
    assert Overlap("000", "cup", 0, 5, 0).dice == 0
    assert Overlap("000", "cup", 0, 0, 0).dice is None
    assert mean_dice([]) == mean_dice([Overlap("000", "cup", 0, 0, 0)]) == 0


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
