"""A run's models at the server that does not see them: they stay at the sites, or are encrypted.

`Models` is what all kinds share; `fedmerit.server.server_models` has those in the clear.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedmerit.ciphertexts import Adder, Ciphertexts
from fedmerit.contract import flat
from fedmerit.contract.capabilities import Sharing
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import Outcome
from fedmerit.evidence.digests import digest
from fedmerit.guard.admission import Admission
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Evaluation, Purpose, Reply, Task
from fedmerit.server.exchange import Moment
from fedmerit.server.round_updates import Replies


class Models:
    """Models that the server does not see; what all kinds share."""

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

    def tasks(self, now: Moment, sharing: Sharing | None, neurons: Tensor | None) -> dict[str, Task]:
        """What each site receives: the model in whatever form, and the site's part in it.

        Args:
            now: the round.
            sharing: which peers share with each other.
            neurons: (n, H) bool, the neurons that each site holds; None: all.
        """
        return {
            site: Task(
                round=now.round,
                weight=_known(self.weights, row),
                data_share=_known(self.data_share, row),
                neurons=None if neurons is None else neurons[row],
                ledger=now.ledger_head,
                **self.task_parts(row),
                **(self.peer_parts(sharing, row, now.round) if sharing else {}),
            )
            for row, site in enumerate(self.sites)
        }

    def task_parts(self, row: int) -> dict[str, Any]:
        """The fields of a `Task` that hold the model of the site at ``row``: nothing that is not here."""
        return {"parameters": torch.empty(0), "buffers": self.buffers[row]}

    def peer_parts(self, sharing: Sharing, row: int, round: int) -> dict[str, Any]:
        """The fields of a `Task` that bring the site at ``row`` to what its peers share with it."""
        return {}

    def check_message(self, reply: Reply) -> str | None:
        """Why a reply's form cannot be used, beside `fedmerit.schema.expected`; or None."""
        return "ciphertexts, expected the update in the clear" if reply.ciphertexts else None

    def digests(self) -> list[str]:
        """Of the model that each site has."""
        return [digest(self.parameters)] * len(self.sites)

    def keep_local_models(self, round: int, outcome: Outcome, is_shared: bool, updates: Tensor) -> Outcome:
        """The outcome with each site's own trained model, in the last round of a run with ``last_round=own``.

        ``is_shared``: the method gave one model for all; ``updates``: (n, d) as sent.
        """
        return outcome

    def advance(
        self, round: int, outcome: Outcome, admission: Admission, replies: Replies, neurons: Tensor | None
    ) -> None:
        """Take over what a round gave; ``neurons`` (n, H) are those that each site holds, None: all."""
        reports = admission.site_reports
        self.parameters = outcome.models
        self.weights = outcome.weights.masked_fill(~reports.present, math.nan)
        self.data_share = reports.data_share.masked_fill(~reports.present, math.nan)

    def replace(self, models: Tensor) -> None:
        """Take other models (n, d), of which no site has any part yet."""
        self.parameters = models

    def ended(self) -> str:
        """Digest of the model or models after a round."""
        return digest(self.parameters)

    def final_test(self, round: int, ledger: str) -> Evaluation:
        """Each site tests the model that it has, and the server has not."""
        return self.own_model(0, round, "testing", ledger)

    def own_model(self, row: int, round: int, split: str, ledger: str, purpose: Purpose = Purpose.FINAL) -> Evaluation:
        """The site at ``row`` evaluates its own final model."""
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
        kept = {"buffers": self.buffers, "weights": self.weights, "data_share": self.data_share}
        return {"models": self.parameters, "separate": list(self.separate), **kept}

    def restore(self, content: Mapping[str, Any]) -> None:
        """From the checkpoint."""
        self.parameters, self.buffers, self.separate = (content[name] for name in ("models", "buffers", "separate"))
        self.weights, self.data_share = content["weights"], content["data_share"]


class ModelsAtSites(Models):
    """Sites keep their models and ask each other for them."""

    def peer_parts(self, sharing: Sharing, row: int, round: int) -> dict[str, Any]:
        """The peers that the site may ask, and the last known weights that it gives them."""
        weights = zip(self.sites, sharing.weights[row].tolist(), strict=True)
        return {"others": {site: weight for site, weight in weights if site != self.sites[row]}}


class EncryptedModels(Models):
    """The sum of all rounds' updates, and the mean of BatchNorm statistics, both added up under encryption.

    ``context`` is TenSEAL's, without the secret key; the other arguments are those of `Models`.
    """

    def __init__(self, config: RunConfiguration, network: nn.Module, sites: Sequence[str], context: bytes):
        super().__init__(config, network, sites)
        self.adder = Adder(context, len(flat.get_parameters(network)), flat.get_buffers(network))
        self.total: Ciphertexts | None = None  # None: nothing was added yet

    def task_parts(self, row: int) -> dict[str, Any]:
        """With the sum."""
        return super().task_parts(row) | {"ciphertexts": self.total}

    def check_message(self, reply: Reply) -> str | None:
        """Why the ciphertexts cannot be used, or None."""
        return self.adder.fault(reply.ciphertexts)

    def digests(self) -> list[str]:
        """Of the ciphertexts."""
        return [digest(self.total or self.parameters)] * len(self.sites)

    def advance(
        self, round: int, outcome: Outcome, admission: Admission, replies: Replies, neurons: Tensor | None
    ) -> None:
        """Add what `vectors.aggregate` and `flat.average_buffers` average in the clear."""
        super().advance(round, outcome, admission, replies, neurons)
        sent = {row: one.ciphertexts for row, one in enumerate(replies) if one and one.ciphertexts}
        counted = {row: one for row, one in sent.items() if admission.counted[row]}
        shares = admission.site_reports.data_share[list(counted)].tolist()
        weights = outcome.weights[list(counted)].tolist()
        self.total = self.adder.add(self.total, list(counted.values()), weights, shares)

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
        return super().content() | {"encrypted_sum": self.total and self.total.to_tensors()}

    def restore(self, content: Mapping[str, Any]) -> None:
        """With the sum."""
        super().restore(content)
        self.total = content["encrypted_sum"] and Ciphertexts.from_tensors(content["encrypted_sum"])


def _known(values: Tensor | None, row: int) -> float | None:
    """An entry; None if it is NaN, or nothing is known."""
    return None if values is None or bool(values[row].isnan()) else float(values[row])
