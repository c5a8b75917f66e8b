import numpy as np
import pytest
from site_folders import change, found

IMAGES = {
    "upside down": (lambda image: image[:, :, ::-1], "flipped"),
    "slices reversed": (lambda image: image[::-1], "flipped"),
    "saturated": (lambda image: np.where(image > np.percentile(image, 90), 3, -0.3).astype(np.float32),
                  "unusual intensities"),
    "flat": (np.zeros_like, "flat image"),
}  # fmt: skip


@pytest.mark.parametrize("defect", IMAGES)
def test_images(sites, defect):
    how, kind = IMAGES[defect]
    change(sites, "testing1", "image", how)
    assert found(sites) == [(kind, "HK", "testing", "001")]
