"""A site's model as ciphertexts, both ways; the counterpart at the server is `fedmerit.server.encryption`."""

from dataclasses import replace

from torch import Tensor

from fedmerit.ciphertexts import Ciphertexts, SiteKey
from fedmerit.contract.flat import Buffers
from fedmerit.errors import BadInput
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.expected import check_model
from fedmerit.schema.messages import Evaluation, Task
from fedmerit.site.models import NOTHING, ModelsMadeHere, Outgoing, Received
from fedmerit.trainers.memory import Learned, MemoryFolder

OTHER_KEY = "do all sites have kits of the same `fedmerit deploy init --he`?"


class EncryptedModelsFromServer(ModelsMadeHere):
    """A site's models as ciphertexts, both ways."""

    def __init__(self, memory: MemoryFolder, config: RunConfiguration, name: str, key: SiteKey):
        super().__init__(memory, config, name)
        self.key = key

    def receive(self, task: Task) -> Received:
        """Return the model that the ciphertexts hold."""
        model, buffers = self._decrypted(task.ciphertexts)
        return Received(replace(task, parameters=model, buffers=buffers), model, self.memory.read(task.round - 1))

    def outgoing(self, learned: Learned) -> Outgoing:
        """Update and statistics encrypted."""
        return Outgoing(NOTHING, {}, self.key.encrypt(learned.update, learned.buffers))

    def final(self, task: Evaluation) -> tuple[str, Tensor, Buffers] | None:
        """Return the global model, which the site saves among the run's models."""
        return "global", *self._decrypted(task.ciphertexts)

    def _decrypted(self, ciphertexts: Ciphertexts | None) -> tuple[Tensor, Buffers]:
        """Return the model (d,) and statistics that the server cannot read.

        Those of the start, if nothing was added yet.

        Raises:
            BadInput: they are no model, for example because sites have different keys.
        """
        start, statistics = self.start
        if ciphertexts is None:
            return start, statistics
        try:
            added, buffers = self.key.decrypt(ciphertexts, statistics)
            model = (start.double() + added).to(start.dtype)
        except (ValueError, RuntimeError) as error:
            raise BadInput(f"site {self.name}: cannot decrypt the model ({error}); {OTHER_KEY}") from error
        if fault := check_model(model, buffers, start, statistics):
            raise BadInput(f"site {self.name}: decrypts what is no model ({fault}); {OTHER_KEY}")
        return model, buffers
