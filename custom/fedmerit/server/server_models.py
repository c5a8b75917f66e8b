"""A run's models at the server that sees them: one for all sites, or one each, with their BatchNorm statistics."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedmerit.contract import flat
from fedmerit.contract.capabilities import Capabilities, Sharing
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import Outcome
from fedmerit.contract.vectors import share
from fedmerit.errors import BadInput
from fedmerit.evidence.digests import digest, state_digest
from fedmerit.guard.admission import Admission
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Evaluation, PeerModel, Purpose, SparseUpdate
from fedmerit.server.round_updates import Replies
from fedmerit.server.unseen_models import EncryptedModels, Models, ModelsAtSites
from fedmerit.site.site_models import find_givers
from fedmerit.tensor_files import load_state
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.monai import neurons
from fedmerit.trainers.monai.evaluation import statistics_rule
from fedmerit.trainers.monai.network_checks import require_repeatable
from fedmerit.trainers.saved_networks import save_network
from fedmerit.trainers.script.named_tensors import load_weights


class ModelsInTheClear(Models):
    """One model for all, or one per site, and the BatchNorm statistics that belong to each site's.

    ``can`` are the method's capabilities; the other arguments are those of `Models`.
    """

    are_visible: ClassVar[bool] = True

    def __init__(self, config: RunConfiguration, network: nn.Module, sites: Sequence[str], can: Capabilities):
        super().__init__(config, network, sites)
        self.parameters = flat.get_parameters(network)
        self.buffers = [flat.get_buffers(network)] * len(sites)
        self.statistics: Buffers = self.buffers[0]  # the mean over the sites, for models that are no site's
        self.first_statistics = self.statistics  # of the start
        # (d,), or (n, d): what the method sends beside the models
        self.vectors: Mapping[str, Tensor] = {name: torch.zeros_like(self.parameters) for name in can.vectors}
        self.changed: Tensor | None = None  # (n, d) bool: where a site's model is not what it got last; None: all
        self.sites_keep_models = can.keeps_own_model
        self._digested: tuple[Tensor | None, list[str]] = None, []  # the parameters, and their `digests`

    @property
    def has_own_statistics(self) -> bool:
        """Whether sites hold BatchNorm statistics of their own."""
        return any(buffers is not self.statistics for buffers in self.buffers)

    @property
    def shared_rows(self) -> list[int]:
        """The rows with one common model and its statistics, without `separate` ones; none if each has its own.

        Equal models of a method that gives each site its own are not one.
        """
        rows = [row for row in range(len(self.sites)) if row not in self.separate]
        if not rows:
            return []
        models, first = self.parameters, rows[0]
        one = models.ndim == 1 or (bool(self.separate) and all(torch.equal(models[row], models[first]) for row in rows))
        return rows if one and all(self.buffers[row] is self.buffers[first] for row in rows) else []

    def task_parts(self, row: int) -> dict[str, Any]:
        """The model, or only what changed, if that is smaller and the site has the rest."""
        vectors = {name: vector if vector.ndim == 1 else vector[row] for name, vector in self.vectors.items()}
        model = self.parameters if self.parameters.ndim == 1 else self.parameters[row]
        sparse = None
        if self.parameters.ndim > 1 and self.changed is not None:
            sparse = SparseUpdate.between(self.changed[row], model)
        model = model if sparse is None else torch.empty(0)
        return {"parameters": model, "changes": sparse, "buffers": self.buffers[row], "vectors": vectors}

    def peer_parts(self, sharing: Sharing, row: int, round: int) -> dict[str, Any]:
        """The models of the peers that share with the site; a site that missed the last round has none to share.

        A separate site receives none.
        """
        models = self.parameters.expand(len(self.sites), -1)
        missed = [False] * len(self.sites) if self.weights is None else self.weights.isnan().tolist()
        peers = [] if row in self.separate else find_givers(sharing, self.config.seed, self.sites, row, round)
        return {
            "peers": {
                self.sites[peer]: PeerModel(models[peer], self.buffers[peer], float(sharing.weights[row, peer]))
                for peer in peers
                if not missed[peer]
            }
        }

    def digests(self) -> list[str]:
        """Of each site's model; read once, as hashing all takes long."""
        if self.parameters.ndim == 1:
            return super().digests()
        if self._digested[0] is not self.parameters:
            self._digested = self.parameters, [digest(model) for model in self.parameters]
        return self._digested[1]

    def keep_local_models(self, round: int, outcome: Outcome, is_shared: bool, updates: Tensor) -> Outcome:
        """As `Models.keep_local_models` says."""
        last = round == self.config.rounds - 1 and self.config.training.last_round == "own"
        if not last or not is_shared:
            return outcome
        return replace(outcome, models=self.parameters + updates, statistics="models")

    def advance(
        self, round: int, outcome: Outcome, admission: Admission, replies: Replies, neurons: Tensor | None
    ) -> None:
        """The models, and the statistics by the rule that the outcome names; `separate` sites keep what they trained.

        A separate site without a reply keeps the statistics that it had.
        """
        reports, received = admission.site_reports, self.buffers
        if outcome.models.ndim == 2:
            self.changed = outcome.models != self.parameters
            self.changed[~reports.present] = True  # such a site may hold anything: it gets the whole model
        super().advance(round, outcome, admission, replies, neurons)
        self.vectors = outcome.vectors
        rule = statistics_rule(self.config.training, round, outcome.statistics)
        if rule == "initial":
            self.statistics = self.first_statistics
        elif rule != "frozen":
            shares = reports.data_share
            if rule == "weights":  # an update may be subtracted from the model, statistics not from their mean
                shares = share(outcome.weights.clamp(min=0), reports.present)
            self.statistics = self._mean_statistics(admission.statistics, shares, reports.present, neurons)
        self.buffers = [self.statistics] * len(replies)
        if rule == "own" or (rule == "models" and outcome.models.ndim == 2):
            known = zip(admission.statistics, reports.present.tolist(), received, strict=True)
            self.buffers = [dict(trained) if there else before for trained, there, before in known]
        self.separate = admission.withheld.nonzero().flatten().tolist()
        for row in self.separate:
            reply = replies[row]
            self.buffers[row] = dict(reply.buffers) if reply else received[row]

    def take_estimates(self, estimates: Sequence[Buffers | None], shares: Tensor) -> None:
        """Statistics that the sites estimated for these models; for a common model the mean by ``shares`` (n,)."""
        shared = self.shared_rows
        there = [row for row in shared if estimates[row]]
        self.buffers = [
            old if row in shared else new or old
            for row, (new, old) in enumerate(zip(estimates, self.buffers, strict=True))
        ]
        if there:
            known = [estimates[row] or {} for row in there]
            shares = share(shares[there], torch.ones(len(there), dtype=torch.bool))  # equal if all were absent
            self.statistics = flat.average_buffers(known, shares)
            self.buffers = [self.statistics if row in shared else own for row, own in enumerate(self.buffers)]

    def _mean_statistics(
        self, statistics: Sequence[Buffers], shares: Tensor, present: Tensor, held: Tensor | None
    ) -> Buffers:
        trained = [one for one, there in zip(statistics, present.tolist(), strict=True) if there]
        if held is None:
            return flat.average_buffers(trained, shares[present])
        owners = neurons.buffer_owners(self.network)
        return neurons.average_buffers(trained, shares[present], held[present], owners, self.statistics)

    def replace(self, models: Tensor) -> None:
        """As `Models.replace` says."""
        super().replace(models)
        self.changed = None

    def _final(self) -> tuple[list[str], Tensor, Tensor, tuple[Buffers, ...]]:
        """Names, vectors (m, d), which of them each final model is (k, m), and the k models' statistics."""
        vectors = self.parameters.reshape(-1, self.parameters.shape[-1])
        names = ["global"] if len(self.shared_rows) == len(self.sites) else list(self.sites)
        each = torch.eye(len(vectors), dtype=torch.float64).expand(len(names), -1)
        return names, vectors, each, tuple(self.buffers[: len(names)])

    def final_test(self, round: int, ledger: str) -> Evaluation:
        """Every site tests every final model: the union of all test splits then has results of each."""
        if self.sites_keep_models:
            return super().final_test(round, ledger)
        names, vectors, each, buffers = self._final()
        of_each = torch.eye(len(names), dtype=torch.float64)
        return Evaluation(round, "testing", vectors, each, buffers, of_each, ledger=ledger, purpose=Purpose.FINAL)

    def own_model(self, row: int, round: int, split: str, ledger: str, purpose: Purpose = Purpose.FINAL) -> Evaluation:
        """One of them, unless the site keeps it; statistics are estimated only for those that are here."""
        if self.sites_keep_models and purpose is not Purpose.ESTIMATE:
            return super().own_model(row, round, split, ledger, purpose)
        model = self.parameters if self.parameters.ndim == 1 else self.parameters[row]
        one = torch.eye(1, dtype=torch.float64)
        return Evaluation(round, split, model[None], one, (self.buffers[row],), one, ledger=ledger, purpose=purpose)

    def with_models(self, parameters: Tensor, buffers: list[Buffers], separate: Sequence[int]) -> "ModelsInTheClear":
        """Other models of the same run."""
        other = copy(self)
        other.parameters, other.buffers, other.separate = parameters, buffers, separate
        return other

    @property
    def tests_own_only(self) -> bool:
        """Whether each site keeps a model of its own."""
        return self.sites_keep_models

    def save(self, folder: Path) -> None:
        """One file for the common model, and one for each other."""
        for name in self._loaded():
            save_network(folder, name, self.network, self.config.network, self.config.preprocessing)

    def saved(self) -> dict[str, str]:
        """By file name, the digest of parameters and BatchNorm statistics."""
        return {f"{name}.pt": state_digest(self.network.state_dict()) for name in self._loaded()}

    def _loaded(self) -> Iterator[str]:
        """The names of final models, with each loaded into the network when its name comes."""
        names, vectors, each, buffers = self._final()
        shared = self.shared_rows
        for name, row in {"global" if row in shared else name: row for row, name in enumerate(names)}.items():
            flat.load(self.network, flat.mix(vectors, each[row]), buffers[row])
            yield name

    def content(self) -> dict[str, Any]:
        """With `changed` as bits."""
        changed = None if self.changed is None else torch.from_numpy(np.packbits(self.changed.numpy(), axis=1))
        kept = {"vectors": dict(self.vectors), "statistics": self.statistics, "changed": changed}
        return super().content() | kept

    def restore(self, content: Mapping[str, Any]) -> None:
        """With `changed` from bits."""
        super().restore(content)
        self.vectors, self.statistics = content["vectors"], content["statistics"]
        if content["changed"] is not None:
            bits = np.unpackbits(content["changed"].numpy(), axis=1, count=self.parameters.shape[1])
            self.changed = torch.from_numpy(bits.astype(bool))


FIRST_MODEL = "first_model.pt"  # in the run folder: the state_dict that a script's run begins with


def first_network(config: RunConfiguration, run: Path) -> nn.Module:
    """The network that all sites start from: by the seed, or of a script's run the weights in the run folder.

    Raises:
        BadInput: layers of it drop at random, or these are not the weights that the plan names.
    """
    network = initial_network(config.network, config.seed)
    if not config.script:
        require_repeatable(config.network, network)
        return network
    weights = load_state(run / FIRST_MODEL)
    if state_digest(weights) != config.script.start:
        raise BadInput(f"{run / FIRST_MODEL}: not the weights that the plan names; export the job again")
    load_weights(network, weights)
    return network


def build_models(
    config: RunConfiguration, can: Capabilities, network: nn.Module, sites: Sequence[str], context: bytes | None
) -> Models:
    """The kind that a run needs; ``context`` is TenSEAL's, for encrypted runs."""
    if context is not None:
        return EncryptedModels(config, network, sites, context)
    if can.exchanges_directly:
        return ModelsAtSites(config, network, sites)
    return ModelsInTheClear(config, network, sites, can)
