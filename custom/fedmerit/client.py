"""What a script of NVFlare's Client API may add for FedMerit: each call is for what some methods, or the guard, need.

```python
import fedmerit.client as merit

merit.enrol_cases(files, tested)                   # before the loop: the guard binds counts and finds shared cases
while flare.is_running():
    received = merit.receive()                     # instead of flare.receive()
    ...
    result = merit.with_losses(result, losses)     # methods that ask for losses: of the received model, each image
    result = merit.with_own_model(result, state)   # ditto: the site's own model, which never leaves the site
    flare.send(result)
```

It imports nothing of FedMerit but this file, so that it works in a process of the script's own.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ENROL, LOSSES, OWN = "fedmerit_enrol", "fedmerit_losses", "fedmerit_own"  # in the meta of what a script sends
EVALUATED_CASES = "fedmerit_evaluated"
LAMBDA = "ditto_lambda"  # in the meta of what a script receives
BLOCK = 1 << 20  # bytes
Case = str | Path | Sequence[str | Path]  # the file of a case's image, or its files

_held: dict[str, Any] = {}  # SHA-256 of each of the site's training cases, and the number of those it evaluates


def enrol_cases(training: Iterable[Case], evaluated: Iterable[Case] = ()) -> None:
    """Enrol the cases the site trains on, in any order; digests of their files are sealed before they leave it.

    ``evaluated``: those whose values ``METRIC_by_case`` holds; only their number leaves, and each answer has so many.
    """
    _held.update({ENROL: [_digest(case) for case in training], EVALUATED_CASES: len(list(evaluated))})


def receive(timeout: float | None = None) -> Any:
    """Receive the next model, as `nvflare.client.receive` does; the question what the site holds is answered first."""
    import nvflare.client as flare

    while True:
        model = flare.receive(timeout)
        if model is None or not (model.meta or {}).get(ENROL):
            return model
        if not _held:
            raise ValueError("fedmerit.client: enrol_cases has to be called before receive")
        flare.send(flare.FLModel(metrics={ENROL: 0.0}, meta=dict(_held)))


def with_losses(model: Any, losses: Iterable[float]) -> Any:
    """Return ``model``, an FLModel to send, with the loss of the received model on each image, in [0, 1].

    On the training images if the script trains, else on those that it evaluates.
    """
    model.meta = {**(model.meta or {}), LOSSES: [float(loss) for loss in losses]}
    return model


def with_own_model(model: Any, state: Mapping[str, Any]) -> Any:
    """Return ``model``, an FLModel to send, with the site's own model, a state_dict, which the site tests and keeps."""
    model.meta = {**(model.meta or {}), OWN: {name: _array(value) for name, value in state.items()}}
    return model


def _array(tensor: Any) -> Any:
    """Return a tensor as NumPy, without bfloat16; it goes in the meta, as NVFlare's DIFF drops unknown parameters."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _digest(case: Case) -> str:
    """Return the SHA-256 of a case's files."""
    digest = hashlib.sha256()
    for file in [case] if isinstance(case, str | Path) else case:
        with Path(file).open("rb") as stream:
            while block := stream.read(BLOCK):
                digest.update(block)
    return digest.hexdigest()
