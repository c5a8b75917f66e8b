"""Commitments of a site to the steps of its training, and what it keeps so that an auditor can repeat them.

A leaf is a SHA-256 after every k-th step and the last: of weights, statistics, optimizer, generators, and the digests
of the batches so far. The Merkle root over a round's leaves goes into the site's log. A training repeats bit for bit on
the machine that did it, so the site keeps what the round started from, not the states in between: the least that works.
It also keeps the trained model, which connects the last leaf with the update.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from fedmerit.contract import flat
from fedmerit.evidence.digests import digest
from fedmerit.files import write_atomically
from fedmerit.schema.messages import PeerModel, Task
from fedmerit.schema.records import CommitmentRecord
from fedmerit.tensor_files import load_tensors
from fedmerit.trainers.memory import Learned, Memory
from fedmerit.trainers.training_checkpoint import Restorable

EVERY = 10  # steps between two leaves, at least
PARAMETERS = 50_000  # of a network, for each step between two leaves: hashing a large one takes as long as a step
WORK = "work"  # folder of a site's memory with what its rounds started from
MOST_KEPT = 16 << 30  # bytes of that folder; the oldest rounds go first
NOT_SENT = {"parameters", "changes", "ciphertexts", "ledger"}  # of a task: the received model stands for them
LEAF, NODE = b"\0", b"\1"  # prefixes, without which a node of the tree could be shown as a leaf
EMPTY = hashlib.sha256().digest()


class LeafReached(Exception):
    """The signal that a repeated training has come to the drawn leaf."""


def merkle_root(leaves: Sequence[bytes]) -> str:
    """Return the root of the Merkle tree (1987) over leaves in order, in hexadecimal: one digest commits to all.

    Hashes are SHA-256 with the prefixes of RFC 6962; a last node without a partner moves up unchanged.
    """
    level = [hashlib.sha256(LEAF + leaf).digest() for leaf in leaves] or [EMPTY]
    while len(level) > 1:
        pairs = (level[place : place + 2] for place in range(0, len(level), 2))
        level = [hashlib.sha256(NODE + b"".join(pair)).digest() if len(pair) > 1 else pair[0] for pair in pairs]
    return level[0].hex()


def steps_between_leaves(parameters: int) -> int:
    """Return k, the number of steps from a leaf to the next, for a network of so many parameters."""
    return max(EVERY, parameters // PARAMETERS)


def state_digest(value: Any) -> bytes:
    """Return the SHA-256 over nested mappings and sequences of tensors, numbers and texts, with their types."""
    whole = hashlib.sha256()
    _add(whole, value)
    return whole.digest()


def _add(whole: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        whole.update(f"{value.dtype} {list(value.shape)}\n".encode())
        whole.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        whole.update(f"{len(value)} by name\n".encode())
        for name in sorted(value, key=str):
            whole.update(f"{name!r}\n".encode())
            _add(whole, value[name])
    elif isinstance(value, list | tuple):
        whole.update(f"{len(value)} in order\n".encode())
        for item in value:
            _add(whole, item)
    else:
        whole.update(f"{type(value).__name__} {value!r}\n".encode())


class RoundCommitments:
    """The leaves of all trainings of a round, of which methods may do several.

    Args:
        salt: secret of the site, without which no leaf shows anything of an image.
        samples: SHA-256 of image and mask of each training sample.
        every: steps between two leaves.
        last: the number of leaves after which `LeafReached` is raised; None: the training ends.
    """

    def __init__(self, salt: str, samples: Sequence[bytes], every: int, last: int | None = None):
        self.salt, self.samples, self.every, self.last = salt, samples, every, last
        self.trainings: list[TrainingCommitments] = []

    def next(self) -> "TrainingCommitments":
        """Return the commitments of the next training."""
        self.trainings.append(TrainingCommitments(self, len(self.trainings)))
        return self.trainings[-1]

    @property
    def leaves(self) -> list[bytes]:
        """The leaves so far, in order."""
        return [bytes.fromhex(leaf) for training in self.trainings for leaf in training.leaves]

    @property
    def steps(self) -> int:
        """The steps so far."""
        return sum(training.steps for training in self.trainings)

    @property
    def end(self) -> dict[str, str]:
        """The parts of the last leaf, by name, in hexadecimal."""
        return self.trainings[-1].parts


class TrainingCommitments:
    """The leaves of one training. Its state goes into the training's checkpoint, so a continued one has them all.

    Args:
        of_round: the round.
        number: of the training in its round.
    """

    def __init__(self, of_round: RoundCommitments, number: int):
        self.round, self.number = of_round, number
        self.leaves: list[str] = []
        self.steps = 0
        self.parts: dict[str, str] = {}  # of the last leaf
        self._batches, self._order = b"", b""

    def state_dict(self) -> dict[str, Any]:
        """Return the leaves so far, and the digests that the next one follows from."""
        digests = {"batches": self._batches.hex(), "order": self._order.hex()}
        return {"leaves": list(self.leaves), "steps": self.steps, "parts": dict(self.parts), **digests}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.leaves, self.steps, self.parts = list(state["leaves"]), state["steps"], dict(state["parts"])
        self._batches, self._order = bytes.fromhex(state["batches"]), bytes.fromhex(state["order"])

    def note_batch(self, places: Tensor, order: Generator) -> None:
        """Add the samples at ``places`` (batch,) of the next step, and the generator of their order."""
        digests = b"".join(self.round.samples[place] for place in places.tolist())
        self._batches = hashlib.sha256(self._batches + digests).digest()
        self._order = state_digest(order.get_state())

    def note_step(self, steps: int, network: nn.Module, *states: Restorable) -> None:
        """Add a leaf if one is due after this step.

        Args:
            steps: of the whole training: every leaf names them, so that one that ended early has other leaves.
            network: after the step.
            *states: optimizer, scaler, augmenter.

        Raises:
            LeafReached: it is the leaf up to which an audit repeats the training.
        """
        self.steps += 1
        if self.steps % self.round.every and self.steps < steps:
            return
        self.parts = {
            "model": digest(flat.get_parameters(network)),
            "statistics": state_digest(dict(network.named_buffers())).hex(),
            "states": state_digest([state.state_dict() for state in states]).hex(),
            "order": self._order.hex(),
            "batches": self._batches.hex(),
            "place": f"{self.number} {self.steps} of {steps}",
        }
        self.leaves.append(make_leaf(self.round.salt, self.parts).hex())
        if self.round.last is not None and len(self.round.leaves) >= self.round.last:
            raise LeafReached


def make_leaf(salt: str, parts: Mapping[str, str]) -> bytes:
    """Return the leaf of a state by the digests of its parts."""
    return state_digest([salt, dict(parts)])


def sealed_samples(salt: str, samples: Sequence[bytes]) -> str:
    """Return the Merkle root over training samples, of whose digests none can be guessed without the salt."""
    return merkle_root([hashlib.sha256(salt.encode() + sample).digest() for sample in samples])


@dataclass(frozen=True)
class RoundStart:
    """A round's start, and what it led to."""

    task: Task  # with the received model as its parameters
    memory: Memory | None  # that the method's own local training began with
    question: str
    leaves: Sequence[bytes]
    end: Mapping[str, str]  # the parts of the last leaf
    trained: Tensor  # (d,)

    @property
    def root(self) -> str:
        """The Merkle root over the leaves."""
        return merkle_root(self.leaves)

    @property
    def is_complete(self) -> bool:
        """Whether the last leaf names itself as the end of its training."""
        return re.fullmatch(r"\d+ (\d+) of \1", self.end.get("place", "")) is not None


