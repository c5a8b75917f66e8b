"""Tensors in files, as `torch.save` writes them: no file takes more memory than it has bytes, whatever it declares.

A file is a zip archive with a pickle, and a stored entry for each storage. torch's weights-only reader executes nothing
of others, but it inflates compressed entries, repeats a number as often as strides of 0 say, and makes what a few
functions are asked for. So sizes and names are looked at before, and storages are mapped, never copied.
"""

import pickletools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch
from torch import Tensor

from fedmerit.errors import BadInput
from fedmerit.files import require_file

KEPT_UPDATES = "kept_updates"  # folder of the updates of an NVFlare job, in its own at the server
FIRST_MODEL = "first.pt"  # in that folder: the model that the job began with
MOST = 1 << 36  # bytes of a file
MOST_PICKLE = 2_000_000  # bytes of the part that names tensors, and a 32nd of the file: it takes up to 100 times that
OVERLAP = 4  # times the file: the tensors in it, of which some may share numbers
END = 22  # bytes of the record that ends an archive without a comment
CALLED = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    *(f"torch {kind}Storage" for kind in ("Double", "Float", "Half", "Long", "Int", "Byte", "Bool")),
}
NAMING = {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"}  # steps of a pickle
Content = Any  # what was saved: mappings and lists of tensors, numbers and texts


def load_tensors(path: Path) -> Content:
    """Return what `torch.save` wrote to a file, its tensors mapped from it, on the CPU.

    Raises:
        BadInput: the file is missing, is no such file, or declares more than it holds; it is named, and what is wrong.
    """
    size = require_file(path, MOST)
    try:
        _require_plain(path, size)
        content = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
        claimed = sum(_claimed(tensor) for tensor in _tensors(content))
    except BadInput:
        raise
    except Exception as error:  # of whatever kind torch's unpickler meets in a spoiled file
        raise BadInput(f"{path}: not readable as tensors ({type(error).__name__}: {error!s:.120})") from error
    if claimed > OVERLAP * size:
        raise BadInput(f"{path}: declares tensors of {claimed} bytes, and has {size}; it was not written by FedMerit")
    return content


def load_state(path: Path) -> dict[str, Tensor]:
    """Load a network's state_dict with `load_tensors`; `BadInput` if the file holds anything else."""
    state = load_tensors(path)
    if not isinstance(state, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items()):
        raise BadInput(f"{path}: not the state_dict of a network; expected its tensors by name")
    return state


def _require_plain(path: Path, size: int) -> None:
    """Raise `BadInput` if an archive has compressed or overlapping entries, or names what tensors do not need."""
    with path.open("rb") as file:
        file.seek(-min(END, size), 2)
        is_whole = file.read(4) == b"PK\5\6"
    try:
        archive = ZipFile(path)
    except (BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise BadInput(f"{path}: not a file of tensors ({error}); expected what torch.save writes") from error
    with archive:
        entries = archive.infolist()
        stored = all(one.compress_type == ZIP_STORED and one.file_size == one.compress_size for one in entries)
        starts = min((one.header_offset for one in entries), default=-1)
        pickles = [one for one in entries if one.filename.endswith("/data.pkl")]
        twice = len({one.filename for one in entries}) < len(entries)
        if not (is_whole and stored and starts == 0 and len(pickles) == 1) or twice:
            raise BadInput(f"{path}: compressed, or not as torch.save writes tensors; take it from a run again")
        if sum(one.file_size for one in entries) > size or pickles[0].file_size > MOST_PICKLE + size / 32:
            raise BadInput(f"{path}: declares entries larger than the file; take it from a run again")
        pickle = archive.read(pickles[0])
        for step, argument, _ in pickletools.genops(pickle):  # only what rebuilds tensors and mappings
            if step.name in NAMING and not (step.name == "GLOBAL" and argument in CALLED):
                raise BadInput(f"{path}: names {argument or step.name!s:.80}, which no file of tensors needs")


def _claimed(tensor: Tensor) -> int:
    """Return the bytes of a tensor; ValueError if it has more numbers than its storage, or is not only numbers."""
    claimed = tensor.numel() * tensor.element_size()
    if tensor.requires_grad or tensor.is_neg() or claimed > tensor.untyped_storage().nbytes():
        raise ValueError(f"a tensor of shape {list(tensor.shape)!s:.60} is not what is stored of it")
    return claimed


def _tensors(content: Content) -> Iterator[Tensor]:
    """Yield all tensors in mappings and sequences, those in several places once."""
    seen, waiting = set[int](), [content]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
