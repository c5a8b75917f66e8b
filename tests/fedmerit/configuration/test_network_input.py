"""What a network is fed, as site.json and model.json say it."""

import pytest

from fedmerit.configuration.network_input import Preprocessing, common
from fedmerit.configuration.run import RunConfiguration, make_configuration

SITE = {"name": "A", "image_size": [64, 64], "channels": 1, "field_of_view": 120.0, "crop": "whole", "source": "x"}
FED = Preprocessing((64, 64), 120.0)


def test_by_site_json():
    assert Preprocessing.from_dict(SITE) == FED
    assert Preprocessing.from_dict(SITE | {"channels": 3, "normalisation": "photo"}).normalisation == "photo"
    assert FED.spacing == (1.875, 1.875)
    assert Preprocessing((64, 64)).spacing is None


def test_there_and_back():
    fed = Preprocessing((32, 48), None, "disc", 3.0, "photo", 0.4)
    assert Preprocessing.from_dict(fed.to_dict()) == fed
    with pytest.raises(ValueError, match="expected above 0, below 1"):
        Preprocessing((32, 32), threshold=2.0)


def test_sites_that_differ_have_none_in_common():
    assert common({"A": SITE, "B": SITE | {"name": "B"}}) == FED
    assert common({"A": SITE, "B": SITE | {"field_of_view": 100.0}}) is None
    assert common({"A": SITE, "B": {"image_size": [64, 64], "channels": 1}}) is None


def test_a_run_carries_it_and_earlier_ones_have_none():
    shape = {"in_channels": 1, "labels": ["a"]}
    with_it = make_configuration("fedavg", "t", 1, 0, shape, {}, preprocessing=FED)
    without = make_configuration("fedavg", "t", 1, 0, shape, {})
    assert RunConfiguration.from_dict(with_it.to_dict()) == with_it
    assert "preprocessing" not in without.to_dict()
    assert RunConfiguration.from_dict(without.to_dict()).preprocessing is None
