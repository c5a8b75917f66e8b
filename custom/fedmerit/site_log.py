"""site_log.jsonl: what a site got, sent, and was told, in a hash chain of its own, so that it can prove it later.

A record per task, repeated ones included. ``ledger`` is the server's word that came with the task: the hash of its
ledger's last record, and so of everything in the ledger before this round.
"""

from pathlib import Path

from torch import Tensor

from fedmerit.ledger import Ledger, digest
from fedmerit.messages import EVALUATE, TRAIN, Evaluation, Task, Weighing, Work
from fedmerit.sealed import Sealed

SITE_LOG = "site_log.jsonl"


class SiteLog:
    """The log of one site, open for appending; what a crash cut short is dropped.

    Args:
        folder: the site's own.
        site: its name.
    """

    def __init__(self, folder: Path, site: str):
        self.site, self._chain = site, Ledger(folder / SITE_LOG)
        if self._chain.path.exists():
            self._chain.keep(len(self._chain.records))

    def trained(self, task: Task, received: Tensor | Sealed, update: Tensor | Sealed) -> None:
        """Write down a round's training: digests of the model (d,) it began with and of the update (d,) that leaves.

        Under encryption, of the ciphertexts: those of the model as they came, those of the update as they leave.
        """
        self._append(TRAIN, task, received, {"update": digest(update)})

    def evaluated(self, task: Evaluation | Weighing, models: Tensor | Sealed) -> None:
        """Write down that ``models``, (d,) or (m, d), of ``task`` were evaluated, or their neurons weighed."""
        self._append(EVALUATE, task, models, {"split": task.split})

    def _append(self, work: str, task: Work, received: Tensor | Sealed, more: dict[str, object]) -> None:
        self._chain.path.parent.mkdir(parents=True, exist_ok=True)
        self._chain.append(
            {
                "site": self.site,
                "round": task.round,
                "work": work,
                "received": digest(received),
                **more,
                "ledger": task.ledger,
            }
        )
