"""What a round leaves behind in the memory of the local engine's process."""

import pytest

from fedmerit_lab.benchmarks.growth import memory

LEFT = 0.05  # MB a round, at most


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedce", "cffl"])
def test_memory_does_not_grow_with_the_rounds(server_sites_data, tmp_path, method):
    """All that is remembered and written down, with the guard on; the training is next to nothing."""
    settings = {"architecture": "unet", "width": "2", "depth": "2", "steps": "1", "guard": "on"}
    measured = memory(tmp_path, server_sites_data, method, 120, 1, settings, lambda case, repetition: None)
    table = measured.table.set_index("quantity")["median"]
    assert table["growth [MB a round]"] < LEFT
