"""Seeds: every random draw has its own generator, and never uses global state."""

import hashlib


def random_seed(*parts: object) -> int:
    """Return a 63-bit seed from (seed, site, round) or the like, the same on every machine."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:8]) >> 1
