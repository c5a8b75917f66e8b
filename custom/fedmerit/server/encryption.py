"""A run's encrypted models at the server: it adds up ciphertexts that only the sites can read."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from fedmerit.ciphertexts import Adder, Ciphertexts
from fedmerit.contract import flat
from fedmerit.contract.method import Outcome
from fedmerit.evidence.digests import digest
from fedmerit.guard.admission import Admission
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Evaluation, Purpose, Reply
from fedmerit.server.models import Models
from fedmerit.server.round_updates import Replies


class EncryptedModels(Models):
    """The sum of all rounds' updates, and the mean of BatchNorm statistics, both added up under encryption.

    ``context`` is TenSEAL's, without the secret key; the other arguments are those of `Models`.
    """

    def __init__(self, config: RunConfiguration, network: nn.Module, sites: Sequence[str], context: bytes):
        super().__init__(config, network, sites)
        self.adder = Adder(context, len(flat.get_parameters(network)), flat.get_buffers(network))
        self.total: Ciphertexts | None = None  # None: nothing was added yet

    def task_parts(self, row: int) -> dict[str, Any]:
        """Return the parts of the base class and the encrypted sum."""
        return super().task_parts(row) | {"ciphertexts": self.total}

    def check_message(self, reply: Reply) -> str | None:
        """Return why the ciphertexts cannot be used, or None."""
        return self.adder.fault(reply.ciphertexts)

    def digests(self) -> list[str]:
        """Return the digest of the ciphertexts."""
        return [digest(self.total or self.parameters)] * len(self.sites)

    def advance(self, round: int, outcome: Outcome, admission: Admission, replies: Replies) -> None:
        """Add up the ciphertexts of what is averaged in the clear elsewhere."""
        super().advance(round, outcome, admission, replies)
        sent = {row: one.ciphertexts for row, one in enumerate(replies) if one and one.ciphertexts}
        counted = {row: one for row, one in sent.items() if admission.counted[row]}
        shares = admission.site_reports.data_share[list(counted)].tolist()
        weights = outcome.weights[list(counted)].tolist()
        self.total = self.adder.add(self.total, list(counted.values()), weights, shares)

    def ended(self) -> str:
        """Return the digest of the ciphertexts."""
        return digest(self.total or self.parameters)

    def own_model(self, row: int, round: int, split: str, ledger: str, purpose: Purpose = Purpose.FINAL) -> Evaluation:
        """Return the one that the sites decrypt."""
        return replace(super().own_model(row, round, split, ledger, purpose), ciphertexts=self.total)

    @property
    def tests_own_only(self) -> bool:
        """Whether sites test only their own model: no, they all decrypt the same one."""
        return False

    def content(self) -> dict[str, Any]:
        """Return the parts of the base class and the encrypted sum."""
        return super().content() | {"encrypted_sum": self.total and self.total.to_tensors()}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Take over the parts of the base class and the encrypted sum."""
        super().restore(content)
        self.total = content["encrypted_sum"] and Ciphertexts.from_tensors(content["encrypted_sum"])
