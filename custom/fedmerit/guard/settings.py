"""The options of the guard."""

from dataclasses import dataclass

from pydantic import ConfigDict

from fedmerit.parameters import Checked, parameter


@dataclass(frozen=True)
class GuardSettings(Checked):
    """Whether replies are bounded and judged before the method gets them, and what a verdict does."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # an unknown name is an error
    guard: str = parameter("off", "on: the rules of docs/guard.md; off: the papers' forms", choices=("on", "off"))
    on_verdict: str = parameter(
        "withhold",
        "show: report it; withhold: no contribution, weight or reward while the evidence stands; exclude: for good",
        choices=("show", "withhold", "exclude"),
    )
    rate_every: int = parameter(5, "rounds from one rating of the models without each site to the next", low=1)
