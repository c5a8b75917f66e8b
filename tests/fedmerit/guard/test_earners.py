"""Who earns as one."""

from fedmerit.guard.earners import sharing_cases


def test_sites_are_copies_by_cases_where_each_has_half_of_the_others():
    hospital = [f"{number:032x}" for number in range(10)]
    sites = [frozenset(hospital), frozenset(hospital[:1]), frozenset(hospital[:5]), frozenset()]
    shared = sharing_cases(sites)
    assert shared.nonzero().tolist() == [[0, 2], [2, 0]]  # one image of ten, and all that a site has, is not enough
