"""Worked numbers of each method: JSON files in $FEDMERIT_ORACLES, each read by what it holds, compared to 1e-6.

The oracles are float64; so are the models and updates here, which the methods take as they come.
"""

import json
import os
from pathlib import Path

import numpy as np
import oracles_cycle
import oracles_fedce
import oracles_fedsac
import oracles_further
import oracles_rewards
import oracles_validation
import oracles_values
import pytest

from fedmerit.methods.registry import METHODS

DEFAULT = Path(__file__).resolve().parents[3].parent / "shared" / "oracles"
FOLDER = Path(os.environ.get("FEDMERIT_ORACLES", DEFAULT))
FILES = sorted(FOLDER.glob("*.json"))
CONTENTS = {file.name: json.loads(file.read_text()) for file in FILES}
for name, content in CONTENTS.items():  # arrays that belong to a file lie beside it
    if (arrays := (FOLDER / name).with_suffix(".npz")).exists():
        content["npz"] = dict(np.load(arrays))
READERS = [
    *oracles_cycle.READERS, *oracles_fedce.READERS, *oracles_fedsac.READERS, *oracles_further.READERS,
    *oracles_rewards.READERS, *oracles_validation.READERS, *oracles_values.READERS
]  # fmt: skip


NAMED_OTHERWISE = {
    **{"qfedavg": "qffl", "eci": "fedci", "vpdl": "cycle"},
    **dict.fromkeys(("fedavg", "dw", "eu", "rr"), "baselines"),
    **dict.fromkeys(("fedprox", "fedavgm", "fedadam", "scaffold", "ditto"), "further"),
}
OF_THE_EVALUATION = {"metrics.json"}  # read by tests/evaluation/test_fairness.py


def entries(content):
    """The places in `READERS` of those that know an entry of the file."""
    return [place for place, (_, knows, entry, _) in enumerate(READERS) if knows(content, entry)]


@pytest.mark.skipif(not FILES, reason=f"no oracles in {FOLDER} (set FEDMERIT_ORACLES)")
@pytest.mark.parametrize(
    ("file", "place"),
    [
        (name, place)
        for name in sorted(CONTENTS.keys() - OF_THE_EVALUATION)
        for place in entries(CONTENTS[name]) or [None]
    ],
    ids=lambda value: value if isinstance(value, str) else "unread" if value is None else "-".join(READERS[value][::2]),
)
def test_worked_numbers(file, place):
    if place is None:
        named = file.removesuffix(".json").split("_")[0]
        built = f"no entry of {file} has a reader" if named in METHODS else f"method {named} is not built"
        pytest.skip(built)
    _, _, entry, check = READERS[place]
    check(CONTENTS[file], entry)


@pytest.mark.skipif(not FILES, reason=f"no oracles in {FOLDER} (set FEDMERIT_ORACLES)")
@pytest.mark.parametrize("method", [name for name in METHODS if name != "standalone"])
def test_the_oracle_of_every_built_method_is_read(method):
    """A new method whose worked numbers lie there needs a reader above."""
    file = f"{NAMED_OTHERWISE.get(method, method)}.json"
    content = CONTENTS.get(file)
    if content is None:
        pytest.skip(f"no {file}")
    assert method in {READERS[place][0] for place in entries(content)}
