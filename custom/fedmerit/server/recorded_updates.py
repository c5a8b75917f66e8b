"""The server's half of a run on updates that something else trained: guard, method and records, without sites.

NVFlare's own workflows hand it updates round by round (`fedmerit.engines.nvflare.method_aggregator`); kept updates are
replayed through it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmerit.contract import flat
from fedmerit.evidence.digests import state_digest
from fedmerit.files import write_json
from fedmerit.schema.configuration.run import RunConfiguration, configure_script, describe
from fedmerit.schema.configuration.script import NamedTensor, Script
from fedmerit.schema.configuration.settings import guarded
from fedmerit.schema.messages import Answer, Failure, Reply
from fedmerit.server.exchange import Exchange
from fedmerit.server.server import Federation
from fedmerit.trainers.factory import FIRST_MODEL


@dataclass(frozen=True)
class SiteUpdate:
    """A site's update of one round."""

    tensors: Mapping[str, Tensor]  # trained minus received, by name
    samples: int = 1  # training images, or steps


def configure_updates(method: str, rounds: int, script: Script, settings: Mapping[str, Any]) -> RunConfiguration:
    """Return the configuration of such a run; the guard, which is on by default, shows its findings.

    Raises:
        BadInput: the method is unknown, or needs more of the sites.
    """
    shows = {} if settings.get("guard") == "off" else {"on_verdict": "show"}
    return configure_script(method, rounds, script, settings=guarded({**shows, **settings}))


class UpdateFederation:
    """A federation whose sites are represented by their updates.

    Args:
        method: the name of the method.
        rounds: of the run.
        first: tensors of a first update, by name; their values do not matter, as the model counts from zeros.
        sites: their names.
        run: the run folder to make.
        settings: of the method and the guard.
        uses: helpers, of `fedmerit.schema.configuration.script.USES`, that the sites are taken to have used.
    """

    def __init__(
        self,
        method: str,
        rounds: int,
        first: Mapping[str, Tensor],
        sites: list[str],
        run: Path,
        settings: Mapping[str, Any],
        uses: tuple[str, ...] = (),
    ):
        trained = tuple(one for name, value in first.items() if not (one := name_tensor(name, value)).is_statistic)
        zeros = {one.name: torch.zeros(one.shape) for one in trained}
        last = [one.name for one in trained if one.name.endswith(".weight") and len(one.shape) > 1][-1:]
        output = last[0].removesuffix(".weight") if last else ""  # of a state_dict in the order of its modules
        script = Script(tensors=trained, start=state_digest(zeros), output=output, metric="", uses=uses)
        config = configure_updates(method, rounds, script, settings)
        run.mkdir(parents=True, exist_ok=True)
        torch.save(zeros, run / FIRST_MODEL)
        write_json(run / "run.json", describe(run.name, config, sites, "sim") | {"privacy": []})
        self.federation = Federation(config, sites, run)
        self._exchanges = self.federation.exchanges()
        self._exchange: Exchange | None = next(self._exchanges)

    @property
    def names(self) -> list[str]:
        """The names of the trained tensors."""
        return list(flat.trainable(self.federation.network))

    def take(self, answers: Mapping[str, SiteUpdate | Failure]) -> dict[str, Any]:
        """Carry out a round with what sites sent, by name, and return its record in the ledger.

        Raises:
            RunFailed: no site sent what can be used.
        """
        assert self._exchange
        for site in self._exchange.tasks:
            self._exchange.take(site, self._reply(site, answers.get(site, Failure("no reply"))))
        self._exchange = next(self._exchanges, None)
        return self.federation.recorder.ledger.last or {}

    def close(self) -> None:
        """Close the records after the last round; no site has to note that."""
        for _ in self._exchanges:
            pass

    def _reply(self, site: str, answer: SiteUpdate | Failure) -> Answer:
        if isinstance(answer, Failure):
            return answer
        federation, like = self.federation, flat.trainable(self.federation.network)
        params = answer.tensors
        if wrong := [name for name in like if name not in params or params[name].shape != like[name].shape]:
            return Failure(f"lacks {wrong[0]}, or has it of another shape")
        update = flat.flatten({name: params[name].float() for name in like}, list(like))
        count = federation.num_samples.get(site, answer.samples)  # as of the first round
        return Reply(federation.round, update, {}, count, (), train_loss=float("nan"))


def name_tensor(name: str, value: Tensor) -> NamedTensor:
    """Return the description of a tensor."""
    return NamedTensor(name, tuple(value.shape), str(value.dtype).removeprefix("torch."))
