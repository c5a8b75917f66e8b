"""Updates that only the sites can read: the server adds up CKKS ciphertexts, and has no key that opens one.

All sites hold the same TenSEAL context, with its secret key; the server holds it without. A site's update and its
BatchNorm statistics are cut into pieces of `SLOTS` entries, a ciphertext each.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import Strict
from torch import Tensor

from fedmerit.contract.flat import Buffers
from fedmerit.errors import BadInput
from fedmerit.schema.rules import About, Declared
from fedmerit.version import install_advice

if TYPE_CHECKING:
    from tenseal import CKKSVector

DEGREE, PRIMES, SCALE_BITS = 8192, (60, 40, 40), 40  # NVFlare's choice: 128 bits of security, and one multiplication
SLOTS = DEGREE // 2  # entries in a ciphertext
LARGEST = 1e5  # magnitude that is encrypted: beyond some 5e5 another number comes out
KEYS = "keys"  # folder of both contexts, in the run folder of an encrypted run on one machine
Piece = Annotated[bytes, Strict()]
LEAST_WEIGHT = 1e-9  # below it a weight is 0 at this scale, by which TenSEAL cannot multiply


@dataclass(frozen=True)
class Ciphertexts(Declared):
    """The encrypted result of a site's training, or the sum of all sites' results."""

    update: Annotated[tuple[Piece, ...], About("Ciphertexts of the update (d,), one after the other.")]
    statistics: Annotated[tuple[Piece, ...], About("Ciphertexts of the BatchNorm statistics and counters (b,).")]

    @property
    def digest(self) -> str:
        """The SHA-256 of the ciphertexts' bytes, in hexadecimal."""
        whole = hashlib.sha256()
        for piece in self.update + self.statistics:
            whole.update(piece)
        return whole.hexdigest()

    @property
    def size(self) -> int:
        """The size in bytes."""
        return sum(map(len, self.update + self.statistics))

    def to_tensors(self) -> dict[str, list[Tensor]]:
        """Return tensors to save by `torch.save`, which needs half as much space again for bytes."""
        return {
            name: [torch.frombuffer(bytearray(piece), dtype=torch.uint8) for piece in pieces]
            for name, pieces in vars(self).items()
        }

    @classmethod
    def from_tensors(cls, saved: Mapping[str, Sequence[Tensor]]) -> "Ciphertexts":
        """Return the ciphertexts that `to_tensors` took apart."""
        return cls(**{name: tuple(piece.numpy().tobytes() for piece in pieces) for name, pieces in saved.items()})


