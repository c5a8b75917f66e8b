"""site_log.jsonl: what a site got, sent, and was told, in a hash chain of its own, so that it can prove it later.

A record per task, repeated ones included. ``ledger`` is the server's word that came with the task: the hash of its
ledger's last record, and so of everything in the ledger before this round. Where models go from site to site, there is
a record of every model that the site gives, and one of every peer that gives it its model or does not answer.
"""

import hashlib
from pathlib import Path

from torch import Tensor

from fedmerit.records.ciphertexts import Ciphertexts
from fedmerit.records.ledger import Ledger, digest
from fedmerit.wire.messages import EVALUATE, TRAIN, Evaluation, ImportanceTask, PeerModel, Task

SITE_LOG = "site_log.jsonl"
GAVE, GOT = "lend", "borrow"  # the work of the records of peers' models


class SiteLog:
    """The log of one site, open for appending.

    Args:
        folder: the site's own.
        site: its name.
    """

    def __init__(self, folder: Path, site: str):
        self.site, self._chain = site, Ledger(folder / SITE_LOG)

    def trained(self, task: Task, received: Tensor | Ciphertexts, update: Tensor | Ciphertexts) -> None:
        """Write down a round's training: digests of the model (d,) it began with and of the update (d,) that leaves.

        Under encryption, of the ciphertexts: those of the model as they came, those of the update as they leave.
        """
        self._append(TRAIN, task.round, received=digest(received), update=digest(update), ledger=task.ledger)

    def evaluated(self, task: Evaluation | ImportanceTask, models: Tensor | Ciphertexts) -> None:
        """Write down that ``models``, (d,) or (m, d), of ``task`` were evaluated, or their neurons."""
        self._append(EVALUATE, task.round, received=digest(models), split=task.split, ledger=task.ledger)

    def gave_model(self, round: int, peer: str, model: str) -> None:
        """Write down that the model with this `digest_of_peer` leaves for ``peer``, to learn from in ``round``."""
        self._append(GAVE, round, peer=peer, model=model)

    def got_model(self, task: Task, peer: str, model: str | None) -> None:
        """Write down the `digest_of_peer` of what came of ``peer`` for a round's training; None: no answer did."""
        self._append(GOT, task.round, peer=peer, model=model, ledger=task.ledger)

    def _append(self, work: str, round: int, **more: str | None) -> None:
        self._chain.path.parent.mkdir(parents=True, exist_ok=True)
        self._chain.append({"site": self.site, "round": round, "work": work, **more})


def digest_of_peer(model: PeerModel) -> str:
    """SHA-256 over parameters and statistics by name, with their types and shapes, in hexadecimal."""
    whole = hashlib.sha256()
    for name, tensor in [("", model.parameters), *sorted(model.buffers.items())]:
        whole.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        whole.update(tensor.numpy().tobytes())
    return whole.hexdigest()
