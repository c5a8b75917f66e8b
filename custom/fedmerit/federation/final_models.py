"""The models that the sites' validation patients liked best, of all that a run sent out.

The end of a run: final models, and the best round's, are tested and saved; sites choose what they take home.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import Any

import torch

from fedmerit.configuration.run import RunConfiguration
from fedmerit.federation.exchange import Exchange
from fedmerit.federation.recorder import Recorder, Replies
from fedmerit.federation.server_models import Models, ModelsInTheClear
from fedmerit.files import write_atomically
from fedmerit.records.closing_record import MODELS, Closing
from fedmerit.trainers.monai_trainer.overlaps import mean_dice
from fedmerit.wire.messages import Evaluated, Evaluation, Purpose, payload_bytes

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


def is_at_least_as_good(ones: Sequence[Evaluated | None], others: Sequence[Evaluated | None]) -> bool:
    """Whether all of them said of both models how they do, and on the mean ``ones`` do at least as well."""
    if None in (*ones, *others):
        return False
    dice = [sum(mean_dice(one.overlaps[0]) for one in said if one) for said in (ones, others)]
    return dice[0] >= dice[1]


BEST = f"{MODELS}/best"
EvaluationReplies = list[Evaluated | None]  # in site order
Ask = Callable[[Mapping[str, Evaluation]], Generator[Exchange, None, EvaluationReplies]]  # tasks by site


@dataclass(frozen=True)
class RunClosure:
    """What is left of a run after its last round."""

    config: RunConfiguration
    sites: Sequence[str]
    run: Path
    models: Models
    best: BestRound
    recorder: Recorder

    def exchanges(self, ask: Ask, told: str) -> Generator[Exchange, None, Closing]:
        """Record the Dice of the final models, and of the best round's, and save them; then close the records.

        Rounds are compared by masks as the network makes them; the best of them and the last by masks as they are used.

        Args:
            ask: has sites evaluate models.
            told: the server's word on all rounds before, for the sites' logs.
        """
        models, rounds = self.models, self.config.rounds
        validated = yield from ask(self._own_models(models, "validation", told))
        tests, alone = self._tests(models, told), _alone(models)
        tested = yield from ask(tests)
        models.save(self.run / MODELS)
        best = self._best()
        if best and self._prefers_best(best, (yield from ask(self._own_models(best, "validation", told))), validated):
            self.recorder.best_test(self.best.round, (yield from ask(self._tests(best, told))))
            best.save(self.run / BEST)
        self.recorder.final_validation(rounds, validated)
        self.recorder.final_test(
            rounds - 1, tested, list(map(payload_bytes, tests.values())), models.tests_own_only, alone
        )
        if self.config.training.final_model == "selected":
            yield from self._select_final_models(ask, told)
        return self.recorder.close()

    def _prefers_best(
        self, best: ModelsInTheClear, said: Sequence[Evaluated | None], validated: Sequence[Evaluated | None]
    ) -> bool:
        """Whether the best round's models are at least as good as the last, to all who have what the others have."""
        rows = [row for row in range(len(self.sites)) if row not in {*_alone(self.models), *_alone(best)}]
        return is_at_least_as_good([said[row] for row in rows], [validated[row] for row in rows])

    def record(self) -> dict[str, Any]:
        """For the last round's ledger record: digests of what is saved, of the best round's what may be."""
        best = self._best()
        saved = {MODELS: self.models.saved(), BEST: best.saved() if best else {}}
        files = {f"{folder}/{name}": digest for folder, one in saved.items() for name, digest in one.items()}
        return {"saved": files}

    def _best(self) -> ModelsInTheClear | None:
        return self.best.models(self.models) if isinstance(self.models, ModelsInTheClear) else None

    def _select_final_models(self, ask: Ask, told: str) -> Iterator[Exchange]:
        """Every site makes of its final model what it takes home: chosen by validation patients, then tested."""
        for split in ("validation", "testing"):
            finished = yield from ask(self._own_models(self.models, split, told, Purpose.FINISH))
            self.recorder.finished(self.config.rounds - 1, split, finished)

    def _tests(self, models: Models, told: str) -> dict[str, Evaluation]:
        """All final models for every site to test; who goes on alone, as its reward is withheld, gets its own alone."""
        task = models.final_test(self.config.rounds, told)
        own = self._own_models(models, "testing", told) if _alone(models) else {}
        return {site: own[site] if row in _alone(models) else task for row, site in enumerate(self.sites)}

    def _own_models(
        self, models: Models, split: str, told: str, purpose: Purpose = Purpose.FINAL
    ) -> dict[str, Evaluation]:
        """Each site's of them, to be evaluated there."""
        rounds = self.config.rounds
        return {site: models.own_model(row, rounds, split, told, purpose) for row, site in enumerate(self.sites)}


def _alone(models: Models) -> Sequence[int]:
    """The rows of sites that go on from their own model, whatever the others have."""
    return models.alone if isinstance(models, ModelsInTheClear) else ()
