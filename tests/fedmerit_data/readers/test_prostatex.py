import numpy as np
import pytest
from layouts import box, volume
from layouts_prostate import OBLIQUE, flipped, found, require_drawn, save_itk, save_segmentation, save_series, zones

from fedmerit.errors import BadInput
from fedmerit_data.kinds import KINDS


def test_prostatex_zones_and_segments(tmp_path):
    image = tmp_path / "Image"
    slices = {}
    for number in range(1, 6):
        slices[number] = save_series(image / f"ProstateX-010{number}" / "t2_tse_tra", volume(number))
    save_series(image / "ProstateX-0101" / "t2_tse_sag", volume(7))
    slices[3] = save_series(image / "ProstateX-0103" / "t2_tse_tra_again", volume(8))
    save_itk(tmp_path / "Mask" / "ProstateX-0101.nrrd", *flipped(zones(), OBLIQUE, 0, 2))
    save_segmentation(tmp_path / "Mask" / "ProstateX-0102.dcm", slices[2], zones())
    save_segmentation(tmp_path / "Mask" / "ProstateX-0103" / "300-SEG" / "1-1.dcm", slices[3], zones())
    # Twice as many columns, each half as wide: another grid.
    fine = OBLIQUE @ np.array([[0.5, 0, 0, -0.25], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    save_itk(tmp_path / "Mask" / "ProstateX-0104.nrrd", zones().repeat(2, axis=0), fine)
    (site,) = found("prostatex", tmp_path).values()
    assert [case.name for case in site.cases] == [f"ProstateX-010{number}" for number in range(1, 5)]
    assert site.left_out == (
        ("Image/ProstateX-0101/t2_tse_sag", "not the T2 series of the mask"),
        ("Image/ProstateX-0103/t2_tse_tra", "not the T2 series of the mask"),
        ("Image/ProstateX-0105", "no zones: no mask to learn from"),
    )
    gland = np.isin(zones(), (1, 2, 4))
    resampled = ("mask resampled (nearest) to the grid of its image",)
    drawn = ((volume(1), box(), ()), (volume(2), gland, ()), (volume(8), gland, ()), (volume(4), box(), resampled))
    for case, (pixels, label, remarks) in zip(site.cases, drawn, strict=True):
        assert require_drawn("prostatex", case, pixels, label) == remarks


def test_prostatex_mask_beyond_its_image(tmp_path):
    save_series(tmp_path / "Image" / "ProstateX-0101" / "t2_tse_tra", volume(1))
    far = OBLIQUE.copy()
    far[1, 3] += 30
    save_itk(tmp_path / "Mask" / "ProstateX-0101.nrrd", zones(), far)
    (site,) = found("prostatex", tmp_path).values()
    with pytest.raises(BadInput, match=r"ProstateX-0101.nrrd: marks voxels outside its image t2_tse_tra"):
        KINDS["prostatex"].decode(site.cases[0])
