"""What the observers of a run evaluate after every round, and the updates that it keeps for later evaluation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import Outcome, Reports
from fedmerit.contract.observers import Observation, Observer, RoundView, State
from fedmerit.errors import BadInput
from fedmerit.files import write_atomically
from fedmerit.guard.admission import Admission
from fedmerit.schema.configuration.requirements import UPDATES, parse_observer
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.declarations import split_spec
from fedmerit.server.evaluator import Evaluator
from fedmerit.server.exchange import Exchange
from fedmerit.server.models import Models, ModelsInTheClear
from fedmerit.server.recorder import Recorder
from fedmerit.tensor_files import load_tensors


class RunObservers:
    """The observers of one run, and their states.

    ``specs`` are the run's; ``model`` (d,) is the one that it begins with; ``num_sites`` is n.
    """

    def __init__(self, specs: Sequence[str], model: Tensor, num_sites: int):
        self._observers: dict[str, Observer] = {split_spec(spec)[0]: parse_observer(spec) for spec in specs}
        self._states: dict[str, State] = {
            name: observer.start(model, num_sites) for name, observer in self._observers.items()
        }

    def observe(self, view: RoundView) -> Iterator[tuple[str, Observation]]:
        """Yield the models that each observer has evaluated after a round, by its name."""
        for name, observer in self._observers.items():
            self._states[name], observation = observer.observe(self._states[name], view)
            if observation is not None:
                yield name, observation

    def content(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        return {"observers": {name: dict(state) for name, state in self._states.items()}}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Take over the state in a checkpoint."""
        self._states |= content["observers"]


@dataclass(frozen=True)
class RoundObservation:
    """A round's observation: it keeps updates and has the sites evaluate the observers' models, as the run asks."""

    config: RunConfiguration
    run: Path
    observers: RunObservers
    models: Models
    evaluator: Evaluator
    recorder: Recorder
    tensor_sizes: tuple[int, ...]  # of the vector

    def exchanges(self, round: int, outcome: Outcome, admission: Admission, reports: Reports) -> Iterator[Exchange]:
        """Observe the method's ``outcome`` before the models take it over; this changes nothing of the run."""
        models, config = self.models, self.config
        if not (config.values or config.keep_updates):
            return
        assert isinstance(models, ModelsInTheClear)
        began = models.parameters
        if outcome.models.ndim == 1 and began.ndim == 2:  # a verdict stood: take the common model of the others
            began = began[next(row for row in range(len(began)) if row not in models.separate)].clone()
        seen = began, outcome.models, admission.updates, outcome.weights, reports
        view = RoundView(round, config.rounds, *seen, self.tensor_sizes)
        first, counted = admission.reward_groups.first, admission.counted
        if config.keep_updates:
            kept = KeptRound(view, admission.group_statistics, models.statistics, first, counted)
            keep_round(self.run, kept)
        for name, observation in self.observers.observe(view):
            answers = yield from self.evaluator.observation(observation.candidates, admission, outcome.weights)
            self.recorder.observed(round, name, expand_groups(observation.coalitions, first, counted), answers)


@dataclass(frozen=True)
class KeptRound:
    """A round as the server held it, and the sites' BatchNorm statistics."""

    view: RoundView
    buffers: Sequence[Buffers]  # `Admission.group_statistics`
    statistics: Buffers  # sent out
    first: Tensor  # (n,) row of the first site of each site's reward group
    counted: Tensor  # (n,) bool: the site's update has a part, and the site evaluates


def expand_groups(coalitions: Tensor, first: Tensor, counted: Tensor) -> Tensor:
    """Return (k, n) bool the sites of ``coalitions`` (k, n) of the method's rows.

    The counted members of each reward group.

    ``first`` (n,) and ``counted`` (n,) are as in `KeptRound`.
    """
    return coalitions[:, first] & counted


def keep_round(run: Path, kept: KeptRound) -> None:
    """Write a round's updates, and the models before and after it, into the run folder."""
    view, reports = vars(kept.view), kept.view.reports
    content = {
        **{name: value for name, value in view.items() if name != "reports"},
        **{"num_samples": reports.num_samples, "present": reports.present},
        **{"buffers": [dict(one) for one in kept.buffers], "statistics": dict(kept.statistics)},
        **{"first": kept.first, "counted": kept.counted},
    }
    write_atomically(_file(run, kept.view.round), lambda file: torch.save(content, file))


def read_kept_rounds(run: Path, config: RunConfiguration) -> Iterator[KeptRound]:
    """Yield every round that `keep_round` wrote of a run, in order; `BadInput` if a round is missing or unreadable."""
    for number in range(config.rounds):
        path = _file(run, number)
        try:
            content: dict[str, Any] = load_tensors(path)
            reports = Reports(content.pop("num_samples"), content.pop("present"))
            kept = {name: content.pop(name) for name in ("buffers", "statistics", "first", "counted")}
            read = KeptRound(RoundView(**content, reports=reports), **kept)
        except BadInput as error:
            raise BadInput(f"{error}; let the run finish, or run again with --keep-updates") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f"{path}: no round of a run ({type(error).__name__}); run again with --keep-updates"
            ) from None
        yield read


def _file(run: Path, round: int) -> Path:
    return run / UPDATES / f"round_{round:05d}.pt"
