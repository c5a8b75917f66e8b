"""What a comparison is asked for: methods with settings of their own, seeds."""

import pytest

from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS
from fedmerit_evaluation.studies.study import parse_methods, parse_seeds


def test_parse_methods_all_takes_default_optimizer():
    assert [item.label for item in parse_methods("all")] == [name for name in METHODS if name != "scaffold"]
    left_out = set(METHODS) - {item.label for item in parse_methods("all", ["A", "B"])}
    assert left_out == {"scaffold", "krum"}
    assert {"fedci", "krum"} & {item.label for item in parse_methods("all", list("ABCDEFGHIJKLM"))} == {"krum"}
    assert parse_methods("all,fedce:combine=plus")[-1].settings == {"combine": "plus"}
    attacked = {item.label for item in parse_methods("all", attacked=True)}
    assert set(METHODS) - attacked == {"scaffold", "pooled"}
    assert [item.label for item in parse_methods("pooled", attacked=True)] == ["pooled"]  # runs say why not


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "unknown"), ("fedavg,", "unknown"), ("fedavg,fedprix", "'fedprix': unknown"), ("fedce:", "NAME=VALUE"),
        ("fedce:plus", "fedce:plus: plus: expected"), ("fedce:=plus", "=plus: expected"),
        ("fedce:combine=plus:combine=times", "combine: given twice"),
        ("fedavg,fedce,fedavg", "fedavg is given twice"), ("fedavg,all", "fedavg is given twice"),
        ("fedce:combine=plus:error=relative,fedce:error=relative:combine=plus", "given twice"),
        ("fedce:combine=a/b,fedce:combine=a;b", "same run folder")
    ],
)  # fmt: skip
def test_parse_methods_rejects_invalid(text, words):
    with pytest.raises(BadInput, match=words):
        parse_methods(text)


@pytest.mark.parametrize("text", ["", "0,", "-1", "1.5", "zero", "0,1,0", "1,01", "٣"])
def test_parse_seeds_rejects_invalid(text):
    with pytest.raises(BadInput, match="--seeds"):
        parse_seeds(text)
