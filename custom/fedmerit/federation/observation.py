"""What a run's observers ask for after every round, and where the updates are kept, if they are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmerit.configuration.observation import parse
from fedmerit.configuration.run import RunConfiguration
from fedmerit.configuration.spec_syntax import split_spec
from fedmerit.core import Reports
from fedmerit.errors import BadInput
from fedmerit.files import write_atomically
from fedmerit.flat import Buffers
from fedmerit.observers import Observation, Observer, RoundView, State

UPDATES = "updates"  # folder of the kept ones, in the run folder


class RunObservers:
    """Those of one run, and what they remember.

    Args:
        specs: of the run's `values`.
        model: (d,) that it begins with.
        num_sites: n.
    """

    def __init__(self, specs: Sequence[str], model: Tensor, num_sites: int):
        self._observers: dict[str, Observer] = {split_spec(spec)[0]: parse(spec) for spec in specs}
        self._states: dict[str, State] = {
            name: observer.start(model, num_sites) for name, observer in self._observers.items()
        }

    def observe(self, view: RoundView) -> Iterator[tuple[str, Observation]]:
        """After a round: what each of them wants to have evaluated, by name."""
        for name, observer in self._observers.items():
            self._states[name], observation = observer.observe(self._states[name], view)
            if observation is not None:
                yield name, observation

    def content(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"observers": {name: dict(state) for name, state in self._states.items()}}

    def restore(self, content: Mapping[str, Any]) -> None:
        """From the checkpoint; those of earlier versions know of none."""
        self._states |= content.get("observers", {})


@dataclass(frozen=True)
class KeptRound:
    """A round as the server held it, and the sites' BatchNorm statistics."""

    view: RoundView
    buffers: tuple[Buffers, ...]  # `Admission.statistics`
    statistics: Buffers  # sent out
    first: Tensor  # (n,) the row of the first of those that each site earns as one with; its own: alone
    heard: Tensor  # (n,) bool: whose update has a part, who also evaluates


def expand_groups(coalitions: Tensor, first: Tensor, heard: Tensor) -> Tensor:
    """(k, n) bool the sites of ``coalitions`` (k, n) of the method's rows: all who earn as one in each, and were heard.

    ``first`` (n,) and ``heard`` (n,) are as in `KeptRound`.
    """
    return coalitions[:, first] & heard


def keep_round(run: Path, kept: KeptRound) -> None:
    """Write a round's updates, and the models before and after it, into the run folder."""
    view, reports = kept.view, kept.view.reports
    content = {
        **{name: getattr(view, name) for name in ("round", "rounds", "began", "ended", "updates", "weights")},
        **{"num_samples": reports.num_samples, "present": reports.present},
        **{"buffers": [dict(one) for one in kept.buffers], "statistics": dict(kept.statistics)},
        **{"first": kept.first, "heard": kept.heard},
    }
    write_atomically(_file(run, view.round), lambda file: torch.save(content, file))


def read_kept_rounds(run: Path, config: RunConfiguration) -> Iterator[KeptRound]:
    """Every round that `keep_round` wrote of a run, in order.

    Raises:
        BadInput: a round is missing or unreadable.
    """
    for number in range(config.rounds):
        path = _file(run, number)
        try:
            content: dict[str, Any] = torch.load(path, weights_only=True)
        except FileNotFoundError:
            raise BadInput(f"{path}: file not found; let the run finish, or run again with --keep-updates") from None
        except Exception as error:  # of whatever kind torch's unpickler meets in a spoiled file
            raise BadInput(f"{path}: not readable ({type(error).__name__}); run again with --keep-updates") from error
        reports = Reports(content.pop("num_samples"), content.pop("present"))
        buffers, statistics = tuple(content.pop("buffers")), content.pop("statistics")
        first = content.pop("first", torch.arange(len(reports.present)))  # earlier versions knew of players alone
        heard = content.pop("heard", reports.present)
        yield KeptRound(RoundView(**content, reports=reports), buffers, statistics, first, heard)


def _file(run: Path, round: int) -> Path:
    return run / UPDATES / f"round_{round:05d}.pt"
