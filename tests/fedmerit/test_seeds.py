"""Seeds from parts."""

from fedmerit.seeds import random_seed


def test_seeds_are_the_same_on_every_machine_and_differ_by_part():
    assert random_seed(0, "site1", 2) == random_seed(0, "site1", 2)
    seeds = {random_seed(*parts) for parts in ((0, "a", 1), (0, "a", 2), (0, "b", 1), (1, "a", 1), (0, 1), ("0", "a1"))}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert random_seed(0, "initial model") == 8076977981672800817  # of SHA-256's first 63 bits