class SiteKey:
    """A key with which a site encrypts and decrypts.

    Args:
        context: TenSEAL's, with the secret key that all sites share.

    Raises:
        BadInput: it is no such context, or TenSEAL is not installed.
    """

    def __init__(self, context: bytes):
        self._context = open_context(context, secret=True)

    def encrypt(self, update: Tensor, buffers: Buffers) -> Ciphertexts:
        """Encrypt an update (d,) and statistics; equal ones never give the same bytes twice.

        Raises:
            ValueError: an entry is not finite, or beyond `LARGEST`.
        """
        return Ciphertexts(self._pieces(update), self._pieces(_flattened(buffers)))

    def decrypt(self, ciphertexts: Ciphertexts, like: Buffers) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the update (d,) in float64, and the statistics, of the names, shapes and types of ``like``.

        Decrypted numbers are off by some 1e-8, and by 1e-6 of themselves: variances stay at or above 0, counters whole.
        """
        values, statistics, start = self._opened(ciphertexts.statistics), {}, 0
        for name, value in like.items():
            own = values[start : start + value.numel()].view(value.shape)
            if not name.endswith("running_mean"):
                own = own.clamp(min=0)
            statistics[name] = (own if value.is_floating_point() else own.round()).to(value.dtype)
            start += value.numel()
        return self._opened(ciphertexts.update), statistics

    def _pieces(self, vector: Tensor) -> tuple[bytes, ...]:
        import tenseal

        if not (vector.abs() <= LARGEST).all():
            raise ValueError(f"an entry is not finite, or beyond {LARGEST:g}: it cannot be encrypted")
        pieces = torch.split(vector.double(), SLOTS)
        return tuple(tenseal.ckks_vector(self._context, piece.numpy()).serialize() for piece in pieces if len(piece))

    def _opened(self, pieces: Sequence[bytes]) -> Tensor:
        import tenseal

        values = [tenseal.ckks_vector_from(self._context, piece).decrypt() for piece in pieces]
        return torch.from_numpy(np.array([value for piece in values for value in piece], dtype=np.float64))


class Adder:
    """A context in which the server adds up ciphertexts.

    Args:
        context: TenSEAL's, without the secret key.
        parameters: d.
        buffers: like those of the sites.

    Raises:
        BadInput: it is no such context, or TenSEAL is not installed.
    """

    def __init__(self, context: bytes, parameters: int, buffers: Buffers):
        self._context = open_context(context, secret=False)
        self._sizes = parameters, len(_flattened(buffers))

    def fault(self, ciphertexts: Ciphertexts | None) -> str | None:
        """Return why what a site sent cannot be added up, or None. The server cannot see what is in it."""
        if ciphertexts is None:
            return "update that is not encrypted"
        for pieces, size in zip((ciphertexts.update, ciphertexts.statistics), self._sizes, strict=True):
            expected = [min(SLOTS, size - start) for start in range(0, size, SLOTS)]
            if len(pieces) != len(expected):
                return f"{len(pieces)} ciphertexts, expected {len(expected)} for {size} entries"
            for piece, entries in zip(pieces, expected, strict=True):
                if not self._is_fresh(piece, entries):
                    return f"ciphertext that is none of {entries} entries in this federation's context"
        return None

    def add(
        self,
        total: Ciphertexts | None,
        ciphertexts: Sequence[Ciphertexts],
        weights: Sequence[float],
        shares: Sequence[float],
    ) -> Ciphertexts:
        """Return ``total`` plus the weighted sum of the updates, and the mean of the statistics by ``shares``.

        Args:
            total: of the rounds before; None: 0.
            ciphertexts: of n sites, in site order.
            weights: ρ of each.
            shares: of the training images, likewise; they sum to 1.
        """
        before = (
            [()] * len(ciphertexts[0].update) if total is None else [(self._load(piece),) for piece in total.update]
        )
        updates = zip(before, zip(*(one.update for one in ciphertexts), strict=True), strict=True)
        statistics = zip(*(one.statistics for one in ciphertexts), strict=True)
        return Ciphertexts(
            tuple(self._sum(start, pieces, weights) for start, pieces in updates),
            tuple(self._sum((), pieces, shares) for pieces in statistics),
        )

    def _sum(self, start: Sequence["CKKSVector"], pieces: Sequence[bytes], weights: Sequence[float]) -> bytes:
        """Return one ciphertext of the sum; no more than three are in memory at a time."""
        result = next(iter(start), None)
        for piece, weight in zip(pieces, weights, strict=True):
            if weight >= LEAST_WEIGHT:
                scaled = self._load(piece) * weight
                result = scaled if result is None else result + scaled
        assert result is not None  # weights sum to 1
        whole: bytes = result.serialize()
        return whole

    def _load(self, piece: bytes) -> "CKKSVector":
        import tenseal

        return tenseal.ckks_vector_from(self._context, piece)

    def _is_fresh(self, piece: object, entries: int) -> bool:
        """Return whether it is one ciphertext of so many entries that was not multiplied yet."""
        if not isinstance(piece, bytes):
            return False
        try:
            vector = self._load(piece)
        except (ValueError, RuntimeError):
            return False
        ciphertexts = vector.ciphertext()
        if vector.size() != entries or len(ciphertexts) != 1:
            return False
        one = ciphertexts[0]
        found = one.size(), one.poly_modulus_degree(), one.coeff_modulus_size(), one.scale, one.is_transparent()
        return found == (2, DEGREE, len(PRIMES) - 1, 2.0**SCALE_BITS, False)


def require_tenseal(why: str) -> None:
    """Raise `BadInput`, which says how to install TenSEAL, if it is missing."""
    try:
        import tenseal  # noqa: F401
    except ImportError:
        raise BadInput(f"{why} needs TenSEAL, which is not installed; {install_advice('he')}") from None


def open_context(content: bytes, secret: bool) -> Any:
    """Return TenSEAL's context, of a site if ``secret``; raise `BadInput` if it is none, or has the key wrongly."""
    require_tenseal("homomorphic encryption")
    import tenseal

    try:
        context = tenseal.context_from(content)
    except (ValueError, RuntimeError) as error:
        raise BadInput(f"the encryption context cannot be read ({error}); ask the coordinator for it again") from error
    if secret and not context.is_private():
        raise BadInput("the encryption context of a site lacks the secret key; ask the coordinator for the kit again")
    if context.is_private() and not secret:
        raise BadInput("the server's encryption context holds the sites' secret key; provision the federation again")
    return context


def _flattened(buffers: Buffers) -> Tensor:
    """Return all statistics (b,) in float64, one after the other."""
    return torch.cat([torch.empty(0, dtype=torch.float64), *(value.double().flatten() for value in buffers.values())])
