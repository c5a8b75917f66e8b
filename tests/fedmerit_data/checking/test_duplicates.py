import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from one_in import one_in
from PIL import Image
from site_folders import SIZE, TASKS, brighter, load, store

from fedmerit_data.check import check, examine
from fedmerit_data.checking.duplicates import make_fingerprint
from fedmerit_data.checking.findings import Severity
from fedmerit_data.checking.plausibility import _small_images


def cropped(image, top, bottom, left, right):
    """The same image without these shares of its sides, brought back to its size."""
    box = (left * SIZE, top * SIZE, (1 - right) * SIZE, (1 - bottom) * SIZE)
    planes = [Image.fromarray(plane).resize((SIZE, SIZE), box=box) for plane in image.reshape(-1, SIZE, SIZE)]
    return np.stack(planes).reshape(image.shape)


def reencoded(image):
    """The same image as JPEG files of quality 75."""

    def through_jpeg(plane):
        file = io.BytesIO()
        Image.fromarray(np.uint8(np.clip((plane + 3) * 40, 0, 255))).save(file, "JPEG", quality=75)
        return np.asarray(Image.open(file), dtype=np.float32)

    return np.stack([through_jpeg(plane) for plane in image.reshape(-1, SIZE, SIZE)]).reshape(image.shape)


@pytest.mark.parametrize(
    ("site", "case", "kind"),
    [("HK", "training4", "near-duplicate"), ("HK", "testing0", "leak"), ("UCL", "training4", "leak")],
)
def test_nearly_the_same_image(sites, site, case, kind):
    store(sites, site, case, "image", brighter(load(sites, "HK", "training1", "image")))
    (finding,) = examine(sites).findings
    place = (finding.kind, finding.site, finding.split, finding.position)
    assert place == (kind, site, case[:-1], f"00{case[-1]}")
    assert "as HK training 001" in finding.detail
    assert "Secrettraining1" in finding.message
    assert bool(check(sites)) == (kind == "leak")


COPIES = {
    "brighter": (brighter, ""),
    "saved as JPEG": (reencoded, ""),
    "3 % off each side": (lambda image: cropped(image, 0.03, 0.03, 0.03, 0.03), ""),
    "3 % off a corner": (lambda image: cropped(image, 0.03, 0, 0, 0.03), ""),
    "5 % off each side": (lambda image: cropped(image, 0.05, 0.05, 0.05, 0.05), ""),
    "mirrored": (lambda image: image[..., ::-1], "mirrored"),
    "upside down": (lambda image: image[..., ::-1, :], "upside down"),
    "turned": (lambda image: image[..., ::-1, ::-1], "turned by half"),
    "mirrored and cropped": (lambda image: cropped(image[..., ::-1].copy(), 0.03, 0.03, 0.03, 0.03), "mirrored"),
}


@pytest.mark.parametrize("copy", one_in(6, COPIES))
@pytest.mark.parametrize("sites", TASKS, indirect=True)
def test_copies_are_found(sites, copy):
    change, how = COPIES[copy]
    store(sites, "UCL", "validation1", "image", change(load(sites, "HK", "training1", "image")))
    leaks = [finding for finding in examine(sites).findings if finding.kind == "leak"]
    (finding,) = leaks
    assert (finding.site, finding.split, finding.position) == ("UCL", "validation", "001")
    assert finding.detail.startswith(f"as HK training 001; {how + ', ' if how else ''}agreement ")


def test_images_below_48_pixels_are_not_compared_which_check_notes():
    assert make_fingerprint(np.random.default_rng(0).random((48, 48))) is not None
    assert make_fingerprint(np.random.default_rng(0).random((47, 64))) is None
    small = SimpleNamespace(name="HK", path=Path("HK"), image_size=(32, 32))
    large = SimpleNamespace(name="UCL", path=Path("UCL"), image_size=(48, 48))
    (finding,) = _small_images([small, large])
    assert (finding.kind, finding.site, finding.severity) == ("not compared", "HK", Severity.note)
    assert "images of 32 x 32 pixels" in finding.message
