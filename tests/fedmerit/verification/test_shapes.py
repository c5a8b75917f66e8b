"""What a field of a record has to be, and what is told where it is something else."""

import json
import math

import pytest

from fedmerit.errors import BadInput
from fedmerit.verification.record_schema import (
    NUMBER,
    TEXT,
    WHOLE,
    list_shape,
    mapping_shape,
    object_shape,
    optional_shape,
    require_shapes,
)


@pytest.mark.parametrize(
    ("shape", "fit", "unfit"),
    [
        (TEXT, ["", "a"], [None, 1, ["a"]]),
        (WHOLE, [0, 7], [-1, 1.0, True, "1", math.inf, 2**63]),
        (NUMBER, [0, -1.5, math.inf], [None, "1", True, 10**400, -(10**400)]),
        (optional_shape(TEXT), ["a", None], [1]),
        (list_shape(TEXT), [[], ["a"]], ["a", [1], {"a": "b"}]),
        (mapping_shape(NUMBER), [{}, {"a": 1}], [[1], {"a": "1"}, None]),
        (object_shape({"a": WHOLE}), [{}, {"a": 1}, {"b": "any"}], [[], {"a": "1"}]),
    ],
)
def test_what_fits(shape, fit, unfit):
    assert [value for value in fit if not shape.fits(value)] == []
    assert [value for value in unfit if shape.fits(value)] == []


def test_a_record_has_what_it_needs_and_the_rest_is_as_it_may_be():
    require_shapes({"a": 1, "c": object()}, {"a": WHOLE}, {"b": TEXT}, "line 1")
    with pytest.raises(BadInput, match=r"^line 1: lacks a, expected a whole number, 0 or more; get the file again"):
        require_shapes({}, {"a": WHOLE}, {}, "line 1")
    with pytest.raises(BadInput, match=r"^line 1: b is \[1\], expected an object, in it by name a text; get the file"):
        require_shapes({"b": [1]}, {}, {"b": mapping_shape(TEXT)}, "line 1")


def test_what_is_long_or_deep_is_told_in_short():
    deep = json.loads("[" * 500 + "]" * 500)
    for value in (deep, "x" * 9999):
        with pytest.raises(BadInput) as found:
            require_shapes({"a": value}, {"a": WHOLE}, {}, "line 1")
        assert len(str(found.value)) < 200
