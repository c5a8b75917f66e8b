"""The models of a run, as the server holds them: in the clear, encrypted, or not at all, where they stay at the sites.

Each kind is one part that `fedmerit.federation.server` is put together with.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedmerit import flat
from fedmerit.capabilities import Sharing, capabilities
from fedmerit.configuration.run import RunConfiguration
from fedmerit.core import Method, Outcome, Reports
from fedmerit.federation.model_evaluation import statistics_rule
from fedmerit.federation.peers import find_givers
from fedmerit.federation.recorder import Replies
from fedmerit.flat import Buffers
from fedmerit.records.ciphertexts import Adder, Ciphertexts
from fedmerit.records.ledger import digest, state_digest
from fedmerit.trainers.monai_trainer import neurons
from fedmerit.trainers.monai_trainer.networks import initial_network
from fedmerit.trainers.monai_trainer.saved_networks import save_network
from fedmerit.vectors import share
from fedmerit.wire.messages import Evaluation, PeerModel, Purpose, Reply, SparseUpdate


class Models:
    """Models that the server does not see; what all kinds share.

    Args:
        config: the run.
        network: of its kind, as every site begins.
        sites: their names, sorted.
    """

    parameters: Tensor  # (d,) one for all, or (n, d); d = 0: not seen here
    buffers: list[Buffers]  # of each site

    def __init__(self, config: RunConfiguration, network: nn.Module, sites: Sequence[str]):
        self.config, self.network, self.sites = config, network, sites
        self.parameters = torch.empty(0)
        self.buffers = [{}] * len(sites)

    def task_parts(self, row: int) -> dict[str, Any]:
        """The fields of a `Task` that bring the model to the site at ``row``: nothing of what is not here."""
        return {"parameters": torch.empty(0), "buffers": self.buffers[row]}

    def peer_parts(self, sharing: Sharing | None, row: int, round: int, missed: Sequence[bool]) -> dict[str, Any]:
        """The fields of a `Task` that bring the site at ``row`` to what its peers share with it."""
        return {}

    def check_message(self, reply: Reply) -> str | None:
        """Why what a site sends of its model cannot be used, beside `fedmerit.wire.inspection`; or None."""
        return "ciphertexts, expected the update in the clear" if reply.ciphertexts else None

    def began(self) -> list[str]:
        """Digests of what the sites begin a round with."""
        return [digest(self.parameters)] * len(self.sites)

    def advance(self, round: int, outcome: Outcome, replies: Replies, reports: Reports, held: Tensor | None) -> None:
        """Take over what a round gave; ``held`` (n, H) are the neurons that each site holds, None: all."""
        self.parameters = outcome.models

    def ended(self) -> str:
        """Digest of what a round gave."""
        return digest(self.parameters)

    def final_test(self, round: int, ledger: str) -> Evaluation:
        """Each site tests the model that it has, and the server has not."""
        return self.own_model(0, round, "testing", ledger)

    def own_model(self, row: int, round: int, split: str, ledger: str, purpose: Purpose = Purpose.FINAL) -> Evaluation:
        """The site at ``row`` evaluates the one final model that is its own."""
        one = torch.eye(1, dtype=torch.float64)
        return Evaluation(round, split, torch.empty(1, 0), one, ({},), one, ledger=ledger, purpose=purpose)

    @property
    def tests_own_only(self) -> bool:
        """Whether each site tests its own final model and no other."""
        return True

    def save(self, folder: Path) -> None:
        """Save the final models that are here."""

    def saved(self) -> dict[str, str]:
        """By file name, the digest of each model that `save` writes."""
        return {}

    def content(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"models": self.parameters, "buffers": self.buffers, "changed": None, "sealed": None}

    def restore(self, content: Mapping[str, Any]) -> None:
        """From the checkpoint."""
        self.parameters, self.buffers = content["models"], content["buffers"]


class ModelsAtSites(Models):
    """Sites keep their models and ask each other for them."""

    def peer_parts(self, sharing: Sharing | None, row: int, round: int, missed: Sequence[bool]) -> dict[str, Any]:
        """Whom the site may ask, and what is known here of the weights it gives them."""
        if sharing is None:
            return {}
        weights = zip(self.sites, sharing.weights[row].tolist(), strict=True)
        return {"others": {site: weight for site, weight in weights if site != self.sites[row]}}


class EncryptedModels(Models):
    """The sum of all rounds' updates, and the mean of BatchNorm statistics, which the server adds up unseen.

    Args:
        config: as of `Models`, like the next two.
        network: likewise.
        sites: likewise.
        context: TenSEAL's, without the secret key.
    """

    def __init__(self, config: RunConfiguration, network: nn.Module, sites: Sequence[str], context: bytes):
        super().__init__(config, network, sites)
        self.adder = Adder(context, len(flat.get_parameters(network)), flat.get_buffers(network))
        self.total: Ciphertexts | None = None  # None: nothing was added yet

    def task_parts(self, row: int) -> dict[str, Any]:
        """With the sum."""
        return super().task_parts(row) | {"ciphertexts": self.total}

    def check_message(self, reply: Reply) -> str | None:
        """What is wrong with the ciphertexts."""
        return self.adder.fault(reply.ciphertexts)

    def began(self) -> list[str]:
        """Of the ciphertexts."""
        return [digest(self.total or self.parameters)] * len(self.sites)

    def advance(self, round: int, outcome: Outcome, replies: Replies, reports: Reports, held: Tensor | None) -> None:
        """What `vectors.aggregate` and `flat.average_buffers` do with updates and statistics in the clear."""
        rows = [row for row, reply in enumerate(replies) if reply and reply.ciphertexts]
        sent = [reply.ciphertexts for reply in replies if reply and reply.ciphertexts]
        shares = reports.data_share[rows].tolist()
        self.total = self.adder.add(self.total, sent, outcome.weights[rows].tolist(), shares)
        self.parameters = outcome.models

    def ended(self) -> str:
        """Of the ciphertexts."""
        return digest(self.total or self.parameters)

    def own_model(self, row: int, round: int, split: str, ledger: str, purpose: Purpose = Purpose.FINAL) -> Evaluation:
        """The one that the sites decrypt."""
        return replace(super().own_model(row, round, split, ledger, purpose), ciphertexts=self.total)

    @property
    def tests_own_only(self) -> bool:
        """No: they all decrypt the same one."""
        return False

    def content(self) -> dict[str, Any]:
        """With the sum."""
        return super().content() | {"sealed": self.total and self.total.to_tensors()}

    def restore(self, content: Mapping[str, Any]) -> None:
        """With the sum."""
        super().restore(content)
        self.total = Ciphertexts.from_tensors(content["sealed"]) if content.get("sealed") else None


class ModelsInTheClear(Models):
    """One model for all, or one per site, and the BatchNorm statistics that belong to each site's.

    Args:
        config: as of `Models`, like the next two.
        network: likewise.
        sites: likewise.
        method: of the run.
    """

    def __init__(self, config: RunConfiguration, network: nn.Module, sites: Sequence[str], method: Method):
        super().__init__(config, network, sites)
        self.parameters = flat.get_parameters(network)
        self.buffers = [flat.get_buffers(network)] * len(sites)
        self.statistics: Buffers = self.buffers[0]  # the mean over the sites, of models that are no site's
        can = capabilities(method)
        # (d,), or (n, d): what the method sends beside the models
        self.vectors: Mapping[str, Tensor] = {name: torch.zeros_like(self.parameters) for name in can.vectors}
        self.changed: Tensor | None = None  # (n, d) bool: where a site's model is not what it got last; None: all
        self.alone: Sequence[int] = ()  # rows of sites that go on from their own model, whatever the others have
        self.sites_test_their_own = can.keeps_own_model

    @property
    def own_statistics(self) -> bool:
        """Whether sites hold BatchNorm statistics of their own."""
        return any(buffers is not self.statistics for buffers in self.buffers)

    @property
    def together(self) -> list[int]:
        """The rows that have one model and its statistics, beside those that go on alone; none where each has its own.

        That models of a method which gives each site its own are equal does not make them one.
        """
        rows = [row for row in range(len(self.sites)) if row not in self.alone]
        if not rows:
            return []
        models, first = self.parameters, rows[0]
        one = models.ndim == 1 or (bool(self.alone) and all(torch.equal(models[row], models[first]) for row in rows))
        return rows if one and all(self.buffers[row] is self.buffers[first] for row in rows) else []

    def task_parts(self, row: int) -> dict[str, Any]:
        """The model, whole or what changed, where that is smaller and the site has the rest."""
        vectors = {name: vector if vector.ndim == 1 else vector[row] for name, vector in self.vectors.items()}
        return {"parameters": self._download(row), "buffers": self.buffers[row], "vectors": vectors}

    def _download(self, row: int) -> Tensor | SparseUpdate:
        if self.parameters.ndim == 1:
            return self.parameters
        sparse = None if self.changed is None else SparseUpdate.between(self.changed[row], self.parameters[row])
        return self.parameters[row] if sparse is None else sparse

    def peer_parts(self, sharing: Sharing | None, row: int, round: int, missed: Sequence[bool]) -> dict[str, Any]:
        """The models of those who share with the site; whoever missed the last round has none to share.

        Who goes on alone is shared none.
        """
        if sharing is None:
            return {}
        models = self.parameters.expand(len(self.sites), -1)
        peers = [] if row in self.alone else find_givers(sharing, self.config.seed, self.sites, row, round)
        return {
            "peers": {
                self.sites[peer]: PeerModel(models[peer], self.buffers[peer], float(sharing.weights[row, peer]))
                for peer in peers
                if not missed[peer]
            }
        }

    def began(self) -> list[str]:
        """Of each site's model."""
        return super().began() if self.parameters.ndim == 1 else [digest(model) for model in self.parameters]

    def advance(self, round: int, outcome: Outcome, replies: Replies, reports: Reports, held: Tensor | None) -> None:
        """The models, and the statistics by the rule that the outcome names."""
        if outcome.models.ndim == 2:
            self.changed = outcome.models != self.parameters
            self.changed[~reports.present] = True  # whatever such a site holds, it gets the whole model
        self.parameters, self.vectors, self.alone = outcome.models, outcome.vectors, ()
        rule = statistics_rule(self.config.training, round, outcome.statistics)
        if rule == "initial":
            self.statistics = flat.get_buffers(initial_network(self.config.network, self.config.seed))
        elif rule != "frozen":
            shares = reports.data_share
            if rule == "weights":  # an update may be taken away from the model, no statistics from their mean
                shares = share(outcome.weights.clamp(min=0), reports.present)
            self.statistics = self._mean_statistics(replies, shares, reports.present, held)
        if rule == "own" or (rule == "models" and outcome.models.ndim == 2):
            self.buffers = [
                dict(reply.buffers) if reply else own for reply, own in zip(replies, self.buffers, strict=True)
            ]
        else:
            self.buffers = [self.statistics] * len(replies)

    def keep_own_statistics(self, rows: Sequence[int], replies: Replies, before: Sequence[Buffers]) -> None:
        """From now on those that the sites at ``rows`` trained, who go on alone; without a reply as ``before``."""
        self.alone, own = rows, dict[int, Buffers]()
        for row in rows:
            reply = replies[row]
            own[row] = dict(reply.buffers) if reply else before[row]
        self.buffers = [own.get(row, buffers) for row, buffers in enumerate(self.buffers)]

    def take_estimated(self, estimated: Sequence[Buffers | None], shares: Tensor) -> None:
        """Statistics that the sites estimated for the models as they are: of one model the mean by ``shares`` (n,)."""
        together = self.together
        there = [row for row in together if estimated[row]]
        self.buffers = [
            old if row in together else new or old
            for row, (new, old) in enumerate(zip(estimated, self.buffers, strict=True))
        ]
        if there:
            known = [estimated[row] or {} for row in there]
            shares = share(shares[there], torch.ones(len(there), dtype=torch.bool))  # equal where all were absent
            self.statistics = flat.average_buffers(known, shares)
            self.buffers = [self.statistics if row in together else own for row, own in enumerate(self.buffers)]

    def _mean_statistics(self, replies: Replies, shares: Tensor, present: Tensor, held: Tensor | None) -> Buffers:
        trained, shares = [reply.buffers for reply in replies if reply], shares[present]
        if held is None:
            return flat.average_buffers(trained, shares)
        owners = neurons.buffer_owners(self.network)
        return neurons.average_buffers(trained, shares, held[present], owners, self.statistics)

    def replace(self, models: Tensor) -> None:
        """Other models (n, d) from now on; none of them is what a site received before."""
        self.parameters, self.changed = models, None

    def _final(self) -> tuple[list[str], Tensor, Tensor, tuple[Buffers, ...]]:
        """Names, vectors (m, d), which of them each final model is (k, m), and the k models' statistics."""
        vectors = self.parameters.reshape(-1, self.parameters.shape[-1])
        names = ["global"] if len(self.together) == len(self.sites) else list(self.sites)
        each = torch.eye(len(vectors), dtype=torch.float64).expand(len(names), -1)
        return names, vectors, each, tuple(self.buffers[: len(names)])

    def final_test(self, round: int, ledger: str) -> Evaluation:
        """Every site tests every final model, its own among them: on all test splits together stands the union."""
        if self.sites_test_their_own:
            return super().final_test(round, ledger)
        names, vectors, each, buffers = self._final()
        of_each = torch.eye(len(names), dtype=torch.float64)
        return Evaluation(round, "testing", vectors, each, buffers, of_each, ledger=ledger, purpose=Purpose.FINAL)

    def own_model(self, row: int, round: int, split: str, ledger: str, purpose: Purpose = Purpose.FINAL) -> Evaluation:
        """One of them, unless it stays with the site; statistics are estimated for those that are here."""
        if self.sites_test_their_own and purpose is not Purpose.ESTIMATE:
            return super().own_model(row, round, split, ledger, purpose)
        model = self.parameters if self.parameters.ndim == 1 else self.parameters[row]
        one = torch.eye(1, dtype=torch.float64)
        return Evaluation(round, split, model[None], one, (self.buffers[row],), one, ledger=ledger, purpose=purpose)

    def with_models(self, parameters: Tensor, buffers: list[Buffers], alone: Sequence[int]) -> "ModelsInTheClear":
        """Of the same run, others."""
        other = copy(self)
        other.parameters, other.buffers, other.alone = parameters, buffers, alone
        return other

    @property
    def tests_own_only(self) -> bool:
        """Where a site's own model stays with it."""
        return self.sites_test_their_own

    def save(self, folder: Path) -> None:
        """One file for all sites that have one model, and one for each of the others."""
        for name in self._loaded():
            save_network(folder, name, self.network, self.config.network, self.config.preprocessing)

    def saved(self) -> dict[str, str]:
        """Likewise; with BatchNorm statistics."""
        return {f"{name}.pt": state_digest(self.network.state_dict()) for name in self._loaded()}

    def _loaded(self) -> Iterator[str]:
        """The names of final models, each in the network as it is named."""
        names, vectors, each, buffers = self._final()
        together = self.together
        for name, row in {"global" if row in together else name: row for row, name in enumerate(names)}.items():
            flat.load(self.network, flat.mix(vectors, each[row]), buffers[row])
            yield name

    def content(self) -> dict[str, Any]:
        """What changed as bits."""
        changed = None if self.changed is None else torch.from_numpy(np.packbits(self.changed.numpy(), axis=1))
        more = {"vectors": dict(self.vectors), "statistics": self.statistics, "alone": list(self.alone)}
        return super().content() | {"changed": changed} | more

    def restore(self, content: Mapping[str, Any]) -> None:
        """Likewise."""
        super().restore(content)
        self.vectors = content.get("vectors", {})  # checkpoints of earlier versions have none
        self.statistics = content.get("statistics", self.buffers[0])  # likewise
        self.alone = content.get("alone", ())  # likewise
        if content["changed"] is not None:
            bits = np.unpackbits(content["changed"].numpy(), axis=1, count=self.parameters.shape[1])
            self.changed = torch.from_numpy(bits.astype(bool))


def build_models(
    config: RunConfiguration, method: Method, network: nn.Module, sites: Sequence[str], context: bytes | None
) -> Models:
    """The kind that a run needs; ``context`` is TenSEAL's, of encrypted runs."""
    if context is not None:
        return EncryptedModels(config, network, sites, context)
    if capabilities(method).exchanges_directly:
        return ModelsAtSites(config, network, sites)
    return ModelsInTheClear(config, network, sites, method)
