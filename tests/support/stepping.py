"""A federation that a test drives exchange by exchange."""

from collections.abc import Mapping
from typing import Any

from fedmerit.schema.messages import Answer, Work
from fedmerit.server.exchange import Exchange
from fedmerit.server.server import Federation


class Stepped(Federation):
    """As `Federation`; `take` ends the exchange at hand and continues to the next."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._steps = self.exchanges()
        self.exchange: Exchange | None = next(self._steps, None)

    @property
    def training(self) -> bool:
        """Whether rounds are left to train."""
        return self.round < self.config.rounds

    @property
    def work(self) -> str | None:
        """What the sites have to do now."""
        return self.exchange.work if self.exchange else None

    def tasks(self) -> Mapping[str, Work]:
        """What each site that is asked receives now."""
        assert self.exchange
        return self.exchange.tasks

    def check_message(self, site: str, answer: object) -> str | None:
        """Why a reply cannot be used."""
        return self._check_reply(site, answer)

    def take(self, answers: Mapping[str, Answer], refused: Mapping[str, str] | None = None) -> None:
        """End the exchange."""
        assert self.exchange
        for name, reason in (refused or {}).items():
            self.exchange.refuse(name, reason)
        for site in sorted(answers):
            self.exchange.take(site, answers[site])
        self.exchange = next(self._steps, None)
