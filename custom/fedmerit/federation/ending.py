"""The end of a run: final models, and the best round's, are tested and saved; sites choose what they take home."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmerit.configuration.run import RunConfiguration
from fedmerit.federation.best_round import BestRound, liked_better
from fedmerit.federation.exchange import Exchange
from fedmerit.federation.recorder import Recorder
from fedmerit.federation.server_models import Models, ModelsInTheClear
from fedmerit.records.closing import MODELS, Closing
from fedmerit.wire.messages import Evaluated, Evaluation, Purpose, payload

BEST = f"{MODELS}/best"
Answers = list[Evaluated | None]  # in site order
Ask = Callable[[Mapping[str, Evaluation]], Generator[Exchange, None, Answers]]  # tasks by site


@dataclass(frozen=True)
class Ending:
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
        if best and self._likes(best, (yield from ask(self._own_models(best, "validation", told))), validated):
            self.recorder.best_test(self.best.round, (yield from ask(self._tests(best, told))))
            best.save(self.run / BEST)
        self.recorder.final_validation(rounds, validated)
        self.recorder.final_test(rounds - 1, tested, list(map(payload, tests.values())), models.own_alone, alone)
        if self.config.training.finish == "own":
            yield from self._take_home(ask, told)
        return self.recorder.close()

    def _likes(
        self, best: ModelsInTheClear, said: Sequence[Evaluated | None], validated: Sequence[Evaluated | None]
    ) -> bool:
        """Whether the best round's models are at least as good as the last, to all who have what the others have."""
        rows = [row for row in range(len(self.sites)) if row not in {*_alone(self.models), *_alone(best)}]
        return liked_better([said[row] for row in rows], [validated[row] for row in rows])

    def record(self) -> dict[str, Any]:
        """For the last round's ledger record: digests of what is saved, of the best round's what may be."""
        best = self._best()
        saved = {MODELS: self.models.saved(), BEST: best.saved() if best else {}}
        files = {f"{folder}/{name}": digest for folder, one in saved.items() for name, digest in one.items()}
        return {"saved": files}

    def _best(self) -> ModelsInTheClear | None:
        return self.best.models(self.models) if isinstance(self.models, ModelsInTheClear) else None

    def _take_home(self, ask: Ask, told: str) -> Iterator[Exchange]:
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
