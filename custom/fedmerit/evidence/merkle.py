"""Merkle trees by SHA-256 (Merkle 1987), with the leaf and node prefixes of RFC 6962: one digest commits to many."""

import hashlib
from collections.abc import Sequence

LEAF, NODE = b"\0", b"\1"  # prefixes, without which a node could be shown as a leaf
EMPTY = hashlib.sha256().digest()


def merkle_root(leaves: Sequence[bytes]) -> str:
    """Return the root over leaves in order, in hexadecimal; a last node without a partner moves up unchanged."""
    level = [hashlib.sha256(LEAF + leaf).digest() for leaf in leaves] or [EMPTY]
    while len(level) > 1:
        pairs = (level[place : place + 2] for place in range(0, len(level), 2))
        level = [hashlib.sha256(NODE + b"".join(pair)).digest() if len(pair) > 1 else pair[0] for pair in pairs]
    return level[0].hex()
