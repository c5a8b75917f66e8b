"""False claims: an honest update, and lies beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedmerit.attacks.attack import Attack
from fedmerit.parameters import parameter
from fedmerit.wire.messages import Reply

CLAIMS: Mapping[str, float] = {  # what pays most, of what may be said
    "minus_error": 1.0,
    "error": 0.0,
    "cosine": -1.0,
    "loss": 1.0,
}


@dataclass(frozen=True, kw_only=True)
class Inflated(Attack):
    """Trains honestly and lies of itself: "num_samples" times ``by``, or a value that methods ask for at its best."""

    what: str = parameter("all", "what it lies of", choices=("all", "num_samples", *CLAIMS))
    by: float = parameter(10.0, "factor of num_samples", above=0)

    def claim(self, reply: Reply) -> Reply:
        """The lie, about what is said anyway."""
        if self.what in ("all", "num_samples"):
            reply = replace(reply, num_samples=max(1, round(self.by * reply.num_samples)))
        said = {name: CLAIMS[name] for name in reply.values if name in CLAIMS and self.what in ("all", name)}
        return replace(reply, values={**reply.values, **said})
