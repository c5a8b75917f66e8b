"""What the observers of a run evaluate after every round, and the updates that it keeps for later evaluation."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import Outcome, Reports
from fedmerit.contract.observers import Observation, Observer, RoundView, State
from fedmerit.errors import BadInput
from fedmerit.files import write_atomically
from fedmerit.schema.configuration.requirements import UPDATES, parse_observer
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.declarations import split_spec
from fedmerit.schema.messages import Evaluation
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


def observed_start(received: Tensor, outcome: Outcome, separate: Collection[int]) -> Tensor:
    """Return the model, (d,), or models, (n, d), from which observers see the method's ``outcome`` of a round.

    If the outcome is one model for all, and a verdict stood, it is the common model of the rows that are not
    ``separate``.
    """
    if outcome.models.ndim == 1 and received.ndim == 2:
        return received[next(row for row in range(len(received)) if row not in separate)].clone()
    return received


@dataclass(frozen=True)
class RatedModels:
    """A set of models that sites evaluated in a round, as the tasks had them."""

    task: Mapping[str, Any]  # the fields of `Evaluation` that all sites had alike
    statistics: Mapping[str, tuple[tuple[Buffers, ...], Tensor]]  # by site: sets of statistics and their mixtures

    @classmethod
    def of(cls, tasks: Mapping[str, Evaluation]) -> "RatedModels":
        """Return what ``tasks`` of one set of models had, by site."""
        of_all = {name: getattr(task, name) for task in [*tasks.values()][:1] for name in SAME_FOR_ALL}
        return cls(of_all, {site: (task.buffers, task.shares) for site, task in tasks.items()})

    def task_of(self, site: str) -> Evaluation | None:
        """Return the task that a site had, without the ledger's head; None: it had none."""
        if site not in self.statistics:
            return None
        buffers, shares = self.statistics[site]
        return Evaluation(**self.task, buffers=tuple(buffers), shares=shares)


SAME_FOR_ALL = ("round", "split", "models", "mixtures", "bins", "soft")  # fields of an `Evaluation`


@dataclass(frozen=True)
class KeptRound:
    """A round as the server held it, and the sites' BatchNorm statistics."""

    view: RoundView
    buffers: Sequence[Buffers]  # `Admission.group_statistics`
    statistics: Buffers  # sent out
    first: Tensor  # (n,) row of the first site of each site's reward group
    counted: Tensor  # (n,) bool: the site's update has a part, and the site evaluates
    sent: Tensor  # (n, d) the updates as they came; zero rows for absent sites
    received: Tensor  # (d,) or (n, d) the models that the sites trained from
    after: Tensor  # (d,) or (n, d) the models that the round ended with, verdicts considered
    rated: Mapping[str, RatedModels] = field(default_factory=dict)  # by what was rated, and by observer


KEPT = [name for name in KeptRound.__dataclass_fields__ if name not in ("view", "rated")]  # written unchanged


def expand_groups(coalitions: Tensor, first: Tensor, counted: Tensor) -> Tensor:
    """Return (k, n) bool the sites of ``coalitions`` (k, n) of the method's rows.

    The counted members of each reward group.

    ``first`` (n,) and ``counted`` (n,) are as in `KeptRound`.
    """
    return coalitions[:, first] & counted


def keep_round(run: Path, kept: KeptRound, tasks: Mapping[str, Mapping[str, Evaluation]]) -> None:
    """Write a round's updates, its models, and those that were rated, into the run folder.

    Args:
        run: the run folder.
        kept: the round.
        tasks: by what was rated in the round, beside what observers observed, the tasks of the raters.
    """
    view, reports = vars(kept.view), kept.view.reports
    rated = {**kept.rated, **{what: RatedModels.of(of_raters) for what, of_raters in tasks.items()}}
    content = {
        **{name: value for name, value in view.items() if name != "reports"},
        **{"num_samples": reports.num_samples, "present": reports.present},
        **{name: getattr(kept, name) for name in KEPT},
        **{"buffers": [dict(one) for one in kept.buffers], "statistics": dict(kept.statistics)},
        "rated": {what: dict(vars(one)) for what, one in rated.items()},
    }
    write_atomically(_file(run, kept.view.round), lambda file: torch.save(content, file))


def read_kept_rounds(run: Path, config: RunConfiguration) -> Iterator[KeptRound]:
    """Yield every round that `keep_round` wrote of a run, in order; `BadInput` if a round is missing or unreadable."""
    for number in range(config.rounds):
        path = _file(run, number)
        try:
            content: dict[str, Any] = load_tensors(path)
            reports = Reports(content.pop("num_samples"), content.pop("present"))
            kept = {name: content.pop(name) for name in KEPT}
            rated = {what: RatedModels(**one) for what, one in content.pop("rated").items()}
            read = KeptRound(RoundView(**content, reports=reports), **kept, rated=rated)
        except BadInput as error:
            raise BadInput(f"{error}; let the run finish, or run again with --keep-updates") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f"{path}: no round of a run ({type(error).__name__}); run again with --keep-updates"
            ) from None
        yield read


def _file(run: Path, round: int) -> Path:
    return run / UPDATES / f"round_{round:05d}.pt"
