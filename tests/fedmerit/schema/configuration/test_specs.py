"""Specs of observers, privacy filters and trackers, and which runs they fit."""

import pytest

from fedmerit.contract.observers import MultiRoundReconstruction
from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS, build_method
from fedmerit.schema.configuration.requirements import (
    gives_own_models,
    parse_observer,
    require_observable,
    require_observers,
    require_privacy,
)
from fedmerit.schema.configuration.specs import TRACKERS, parse_filter, require_tracking

BESIDE = {"silobn", "scaffold"}  # what sites of these get or keep beside the one model is no model


@pytest.mark.parametrize("name", METHODS)
def test_methods_whose_sites_have_models_of_their_own(name):
    method = build_method(name, {})
    assert gives_own_models(method) == (method.about.download != "global model" and name not in BESIDE)


def test_an_observer_is_parsed_and_specs_are_completed():
    assert parse_observer("multi_round:every=3") == MultiRoundReconstruction(every=3, most=256)
    given = ["one_round", "leave_one_out_loss:every=4", "multi_round:most=9"]
    complete = ("one_round:every=0,most=256", "leave_one_out_loss:every=4", "multi_round:every=1,most=9")
    fedavg = build_method("fedavg", {})
    assert require_observers(given, False, "fedavg", fedavg) == complete
    assert require_observers(complete, False, "fedavg", fedavg) == complete
    assert require_observers([], False, "standalone", build_method("standalone", {})) == ()


@pytest.mark.parametrize(
    ("specs", "keep_updates", "method", "reported"),
    [
        (
            ["shap"],
            False,
            "fedavg",
            "--values 'shap': unknown; expected one of multi_round, local_only, innovation, leave_one_out_loss, "
            "one_round",
        ),
        (["multi_round:most=7"], False, "fedavg", "most=7: expected a whole number from 8 to 4096"),
        (
            ["multi_round", "one_round", "multi_round:every=2"],
            False,
            "fedavg",
            "--values multi_round: given twice; name each once",
        ),
        (["one_round"], True, "cgsv", "--values one_round: not with method cgsv: its sites have models of their own"),
        (
            ["local_only"],
            False,
            "fedavg",
            "--values local_only: not with method fedavg: it looks at what each site trains by",
        ),
        (["local_only"], False, "pooled", "--values local_only: not with method pooled"),
        (["local_only"], False, "cgsv", "--values local_only: not with method cgsv"),
        (
            ["local_only", "one_round"],
            False,
            "standalone",
            "--values one_round: not with method standalone: its sites have",
        ),
    ],
)
def test_what_cannot_be_observed_is_reported(specs, keep_updates, method, reported):
    with pytest.raises(BadInput) as error:
        require_observers(specs, keep_updates, method, build_method(method, {}))
    assert reported in str(error.value)


def test_updates_that_the_server_does_not_see_are_not_kept():
    with pytest.raises(BadInput, match=r"^--keep-updates: not with method cycle: its models go from site to site$"):
        require_observers([], True, "cycle", build_method("cycle", {"exchange": "peer", "warmup_by": "own"}))


def test_nothing_is_made_of_encrypted_updates():
    require_observable(["multi_round"], True, ["percentile"])
    require_observable([], False, ["he"])
    with pytest.raises(BadInput, match=r"^--values multi_round: not with --privacy he: updates leave encrypted"):
        require_observable(["multi_round", "one_round"], True, ["percentile", "he"])
    with pytest.raises(BadInput, match=r"^--keep-updates: not with --privacy he"):
        require_observable([], True, ["he"])


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("exclude", "exclude"), ("percentile:epsilon=1", "epsilon"), ("percentile:gamma", "gamma"),
        ("percentile:gamma=1,gamma=2", "gamma"), ("percentile:percentile=101", "101"),
        ("percentile:gamma=0", "gamma=0"), ("svt:fraction=0.1", "svt"), ("gaussian:clip=x", "clip='x'"),
        ("gaussian:noise=nan", "noise=nan")
    ],
)  # fmt: skip
def test_what_is_no_filter_is_refused_by_name(spec, word):
    with pytest.raises(BadInput, match=word):
        parse_filter(spec)


def test_methods_that_cannot_bear_filters_say_why():
    unfiltered = {name: kind().needs.unfiltered for name, kind in METHODS.items() if kind().needs.unfiltered}
    assert unfiltered
    for name, why in unfiltered.items():
        with pytest.raises(BadInput) as caught:
            require_privacy(["gaussian"], name, METHODS[name]())
        assert why in str(caught.value)
        assert require_privacy([], name, METHODS[name]()) == []


def test_a_weighted_sum_is_enough_for_few():
    assert {name for name, kind in METHODS.items() if kind().needs.sums_only} == {"fedavg", "fedce"}
    assert not build_method("fedce", {"error": "others"}).needs.sums_only


def test_a_tracker_that_is_not_installed_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr("fedmerit.schema.configuration.specs.find_spec", lambda name: None)
    for kind in TRACKERS:
        with pytest.raises(BadInput, match=r"pip install -e '.\[tracking\]'"):
            require_tracking([kind])
