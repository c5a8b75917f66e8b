"""The end of a run: the final models, and those of the best round, are tested and saved; then the records close.

The best round is the one whose models did best on the sites' validation patients.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import Any

import torch

from fedmerit.errors import RunFailed
from fedmerit.evidence.closing_record import BEST, MODELS, Closing
from fedmerit.files import write_atomically
from fedmerit.schema.configuration.run import RunConfiguration, tests_all_models
from fedmerit.schema.messages import Evaluated, Evaluation, Purpose, payload_bytes
from fedmerit.schema.scores import mean_dice
from fedmerit.server.exchange import Exchange
from fedmerit.server.models import Models, ModelsInTheClear
from fedmerit.server.recorder import Recorder
from fedmerit.server.round_updates import Replies
from fedmerit.tensor_files import load_tensors

# in the run folder, until the run ends: of the best round and, until the next checkpoint, of the one before
FILES = "best*.pt"


class BestRound:
    """The models of the best round, on disk.

    Args:
        can_evaluate: whether the sites can evaluate its models in the end; else none are kept.
    """

    def __init__(self, run: Path, can_evaluate: bool = True):
        self._run, self._can_evaluate = run, can_evaluate
        self.round = -1  # that sent out these models; -1: none yet
        self.dice: dict[int, float] = {}  # their mean validation Dice, by the site's row

    def consider(self, round: int, replies: Replies, models: Models) -> None:
        """Keep the models that ``round`` sent out, if they are better by the sites' replies.

        No reply may lack, nor its Dice.

        Separate sites, whose reward is withheld, do not count: no other site has their model.
        """
        if not (models.are_visible and self._can_evaluate) or models.tests_own_only:
            return
        counted = {row: reply for row, reply in enumerate(replies) if row not in models.separate}
        found = {row: mean_dice(reply.overlaps) for row, reply in counted.items() if reply}
        dice = {row: value for row, value in found.items() if value is not None}
        if len(dice) == len(counted) and self._is_better(dice):
            separate = list(models.separate)
            content = {"models": models.parameters, "buffers": models.buffers, "separate": separate, "round": round}
            write_atomically(self._file(round), lambda file: torch.save(content, file))
            for older in {*self._run.glob(FILES)} - {self._file(self.round), self._file(round)}:
                older.unlink()
            self.round, self.dice = round, dice

    def models(self, final: Models) -> ModelsInTheClear | None:
        """Return the best round's models, of the run whose ``final`` ones are given; None: they are not here."""
        if not isinstance(final, ModelsInTheClear):
            return None
        for path in self._run.glob(FILES):
            content = load_tensors(path)
            if content["round"] == self.round:
                return final.with_models(content["models"], content["buffers"], content["separate"])
        return None

    def forget(self) -> None:
        """Delete them: they are tested and saved, or not needed."""
        for path in self._run.glob(FILES):
            path.unlink()

    def content(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {"best_round": self.round, "best_dice": self.dice}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Take over the state in a checkpoint."""
        self.round, self.dice = content["best_round"], content["best_dice"]

    def _file(self, round: int) -> Path:
        return self._run / f"best-{round}.pt"

    def _is_better(self, dice: Mapping[int, float]) -> bool:
        """Return whether the mean over the sites that replied in both rounds is higher."""
        both = dice.keys() & self.dice.keys()
        return not both or fsum(dice[row] for row in both) > fsum(self.dice[row] for row in both)


EvaluationReplies = list[Evaluated | None]  # in site order
Ask = Callable[[Mapping[str, Evaluation]], Generator[Exchange, None, EvaluationReplies]]  # tasks by site


@dataclass(frozen=True)
class RunClosure:
    """The steps of a run after its last round."""

    config: RunConfiguration
    sites: Sequence[str]
    run: Path
    models: Models
    best: BestRound
    recorder: Recorder

    def exchanges(self, ask: Ask, ledger_head: str) -> Generator[Exchange, None, Closing]:
        """Save the final models, record their Dice and the best round's, which are saved too; then close the records.

        Rounds are compared by the network's raw masks; the best of them and the last by postprocessed ones.

        Args:
            ask: has sites evaluate models.
            ledger_head: of all rounds before, which the sites write into their logs.
        """
        models = self.models
        models.save(self.run / MODELS)  # first: they are there even if no site can test them
        if not self.config.can_evaluate:
            return self.recorder.close()
        try:
            yield from self._test(ask, ledger_head)
        except RunFailed as error:
            raise RunFailed(
                f"{error}; all {self.config.rounds} rounds are complete, and the models are saved"
            ) from error
        return self.recorder.close()

    def _test(self, ask: Ask, ledger_head: str) -> Iterator[Exchange]:
        """Have the sites test the final models and the best round's; arguments as of `exchanges`."""
        models, rounds = self.models, self.config.rounds
        validated = yield from ask(self._own_models(models, "validation", ledger_head))
        tests, own_only = self._tests(models, ledger_head), self._tests_own_only(models)
        tested = yield from ask(tests)
        best = self.best.models(models)
        if best and self._prefers_best(
            best, (yield from ask(self._own_models(best, "validation", ledger_head))), validated
        ):
            self.recorder.best_test(self.best.round, (yield from ask(self._tests(best, ledger_head))))
            best.save(self.run / BEST)
        self.recorder.final_validation(rounds, validated)
        received = list(map(payload_bytes, tests.values()))
        self.recorder.final_test(rounds - 1, tested, received, own_only, models.separate)
        if self.config.training.final_model == "selected":
            yield from self._select_final_models(ask, ledger_head)

    def _prefers_best(self, best: Models, ones: Sequence[Evaluated | None], last: Sequence[Evaluated | None]) -> bool:
        """Return whether the best round's models have at least the last ones' mean Dice, over sites that are never
        separate.

        No, if one of these sites gave no evaluation.
        """
        rows = [row for row in range(len(self.sites)) if row not in {*self.models.separate, *best.separate}]
        answers = [[evaluated[row] for row in rows] for evaluated in (ones, last)]
        if any(None in one for one in answers):
            return False
        dice = [[mean_dice(one.overlaps[0]) for one in models if one] for models in answers]
        sums = [sum(value for value in of_models if value is not None) for of_models in dice]
        return not any(None in of_models for of_models in dice) and sums[0] >= sums[1]

    def record(self) -> dict[str, Any]:
        """Return the part of the last round's ledger record.

        Digests of the models that are saved, or may be if they are the best.
        """
        best = self.best.models(self.models)
        saved = {MODELS: self.models.saved(), BEST: best.saved() if best else {}}
        files = {f"{folder}/{name}": digest for folder, one in saved.items() for name, digest in one.items()}
        return {"saved": files}

    def _select_final_models(self, ask: Ask, ledger_head: str) -> Iterator[Exchange]:
        """Have every site select its final model by its validation patients, then test it."""
        for split in ("validation", "testing"):
            selected = yield from ask(self._own_models(self.models, split, ledger_head, Purpose.FINISH))
            self.recorder.selected_models(self.config.rounds - 1, split, selected)

    def _tests(self, models: Models, ledger_head: str) -> dict[str, Evaluation]:
        """Return all final models for every site to test.

        A separate site gets only its own, since its reward is withheld.
        """
        if self._tests_own_only(models):
            return self._own_models(models, "testing", ledger_head)
        task = models.final_test(self.config.rounds, ledger_head)
        own = self._own_models(models, "testing", ledger_head) if models.separate else {}
        return {site: own[site] if row in models.separate else task for row, site in enumerate(self.sites)}

    def _tests_own_only(self, models: Models) -> bool:
        """Return whether each site tests only its own final model.

        Others hold what a single site trained, or stay there.
        """
        may_share = self.config.share_models or (tests_all_models(self.config) and not models.separate)
        return models.tests_own_only or not may_share

    def _own_models(
        self, models: Models, split: str, ledger_head: str, purpose: Purpose = Purpose.FINAL
    ) -> dict[str, Evaluation]:
        """Return the evaluation of each site's own final model."""
        rounds = self.config.rounds
        return {site: models.own_model(row, rounds, split, ledger_head, purpose) for row, site in enumerate(self.sites)}
