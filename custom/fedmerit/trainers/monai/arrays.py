"""Stored arrays, memory-mapped: whatever a file holds, it is numbers of the promised shape or `BadInput`."""

import ctypes
import math
import mmap
import threading
import weakref
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput
from fedmerit.files import require_file

MOST_ARRAY = 1 << 36  # bytes of a stored case, which is mapped, not read
HEADER_LOCK = threading.Lock()  # NumPy parses one by `ast`; two threads in that at once can fail before CPython 3.11.8
NPY = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
LIBC.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
# whatever reading a spoiled header ends with; EOFError: what NumPy says of a file of zero bytes
UNREADABLE = (OSError, RuntimeError, ValueError, EOFError, OverflowError, SyntaxError, TypeError, TokenError)


def load_array(path: Path) -> NDArray[Any]:
    """Memory-map one ``.npy`` file, read-only; `BadInput` naming the file if that fails."""
    try:
        size = require_file(path, MOST_ARRAY)
        with HEADER_LOCK:
            _require_numbers(path, size)
            array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return _without_descriptor(path, array) if isinstance(array, np.memmap) and array.flags.c_contiguous else array
    except FileNotFoundError:
        raise BadInput(f"{path}: file not found; run `fedmerit prepare` again") from None
    except UNREADABLE as error:
        raise BadInput(f"{path}: not a readable .npy array ({error}); run `fedmerit prepare` again") from error


def _require_numbers(path: Path, size: int) -> None:
    """ValueError unless the header of a file promises numbers that are there: NumPy itself divides by sizes of 0."""
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        if version not in NPY:
            raise ValueError(f"version {version}")
        shape, _, kind = NPY[version](file)
        if kind.kind not in "buif" or not all(type(side) is int and side >= 0 for side in shape):
            raise ValueError(f"{kind} of shape {shape}, expected numbers")
        if math.prod(shape) * kind.itemsize > size - file.tell():
            raise ValueError(f"its header promises {shape}, which it does not hold")


def _without_descriptor(path: Path, array: np.memmap[Any, Any]) -> NDArray[Any]:
    """The same array, mapped by the C library: Python's maps keep files open, and a process may have 1,024 open."""
    size = array.offset + array.nbytes
    with path.open("rb") as file:  # a private copy of what is written to, so nothing reaches the file
        place = LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, file.fileno(), 0)
    if place == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"{path} cannot be mapped")
    stored = (ctypes.c_ubyte * size).from_address(place)
    weakref.finalize(stored, LIBC.munmap, place, size).atexit = False  # once no array has it
    mapped: NDArray[Any] = np.frombuffer(memoryview(stored), np.uint8)[array.offset :].view(array.dtype)
    mapped = mapped.reshape(array.shape)
    mapped.flags.writeable = False
    return mapped
