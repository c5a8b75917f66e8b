"""What a run says of a script and its model, before either is used."""

import shlex
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedmerit.errors import BadInput
from fedmerit.evidence.digests import state_digest
from fedmerit.schema.configuration.script import Script, find_names, find_uses
from fedmerit.schema.score_name import AUTO
from fedmerit.trainers.script.named_tensors import Model, describe, to_state

EVALUATES = "is_evaluate"  # in a script that answers evaluations


def describe_script(
    model: Model,
    file: Path,
    metric: str | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    mode: str = "max",
    evaluates: bool | None = None,
) -> Script:
    """Return what a run says of the script in ``file`` and its ``model``; `BadInput` if that cannot be sent.

    ``metric``: None: each site takes it from its script's first answer; "": none counts.
    """
    if mode not in ("max", "min"):
        raise BadInput(f"key_metric_mode={mode!r}: expected max or min")
    tensors, output = describe(model)
    try:
        text = file.read_text(encoding="utf-8")
        answers = EVALUATES in find_names(text) if evaluates is None else evaluates
        return Script(
            tensors=tensors,
            start=state_digest(plain_weights(model)),
            output=output,
            metric=AUTO if metric is None else metric,
            lowest=float(bounds[0]),
            highest=float(bounds[1]),
            better="higher" if mode == "max" else "lower",
            evaluates=bool(answers and metric != ""),
            uses=find_uses(text),
            arrays=isinstance(model, Mapping) and any(isinstance(one, np.ndarray) for one in model.values()),
        )
    except ValueError as error:
        raise BadInput(f"script: {error}") from None
    except SyntaxError as error:
        raise BadInput(f"{file}, line {error.lineno}: {error.msg}; expected the sites' Python script") from None


def require_args(text: str, own_process: bool = False) -> None:
    """Raise `BadInput` if the arguments of a script cannot be split as they are written."""
    try:
        count = len(shlex.split(text))
    except ValueError as error:
        raise BadInput(f"arguments of the script, {text!r:.200}: {error}") from None
    if not own_process and count != len(text.split()):
        raise BadInput(
            f"arguments of the script, {text!r:.200}: NVFlare splits them at every space, quotes or not, unless the "
            "script has a process of its own; take launch_external_process=True, or values without spaces"
        )


def plain_weights(model: Model) -> dict[str, Tensor]:
    """Return the weights to begin with, in float32 and int64."""
    kinds = {True: torch.float32, False: torch.int64}
    return {
        name: value.detach().to("cpu", kinds[value.is_floating_point()]).clone().contiguous()
        for name, value in to_state(model).items()
    }
