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
    assert require_observers(["multi_round"], True, name, method)


def test_an_observer_is_parsed_and_specs_are_completed():
    assert parse("multi_round:every=3") == MultiRoundReconstruction(every=3, most=256)
    given = ["one_round", "leave_one_out_loss:every=4", "multi_round:most=9"]
    complete = ("one_round:every=0,most=256", "leave_one_out_loss:every=4", "multi_round:every=1,most=9")
    fedavg = build_method("fedavg", {})
    assert require_observers(given, False, "fedavg", fedavg) == complete
    assert require_observers(complete, False, "fedavg", fedavg) == complete
    assert require_observers([], False, "standalone", build_method("standalone", {})) == ()


@pytest.mark.parametrize(
    ("specs", "keep_updates", "method", "told"),
    [
        (
            ["shap"],
            False,
            "fedavg",
            "--values 'shap': unknown; expected one of multi_round, one_round, leave_one_out_loss, local_only",
        ),
        (["multi_round:most=7"], False, "fedavg", "most=7: expected 8 to 4096"),
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
        ([], True, "fedbn", "--keep-updates: not with method fedbn: its sites have models of their own"),
    ],
)
def test_what_cannot_be_observed_is_told(specs, keep_updates, method, told):
    with pytest.raises(BadInput) as error:
        require_observers(specs, keep_updates, method, build_method(method, {}))
    assert told in str(error.value)


def test_what_sites_train_alone_is_observed_of_sites_that_do():
    bearing = [name for name in METHODS if can_observe(parse("local_only"), build_method(name, {}))]
    assert bearing == ["standalone"]
    assert require_observers(["local_only"], False, "standalone", build_method("standalone", {})) == (
        "local_only:every=0",
    )


def test_nothing_is_made_of_encrypted_updates():
    require_observable(["multi_round"], True, ["percentile"])
    require_observable([], False, ["he"])
    with pytest.raises(BadInput, match=r"^--values multi_round: not with --privacy he: updates leave encrypted"):
        require_observable(["multi_round", "one_round"], True, ["percentile", "he"])
    with pytest.raises(BadInput, match=r"^--keep-updates: not with --privacy he"):
        require_observable([], True, ["he"])
