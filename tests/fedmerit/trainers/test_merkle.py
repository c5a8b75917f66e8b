"""Merkle roots, against values explicitly and a tree that is built from the top."""

import hashlib

import pytest

from fedmerit.trainers.step_commitments import merkle_root


def sha(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def reference(leaves: list[bytes]) -> bytes:
    """RFC 6962, Section 2.1: split at the largest power of two below the number of leaves."""
    if len(leaves) == 1:
        return sha(b"\0" + leaves[0])
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return sha(b"\1" + reference(leaves[:split]) + reference(leaves[split:]))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 13])
def test_merkle_root_agrees_with_rfc_6962(count):
    leaves = [bytes([number]) * 32 for number in range(count)]
    assert merkle_root(leaves) == reference(leaves).hex()


def test_merkle_root_of_nothing_is_hash_of_nothing():
    assert merkle_root([]) == sha(b"").hex()


@pytest.mark.parametrize(
    "change", [lambda leaves: leaves[::-1], lambda leaves: leaves[:-1], lambda leaves: [*leaves, b""]]
)
def test_merkle_root_depends_on_order_and_number(change):
    leaves = [b"a", b"b", b"c"]
    assert merkle_root(change(leaves)) != merkle_root(leaves)


def test_merkle_node_is_no_leaf():
    left, right = sha(b"\0a"), sha(b"\0b")
    assert merkle_root([b"a", b"b"]) != merkle_root([left + right])