class WorkFolder:
    """A folder of what a site keeps of its rounds for an audit, a file a round; ``salt`` is a secret of the site."""

    def __init__(self, path: Path, salt: str):
        self.path, self.salt = path, salt

    def commit(
        self,
        task: Task,
        received: Tensor,
        memory: Memory | None,
        question: str,
        samples: Sequence[bytes],
        learn: Callable[[RoundCommitments], Learned],
    ) -> tuple[Learned, CommitmentRecord]:
        """Have a round trained by ``learn``, keep what it started from, and return what it gave with the commitment.

        Args:
            task: the training task.
            received: (d,) the model to train from.
            memory: of the last round, if the method's own training begins with it.
            question: digest of the task.
            samples: SHA-256 of image and mask of each training sample.
            learn: trains, with the commitments that it adds to.
        """
        commitments = RoundCommitments(self.salt, samples, steps_between_leaves(len(received)))
        learned = learn(commitments)
        content = {
            "task": _plain_task(task, received),
            "memory": None if memory is None else vars(memory),
            "question": question,
            "leaves": [leaf.hex() for leaf in commitments.leaves],
            "end": commitments.end,
            "trained": learned.trained,
        }
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file(task.round), lambda stream: torch.save(content, stream))
        self._make_room()
        return learned, CommitmentRecord(
            root=merkle_root(commitments.leaves),
            leaves=len(commitments.leaves),
            steps=commitments.steps,
            samples=sealed_samples(self.salt, samples),
            received=digest(received),
            update=digest(learned.update),
        )

    def read(self, round: int) -> RoundStart | None:
        """Return what a round started from; None if it is not kept (any more).

        Raises:
            BadInput: the file is damaged.
        """
        file = self._file(round)
        if not file.exists():
            return None
        content = load_tensors(file)
        task = content["task"]
        task["peers"] = {peer: PeerModel(**model) for peer, model in task["peers"].items()}
        memory = None if content["memory"] is None else Memory(**content["memory"])
        leaves = [bytes.fromhex(leaf) for leaf in content["leaves"]]
        return RoundStart(Task(**task), memory, content["question"], leaves, content["end"], content["trained"])

    def remove(self, round: int) -> None:
        """Remove what is kept of a round."""
        self._file(round).unlink(missing_ok=True)

    def _file(self, round: int) -> Path:
        return self.path / f"round_{round:05d}.pt"

    def _make_room(self) -> None:
        """Remove the oldest rounds if the folder takes more than `MOST_KEPT` bytes."""
        files = sorted(self.path.glob("round_*.pt"))
        size = sum(file.stat().st_size for file in files)
        for file in files[:-1]:
            if size <= MOST_KEPT:
                return
            size -= file.stat().st_size
            file.unlink()


def _plain_task(task: Task, received: Tensor) -> dict[str, Any]:
    """Return the fields of a task in what a file of tensors holds, without those that `received` (d,) stands for."""
    plain = {field.name: getattr(task, field.name) for field in fields(task) if field.name not in NOT_SENT}
    plain |= {name: dict(plain[name]) for name in ("buffers", "others", "vectors")}
    return plain | {"parameters": received, "peers": {peer: vars(model) for peer, model in task.peers.items()}}
