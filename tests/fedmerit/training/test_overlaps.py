"""Dice and the other quantities of counts and surfaces, worked by hand."""

from fedmerit.training.overlaps import Overlap, Surface, mean_dice


def test_dice_from_counts():
    assert Overlap("000", "cup", 3, 1, 2).dice == 6 / 9
    assert mean_dice([Overlap("000", "cup", 3, 1, 2), Overlap("001", "cup", 0, 0, 0)]) == 6 / 9


def test_dice_where_prediction_or_reference_is_empty():
    assert Overlap("000", "cup", 0, 0, 5).dice == 0
    assert Overlap("000", "cup", 0, 5, 0).dice == 0
    assert Overlap("000", "cup", 0, 0, 0).dice is None
    assert mean_dice([]) == mean_dice([Overlap("000", "cup", 0, 0, 0)]) == 0


def test_every_case_and_label_counts_alike_in_the_mean():
    """Dice of 1, 0.5 and 0, of 1000 voxels, of 4 and of 3: the mean is a half."""
    overlaps = [Overlap("0", "disc", 1000, 0, 0), Overlap("0", "cup", 1, 1, 1), Overlap("1", "disc", 0, 3, 0)]
    assert mean_dice(overlaps) == 0.5


def test_quantities_have_their_names_in_the_table_of_results():
    bare = Overlap("000", "cup", 3, 1, 2)
    counts = {"true_positives": 3, "false_positives": 1, "false_negatives": 2}
    assert bare.scores == {"dice": 6 / 9}
    assert bare.quantities == {"dice": 6 / 9, **counts}
    in_mm = Overlap("000", "cup", 3, 1, 2, Surface("mm", 4.5, 0.75))
    assert in_mm.quantities == {"dice": 6 / 9, "hd95": 4.5, "nsd": 0.75, **counts}
    in_pixels = Overlap("000", "cup", 3, 1, 2, Surface("px", None, 0.0))
    assert in_pixels.scores == {"dice": 6 / 9, "hd95_px": None, "nsd_px": 0.0}
