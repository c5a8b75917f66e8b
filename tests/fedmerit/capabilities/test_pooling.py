"""The method that is no federation."""

from fedmerit.capabilities import PoolsImages
from fedmerit.methods.registry import METHODS


def test_pooled_alone_has_all_images_in_one_place():
    assert [name for name, kind in METHODS.items() if issubclass(kind, PoolsImages)] == ["pooled"]
