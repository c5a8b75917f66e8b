import numpy as np
import pytest

from fedmerit_data.readers import prostate_multisite
from fedmerit_data.synthetic import prostate


def test_the_reader_returns_what_was_drawn(tmp_path, monkeypatch):
    scanner = prostate.SITES["site3"]
    monkeypatch.setattr(prostate, "SITES", {"site3": scanner})
    prostate.generate(tmp_path, 0, 2)
    (site,) = prostate_multisite.find_sites(tmp_path)
    image, zones = prostate.acquire(scanner, np.random.default_rng([0, 0, 1]))
    decoded = prostate_multisite.decode(site.cases[1])
    np.testing.assert_array_equal(decoded.label[:, 0], (zones > 0).transpose(2, 1, 0))
    np.testing.assert_array_equal(decoded.image[:, 0], image.transpose(2, 1, 0))
    assert decoded.spacing == pytest.approx((1.5, 1.5))


def test_the_coil_floods_its_surroundings():
    peaks = {}
    for number, (name, scanner) in enumerate(prostate.SITES.items()):
        image, _ = prostate.acquire(scanner, np.random.default_rng([0, number, 0]))
        peaks[name] = np.percentile(image, 99) / np.median(image)
    assert peaks.pop("site5") > 2 * max(peaks.values())
