"""Which filters may be asked for, and of which methods."""

import pytest

from fedmerit.configuration.filters import KINDS, PEER_MODELS_UNFILTERED, Percentile, parse, require_privacy
from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS, build_method


def test_specs_are_completed_by_their_defaults():
    assert parse("percentile:gamma=0.5") == Percentile(percentile=10.0, gamma=0.5)
    assert require_privacy(["gaussian:noise=1"], "fedavg", METHODS["fedavg"]()) == ["gaussian:clip=1.0,noise=1.0"]
    assert {type(parse(kind)) for kind in KINDS} == set(KINDS.values())


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("exclude", "exclude"),
        ("percentile:epsilon=1", "epsilon"),
        ("percentile:gamma", "gamma"),
        ("percentile:gamma=1,gamma=2", "gamma"),
        ("percentile:percentile=101", "101"),
        ("percentile:gamma=0", "gamma=0"),
        ("svt:fraction=0", "fraction=0"),
        ("gaussian:clip=x", "clip='x'"),
        ("gaussian:noise=nan", "noise=nan"),
    ],
)
def test_what_is_no_filter_is_refused_by_name(spec, word):
    with pytest.raises(BadInput, match=word):
        parse(spec)


def test_methods_that_cannot_bear_filters_say_why():
    unfiltered = {name: kind().needs.unfiltered for name, kind in METHODS.items() if kind().needs.unfiltered}
    assert unfiltered
    for name, why in unfiltered.items():
        with pytest.raises(BadInput) as caught:
            require_privacy(["gaussian"], name, METHODS[name]())
        assert why in str(caught.value)
        assert require_privacy([], name, METHODS[name]()) == []


def test_models_that_go_from_site_to_site_pass_no_filter():
    with pytest.raises(BadInput, match=PEER_MODELS_UNFILTERED):
        require_privacy(["gaussian"], "cycle", METHODS["cycle"](exchange="peer", warmup_by="own"))
    assert require_privacy(["gaussian"], "cycle", METHODS["cycle"](exchange="relay"))


def test_a_weighted_sum_is_enough_for_few():
    assert {name for name, kind in METHODS.items() if kind().needs.sums_only} == {"fedavg", "fedce"}
    assert not build_method("fedce", {"error": "others"}).needs.sums_only
