"""The models that the sites' validation patients liked best, of all that a run sent out."""

from collections.abc import Mapping, Sequence
from math import fsum
from pathlib import Path
from typing import Any

import torch

from fedmerit.federation.recorder import Replies
from fedmerit.federation.server_models import ModelsInTheClear
from fedmerit.files import write_atomically
from fedmerit.training.overlaps import mean_dice
from fedmerit.wire.messages import Evaluated

# In the run folder, until the run ends: the best round's and, until its checkpoint, those of the best before.
FILES = "best*.pt"


class BestRound:
    """Kept on disk: models are large, and rounds many.

    Args:
        run: the run folder.
    """

    def __init__(self, run: Path):
        self._run = run
        self.round = -1  # whose models these are: those that it sent out; -1: none yet
        self.dice: dict[int, float] = {}  # mean validation Dice that sites said of them, by row

    def consider(self, round: int, replies: Replies, models: ModelsInTheClear) -> None:
        """The models that ``round`` sent out, by what sites replied; nothing where one of them is missing.

        Who goes on alone, as its reward is withheld, has no voice: what it received, nobody else has.
        """
        heard = {row: reply for row, reply in enumerate(replies) if row not in models.alone}
        dice = {row: mean_dice(reply.overlaps) for row, reply in heard.items() if reply}
        if len(dice) == len(heard) and self._better(dice):
            content = {
                "models": models.parameters,
                "buffers": models.buffers,
                "alone": list(models.alone),
                "round": round,
            }
            write_atomically(self._file(round), lambda file: torch.save(content, file))
            for older in {*self._run.glob(FILES)} - {self._file(self.round), self._file(round)}:
                older.unlink()
            self.round, self.dice = round, dice

    def models(self, final: ModelsInTheClear) -> ModelsInTheClear | None:
        """The best round's, of the run whose ``final`` ones are given; None: they are not here."""
        for path in self._run.glob(FILES):
            content = torch.load(path, weights_only=True)
            if content["round"] == self.round:
                return final.with_models(content["models"], content["buffers"], content.get("alone", ()))
        return None

    def forget(self) -> None:
        """They are tested and saved, or not needed."""
        for path in self._run.glob(FILES):
            path.unlink()

    def content(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"best_round": self.round, "best_dice": self.dice}

    def restore(self, content: Mapping[str, Any]) -> None:
        """From the checkpoint; those of earlier versions know of none, or of one mean of all."""
        said = content.get("best_dice")
        self.round, self.dice = content.get("best_round", -1), dict(said) if isinstance(said, dict) else {}

    def _file(self, round: int) -> Path:
        return self._run / f"best-{round}.pt"

    def _better(self, dice: Mapping[int, float]) -> bool:
        """On the mean over the sites that were heard of both."""
        both = dice.keys() & self.dice.keys()
        return not both or fsum(dice[row] for row in both) > fsum(self.dice[row] for row in both)


def liked_better(ones: Sequence[Evaluated | None], others: Sequence[Evaluated | None]) -> bool:
    """Whether all of them said of both models how they do, and on the mean ``ones`` do at least as well."""
    if None in (*ones, *others):
        return False
    dice = [sum(mean_dice(one.overlaps[0]) for one in said if one) for said in (ones, others)]
    return dice[0] >= dice[1]
