"""What may be observed of which run."""

import pytest

from fedmerit.configuration.observation import (
    can_observe,
    gives_own_models,
    parse,
    require_observable,
    require_observers,
)
from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS, build_method
from fedmerit.observers import MultiRoundReconstruction

ONE_MODEL = {  # for all sites, with the methods' defaults
    *("pooled", "fedavg", "fedce", "fedce_nvflare", "qfedavg", "fedci", "fedvalue", "silobn", "fedprox", "fedavgm"),
    *("fedadam", "scaffold", "median", "trimmed", "krum"),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_whose_sites_have_models_of_their_own(name):
    assert gives_own_models(build_method(name, {})) == (name not in ONE_MODEL)


@pytest.mark.parametrize("name", ["cgsv", "cffl"])
def test_a_method_may_be_asked_for_one_model(name):
    method = build_method(name, {"reward": "global"})
    assert not gives_own_models(method)
    assert require_observers(["in_run"], True, name, method)


def test_an_observer_is_parsed_and_specs_are_completed():
    assert parse("in_run:every=3") == MultiRoundReconstruction(every=3, most=256)
    given = ["carried", "others_lose:every=4", "in_run:most=9"]
    complete = ("carried:every=0,most=256", "others_lose:every=4", "in_run:every=1,most=9")
    fedavg = build_method("fedavg", {})
    assert require_observers(given, False, "fedavg", fedavg) == complete
    assert require_observers(complete, False, "fedavg", fedavg) == complete
    assert require_observers([], False, "standalone", build_method("standalone", {})) == ()


@pytest.mark.parametrize(
    ("specs", "keep_updates", "method", "told"),
    [
        (["shap"], False, "fedavg", "--values 'shap': unknown; expected one of in_run, carried, others_lose, alone"),
        (["in_run:most=7"], False, "fedavg", "most=7: expected 8 to 4096"),
        (["in_run", "carried", "in_run:every=2"], False, "fedavg", "--values in_run: given twice; name each once"),
        (["carried"], True, "cgsv", "--values carried: not with method cgsv: its sites have models of their own"),
        (["alone"], False, "fedavg", "--values alone: not with method fedavg: it looks at what each site trains by"),
        (["alone"], False, "pooled", "--values alone: not with method pooled"),
        (["alone"], False, "cgsv", "--values alone: not with method cgsv"),
        (["alone", "carried"], False, "standalone", "--values carried: not with method standalone: its sites have"),
        ([], True, "fedbn", "--keep-updates: not with method fedbn: its sites have models of their own"),
    ],
)
def test_what_cannot_be_observed_is_told(specs, keep_updates, method, told):
    with pytest.raises(BadInput) as error:
        require_observers(specs, keep_updates, method, build_method(method, {}))
    assert told in str(error.value)


def test_what_sites_train_alone_is_observed_of_sites_that_do():
    bearing = [name for name in METHODS if can_observe(parse("alone"), build_method(name, {}))]
    assert bearing == ["standalone"]
    assert require_observers(["alone"], False, "standalone", build_method("standalone", {})) == ("alone:every=0",)


def test_nothing_is_made_of_encrypted_updates():
    require_observable(["in_run"], True, ["percentile"])
    require_observable([], False, ["he"])
    with pytest.raises(BadInput, match=r"^--values in_run: not with --privacy he: updates leave encrypted"):
        require_observable(["in_run", "carried"], True, ["percentile", "he"])
    with pytest.raises(BadInput, match=r"^--keep-updates: not with --privacy he"):
        require_observable([], True, ["he"])
