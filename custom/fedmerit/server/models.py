"""A run's models at the server: seen there, one for all sites or one each; or not, as they stay at the sites."""

import math
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
from fedmerit.contract.method import Layout, Outcome
from fedmerit.contract.vectors import share
from fedmerit.evidence.digests import digest, state_digest
from fedmerit.guard.admission import Admission
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Evaluation, PeerModel, Purpose, Reply, SparseUpdate, Task
from fedmerit.server.exchange import Moment
from fedmerit.server.round_updates import Replies
from fedmerit.server.submodels import Submodels
from fedmerit.site.peers import find_givers
from fedmerit.trainers.saved_networks import save_network
from fedmerit.trainers.statistics import statistics_rule


class Models:
    """The base of all kinds of models, which the server does not see."""

    are_visible: ClassVar[bool] = False
    parameters: Tensor  # (d,) one for all, or (n, d); d = 0: not seen here
    buffers: list[Buffers]  # BatchNorm statistics of each site's model

    def __init__(self, config: RunConfiguration, network: nn.Module, sites: Sequence[str]):
        self.config, self.network, self.sites = config, network, sites
        self.parameters = torch.empty(0)
        self.buffers = [{}] * len(sites)
        self.separate: Sequence[int] = ()  # rows of sites that continue from their own model, whatever the others have
        self.weights: Tensor | None = None  # (n,) of the last aggregation; NaN for sites with no part in it
        self.data_share: Tensor | None = None  # (n,) likewise

    def tasks(self, now: Moment, sharing: Sharing | None) -> dict[str, Task]:
        """Return what each site receives: the model in whatever form, and the site's part in it.

        Args:
            now: the round.
            sharing: which peers share with each other.
        """
        return {
            site: Task(
                round=now.round,
                weight=_known(self.weights, row),
                data_share=_known(self.data_share, row),
                ledger=now.ledger_head,
                **self.task_parts(row),
                **(self.peer_parts(sharing, row, now.round) if sharing else {}),
            )
            for row, site in enumerate(self.sites)
        }

    def task_parts(self, row: int) -> dict[str, Any]:
        """Return the fields of a `Task` that hold the model of the site at ``row``: nothing that is not here."""
        return {"parameters": torch.empty(0), "buffers": self.buffers[row]}

    def peer_parts(self, sharing: Sharing, row: int, round: int) -> dict[str, Any]:
        """Return the fields of a `Task` that bring the site at ``row`` to what its peers share with it."""
        return {}

    def check_message(self, reply: Reply) -> str | None:
        """Return why a reply's form cannot be used, beside `fedmerit.schema.expected`; or None."""
        return "ciphertexts, expected the update in the clear" if reply.ciphertexts else None

    def digests(self) -> list[str]:
        """Return the digest of the model that each site has."""
        return [digest(self.parameters)] * len(self.sites)

    def keep_local_models(self, round: int, outcome: Outcome, is_shared: bool, updates: Tensor) -> Outcome:
        """Return the outcome with each site's own trained model, in the last round of a run with ``last_round=own``.

        ``is_shared``: the method gave one model for all; ``updates``: (n, d) as sent.
        """
        return outcome

    def advance(self, round: int, outcome: Outcome, admission: Admission, replies: Replies) -> None:
        """Take over what a round gave."""
        reports = admission.site_reports
        self.parameters = outcome.models
        self.weights = outcome.weights.masked_fill(~reports.present, math.nan)
        self.data_share = reports.data_share.masked_fill(~reports.present, math.nan)

    def replace(self, models: Tensor) -> None:
        """Take other models (n, d), of which no site has any part yet."""
        self.parameters = models

    def ended(self) -> str:
        """Return the digest of the model or models after a round."""
        return digest(self.parameters)

    def final_test(self, round: int, ledger: str) -> Evaluation:
        """Return the test of the model that each site has, and the server has not."""
        return self.own_model(0, round, "testing", ledger)

    def own_model(self, row: int, round: int, split: str, ledger: str, purpose: Purpose = Purpose.FINAL) -> Evaluation:
        """Return the site at ``row`` evaluates its own final model."""
        one = torch.eye(1, dtype=torch.float64)
        return Evaluation(round, split, torch.empty(1, 0), one, ({},), one, ledger=ledger, purpose=purpose)

    @property
    def tests_own_only(self) -> bool:
        """Whether each site tests its own final model and no other."""
        return True

    def save(self, folder: Path) -> None:
        """Save the final models that are here."""

    def saved(self) -> dict[str, str]:
        """Return, by file name, the digest of each model that `save` writes."""
        return {}

    def content(self) -> dict[str, Any]:
        """Return the state for the checkpoint."""
        kept = {"buffers": self.buffers, "weights": self.weights, "data_share": self.data_share}
        return {"models": self.parameters, "separate": list(self.separate), **kept}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Take over the state in a checkpoint."""
        self.parameters, self.buffers, self.separate = (content[name] for name in ("models", "buffers", "separate"))
        self.weights, self.data_share = content["weights"], content["data_share"]


class ModelsInTheClear(Models):
    """A model for all, or one per site, and the BatchNorm statistics that belong to each site's.

    ``can`` are the method's capabilities, ``submodels`` the sites' neurons; the other arguments are those of `Models`.
    """

    are_visible: ClassVar[bool] = True

    def __init__(
        self,
        config: RunConfiguration,
        network: nn.Module,
        sites: Sequence[str],
        can: Capabilities,
        submodels: Submodels | None = None,
    ):
        super().__init__(config, network, sites)
        self.submodels = submodels or Submodels(None, Layout.of(1))
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
        """The rows with one common model and its statistics, without separate ones; none if each has its own.

        Equal models of a method that gives each site its own are not one.
        """
        rows = [row for row in range(len(self.sites)) if row not in self.separate]
        if not rows:
            return []
        models, first = self.parameters, rows[0]
        one = models.ndim == 1 or (bool(self.separate) and all(torch.equal(models[row], models[first]) for row in rows))
        return rows if one and all(self.buffers[row] is self.buffers[first] for row in rows) else []

    def task_parts(self, row: int) -> dict[str, Any]:
        """Return the model, or only what changed, if that is smaller and the site has the rest."""
        vectors = {name: vector if vector.ndim == 1 else vector[row] for name, vector in self.vectors.items()}
        model, sparse = self.parameters if self.parameters.ndim == 1 else self.parameters[row], None
        if self.parameters.ndim > 1 and self.changed is not None:
            sparse = SparseUpdate.between(self.changed[row], model)
        model = model if sparse is None else torch.empty(0)
        parts = {"parameters": model, "changes": sparse, "buffers": self.buffers[row], "vectors": vectors}
        return parts | self.submodels.task_parts(row)

    def peer_parts(self, sharing: Sharing, row: int, round: int) -> dict[str, Any]:
        """Return the models of the peers that share with the site; a site that missed the last round has none to share.

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
        """Return the digest of each site's model; it is read once, as hashing all takes long."""
        if self.parameters.ndim == 1:
            return super().digests()
        if self._digested[0] is not self.parameters:
            self._digested = self.parameters, [digest(model) for model in self.parameters]
        return self._digested[1]

    def keep_local_models(self, round: int, outcome: Outcome, is_shared: bool, updates: Tensor) -> Outcome:
        """Return the outcome with each site's own trained model, if the run ends so."""
        last = round == self.config.rounds - 1 and self.config.training.last_round == "own"
        if not last or not is_shared:
            return outcome
        return replace(outcome, models=self.parameters + updates, statistics="models")

    def advance(self, round: int, outcome: Outcome, admission: Admission, replies: Replies) -> None:
        """Take over the outcome's models, and the statistics by its rule; separate sites keep what they trained.

        A separate site without a reply keeps the statistics that it had.
        """
        reports, received = admission.site_reports, self.buffers
        if outcome.models.ndim == 2:
            self.changed = outcome.models != self.parameters
            self.changed[~reports.present] = True  # such a site may hold anything: it gets the whole model
        super().advance(round, outcome, admission, replies)
        self.vectors = outcome.vectors
        rule = statistics_rule(self.config.training, round, outcome.statistics)
        if rule == "initial":
            self.statistics = self.first_statistics
        elif rule != "frozen":
            shares = reports.data_share
            if rule == "weights":  # an update may be subtracted from the model, statistics not from their mean
                shares = share(outcome.weights.clamp(min=0), reports.present)
            mean = self.submodels.average_statistics
            self.statistics = mean(admission.statistics, shares, reports.present, self.statistics)
        self.buffers = [self.statistics] * len(replies)
        if rule == "own" or (rule == "models" and outcome.models.ndim == 2):
            known = zip(admission.statistics, reports.present.tolist(), received, strict=True)
            self.buffers = [dict(trained) if there else before for trained, there, before in known]
        self.separate = admission.withheld.nonzero().flatten().tolist()
        for row in self.separate:
            reply = replies[row]
            self.buffers[row] = dict(reply.buffers) if reply else received[row]

    def take_estimates(self, estimates: Sequence[Buffers | None], shares: Tensor) -> None:
        """Take the statistics that the sites estimated for these models.

        For a common model the mean by ``shares`` (n,).
        """
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

    def replace(self, models: Tensor) -> None:
        """Take other models (n, d), of which no site has any part yet."""
        super().replace(models)
        self.changed = None

    def _final(self) -> tuple[list[str], Tensor, Tensor, tuple[Buffers, ...]]:
        """Return names, vectors (m, d), which of them each final model is (k, m), and the k models' statistics."""
        vectors = self.parameters.reshape(-1, self.parameters.shape[-1])
        names = ["global"] if len(self.shared_rows) == len(self.sites) else list(self.sites)
        each = torch.eye(len(vectors), dtype=torch.float64).expand(len(names), -1)
        return names, vectors, each, tuple(self.buffers[: len(names)])

    def final_test(self, round: int, ledger: str) -> Evaluation:
        """Return the test of every final model at every site: the union of all test splits then has results of each."""
        if self.sites_keep_models:
            return super().final_test(round, ledger)
        names, vectors, each, buffers = self._final()
        of_each = torch.eye(len(names), dtype=torch.float64)
        return Evaluation(round, "testing", vectors, each, buffers, of_each, ledger=ledger, purpose=Purpose.FINAL)

    def own_model(self, row: int, round: int, split: str, ledger: str, purpose: Purpose = Purpose.FINAL) -> Evaluation:
        """Return one of them, unless the site keeps it; statistics are estimated only for those that are here."""
        if self.sites_keep_models and purpose is not Purpose.ESTIMATE:
            return super().own_model(row, round, split, ledger, purpose)
        model = self.parameters if self.parameters.ndim == 1 else self.parameters[row]
        one = torch.eye(1, dtype=torch.float64)
        return Evaluation(round, split, model[None], one, (self.buffers[row],), one, ledger=ledger, purpose=purpose)

    def with_models(self, parameters: Tensor, buffers: list[Buffers], separate: Sequence[int]) -> "ModelsInTheClear":
        """Return other models of the same run."""
        other = copy(self)
        other.parameters, other.buffers, other.separate = parameters, buffers, separate
        return other

    @property
    def tests_own_only(self) -> bool:
        """Whether each site keeps a model of its own."""
        return self.sites_keep_models

    def save(self, folder: Path) -> None:
        """Write one file for the common model, and one for each other."""
        for name in self._loaded():
            save_network(folder, name, self.network, self.config.network, self.config.preprocessing)

    def saved(self) -> dict[str, str]:
        """Return, by file name, the digest of parameters and BatchNorm statistics."""
        return {f"{name}.pt": state_digest(self.network.state_dict()) for name in self._loaded()}

    def _loaded(self) -> Iterator[str]:
        """Yield the names of final models, with each loaded into the network when its name comes."""
        names, vectors, each, buffers = self._final()
        shared = self.shared_rows
        for name, row in {"global" if row in shared else name: row for row, name in enumerate(names)}.items():
            flat.load(self.network, flat.mix(vectors, each[row]), buffers[row])
            yield name

    def content(self) -> dict[str, Any]:
        """Return the state for the checkpoint, with `changed` as bits."""
        changed = None if self.changed is None else torch.from_numpy(np.packbits(self.changed.numpy(), axis=1))
        kept = {"vectors": dict(self.vectors), "statistics": self.statistics, "changed": changed}
        return super().content() | kept

    def restore(self, content: Mapping[str, Any]) -> None:
        """Take over the state in a checkpoint, with `changed` from bits."""
        super().restore(content)
        self.vectors, self.statistics = content["vectors"], content["statistics"]
        if content["changed"] is not None:
            bits = np.unpackbits(content["changed"].numpy(), axis=1, count=self.parameters.shape[1])
            self.changed = torch.from_numpy(bits.astype(bool))


class ModelsAtSites(Models):
    """The models of sites that keep them and ask each other for them."""

    def peer_parts(self, sharing: Sharing, row: int, round: int) -> dict[str, Any]:
        """Return the peers that the site may ask, and the last known weights that it gives them."""
        weights = zip(self.sites, sharing.weights[row].tolist(), strict=True)
        return {"others": {site: weight for site, weight in weights if site != self.sites[row]}}


def _known(values: Tensor | None, row: int) -> float | None:
    """Return an entry; None if it is NaN, or nothing is known."""
    return None if values is None or bool(values[row].isnan()) else float(values[row])
