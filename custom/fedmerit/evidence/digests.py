"""SHA-256 of tensors, as the ledger and the sites' logs name them."""

import hashlib
from collections.abc import Iterable, Mapping, MutableMapping

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fedmerit.ciphertexts import Ciphertexts


def digest(vector: Tensor | Ciphertexts) -> str:
    """Return the SHA-256 of a vector's float32 bytes, or of its ciphertexts, in hexadecimal."""
    if isinstance(vector, Ciphertexts):
        return vector.digest
    if vector.is_inference():  # torch does not say whether it was changed
        return _digest(vector)
    version, known = _DIGESTS.get(vector, (-1, ""))
    if version != vector._version:
        known = _digest(vector)
        _DIGESTS[vector] = vector._version, known
    return known


# by vector, as long as it exists: the version that torch counts, and the digest
_DIGESTS: MutableMapping[Tensor, tuple[int, str]] = WeakTensorKeyDictionary()


def _digest(vector: Tensor) -> str:
    return hashlib.sha256(vector.detach().float().reshape(-1).contiguous().numpy().data).hexdigest()


def tensors_digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the SHA-256 over named tensors, with their types and shapes, in hexadecimal."""
    whole = hashlib.sha256()
    for name, tensor in tensors:
        whole.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        whole.update(tensor.contiguous().view(-1).numpy().data)
    return whole.hexdigest()


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Return the `tensors_digest` of a network's state_dict, whatever its order."""
    return tensors_digest(sorted(state.items()))
