"""The forms in which people give a script's model: each becomes a module, or tensors or arrays by name.

Beside a torch.nn.Module these are what NVFlare's recipes take (a class by its path, lists of numbers for its NumPy
example), wrapped modules, and checkpoints.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from fedmerit.errors import BadInput
from fedmerit.tensor_files import load_tensors
from fedmerit.trainers.script.named_tensors import Model

EXPECTED = "expected a torch.nn.Module, its state_dict, or NumPy's arrays by name"
PATHS = ("class_path", "path")  # names of a class's path in the recipes of NVFlare
STATES = ("state_dict", "model_state_dict", "model")  # of a checkpoint, the part with the tensors
CHECKPOINTS = "what torch.save wrote, or .npy or .npz of NumPy"
ARRAYS = (".npy", ".npz")
NUMPY_KEY = "numpy_key"  # name of an array without one, as in NVFlare's NPConstants
COMPILED = "_orig_mod"  # of a module that torch.compile made, the module


def to_model(model: Any) -> Model:
    """Return the model that ``model`` stands for.

    Raises:
        BadInput: it stands for none; the message says what it is, and what is expected.
    """
    if isinstance(model, Mapping) and any(isinstance(model.get(path), str) for path in PATHS):
        model = _build(model)
    if isinstance(model, nn.Module):
        return _require_materialized(unwrap(model))
    if isinstance(model, type):
        raise BadInput(f"model: is the class {model.__name__}; expected an instance, {model.__name__}(...)")
    if isinstance(model, np.ndarray | list | tuple) and (array := _to_array(model)) is not None:
        return {NUMPY_KEY: array}
    if isinstance(model, Mapping):
        return _to_state(model)
    kind = type(model)
    if any(base.__module__.startswith(("keras", "tensorflow")) for base in kind.__mro__):
        raise BadInput(
            f"model: is {kind.__name__} of Keras, whose layers have lists of weights; give NumPy's arrays by name, as "
            "the script sends them: {variable.path: variable.numpy() for variable in model.variables}"
        )
    if callable(model):
        raise BadInput(f"model: is {kind.__name__}, which makes one; {EXPECTED}: call it")
    raise BadInput(f"model: is {'None' if model is None else kind.__name__}; {EXPECTED}")


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module in what torch.compile, DataParallel or DistributedDataParallel made of it.

    Its parts that are wrapped are unwrapped, too, so that tensors have the names that a script sends.
    """
    while True:
        if isinstance(inner := getattr(module, COMPILED, None), nn.Module):
            module = inner
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            break
    wrapped = [name for name, part in module.named_children() if unwrap(part) is not part]
    inside = [part for name, part in module.named_children() if name not in wrapped]
    if wrapped or any(COMPILED in name for part in inside for name, _ in part.named_modules()):
        raise BadInput(
            f"model: its part {(wrapped or [COMPILED])[0]} is wrapped by torch.compile or DataParallel, so its tensors "
            "have other names than the script's; give the model before it is wrapped"
        )
    return module


def load_checkpoint(model: Model | None, file: str | Path) -> Model:
    """Return ``model`` with the weights of a checkpoint.

    Args:
        model: the module, or its tensors by name; None: the weights by name are the model.
        file: what torch.save wrote, a state_dict or a mapping with one of `STATES`; or an array or arrays of NumPy.

    Raises:
        BadInput: the file cannot be read, or has other tensors than the model.
    """
    path = Path(file)
    if not path.is_file():
        raise BadInput(f"initial_ckpt {path}: file not found; expected {CHECKPOINTS}")
    state = _load_arrays(path) if path.suffix in ARRAYS else _to_state(load_tensors(path))
    if model is None:
        return state
    own = model.state_dict() if isinstance(model, nn.Module) else model
    shapes = ({name: tuple(np.shape(value)) for name, value in one.items()} for one in (state, own))
    found, expected = shapes
    if found != expected:
        names = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        one = names[0]
        raise BadInput(
            f"initial_ckpt {path}: {len(names)} tensors are not the model's, such as {one}: "
            f"{found.get(one, 'missing')}, the model's is {expected.get(one, 'missing')}"
        )
    if not isinstance(model, nn.Module):
        return {name: np.asarray(state[name]) if isinstance(own[name], np.ndarray) else state[name] for name in own}
    model.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})
    return model


def _load_arrays(path: Path) -> dict[str, Any]:
    """Return the array of a .npy file, under NVFlare's name for it, or the arrays by name of a .npz file."""
    try:
        content = np.load(path, allow_pickle=False)
        return {NUMPY_KEY: content} if isinstance(content, np.ndarray) else dict(content)
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise BadInput(f"initial_ckpt {path}: cannot be read ({error!s:.200}); expected {CHECKPOINTS}") from None


def _build(description: Mapping[str, Any]) -> Any:
    """Return an instance of the class that ``description`` names, as NVFlare's recipes have it."""
    text, arguments = (
        next(description[path] for path in PATHS if isinstance(description.get(path), str)),
        description.get("args") or {},
    )
    module, _, name = str(text).rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
        return kind(**arguments)
    except Exception as error:  # whatever another's code raises
        raise BadInput(f"model: {text} cannot be made ({type(error).__name__}: {error!s:.200})") from error


def _require_materialized(module: nn.Module) -> nn.Module:
    for name, value in module.state_dict(keep_vars=True).items():
        if nn.parameter.is_lazy(value):
            raise BadInput(f"model: {name} has no shape yet; apply the model to an input of the script's once")
        if isinstance(value, Tensor) and value.is_meta:
            raise BadInput(f"model: {name} is on the meta device, without numbers; make the model on the CPU")
    return module


def _to_array(values: Any) -> np.ndarray | None:
    """Return numbers in lists as an array; None if they are none, or the lists are of different lengths."""
    try:
        array = np.asarray(values)
    except ValueError:
        return None
    return (
        (array if isinstance(values, np.ndarray) else array.astype(np.float32)) if array.dtype.kind in "fiu" else None
    )


def _to_state(content: Any) -> dict[str, Any]:
    """Return the tensors by name in a state_dict, in a checkpoint that holds one, or of a compiled module."""
    inner = next((content[name] for name in STATES if isinstance(content, Mapping) and name in content), None)
    if isinstance(inner, Mapping):
        content = inner
    if not isinstance(content, Mapping):
        raise BadInput(f"model: is {type(content).__name__}; {EXPECTED}")
    head = f"{COMPILED}."
    state = {str(name).replace(head, ""): value for name, value in content.items()}
    for name, value in state.items():
        if isinstance(value, Mapping):
            raise BadInput(f"model: {name} holds names itself; join them with dots, as in a state_dict")
        if isinstance(value, list | tuple) and (array := _to_array(value)) is not None:
            state[name] = array
    return state
