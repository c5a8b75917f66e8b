import numpy as np
import pytest

from data_prep.readers import prostate_multisite as prostate
from data_prep.synthetic import prostate as synthetic_prostate


def test_the_reader_returns_what_was_drawn(tmp_path):
    synthetic_prostate.generate(tmp_path, 0, 5)
    case = prostate.find_sites(tmp_path)[2].cases[1]
    image, zones = synthetic_prostate.acquire(synthetic_prostate.SITES["site3"], np.random.default_rng([0, 2, 1]))
    decoded = prostate.decode(case)
    np.testing.assert_array_equal(decoded.label[:, 0], (zones > 0).transpose(2, 1, 0))
    np.testing.assert_array_equal(decoded.image[:, 0], image.transpose(2, 1, 0))
    assert decoded.spacing == pytest.approx((1.5, 1.5))


def test_the_coil_floods_its_surroundings():
    peaks = {}
    for number, (name, scanner) in enumerate(synthetic_prostate.SITES.items()):
        image, _ = synthetic_prostate.acquire(scanner, np.random.default_rng([0, number, 0]))
        peaks[name] = np.percentile(image, 99) / np.median(image)
    assert peaks.pop("site5") > 2 * max(peaks.values())
