"""The options of the guard, and the factors of its bounds."""

from dataclasses import dataclass

from pydantic import ConfigDict

from fedmerit.schema.parameters import Checked, parameter

# times the median of the other sites that `guard.bounds` holds a site to
NORM_FACTOR = 3.0  # Sun et al. 2019 bound norms likewise; honest ones of one round differ by less
STATISTICS_FACTOR = 3.0
COUNT_FACTOR = 3.0  # of the four prostate hospitals the largest has 2.4 times the median of the others


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
    false_alarms: float = parameter(
        0.01, "largest probability of a verdict against any site in a run in which all work", above=0, below=1
    )
    rate_every: int = parameter(
        5,
        "rounds from one rating of the models without each site to the next, on the server's images or with "
        "--share-models; 0: none",
        low=0,
    )
    counts: str = parameter(
        "claimed",
        "images that count: claimed, up to three times the others' median; shown: beyond that median only as far as "
        "the site's updates share more with the others' than theirs do",
        choices=("claimed", "shown"),
    )

    def rates(self, round: int, rounds: int) -> bool:
        """Whether the models without each site may be rated in ``round`` of ``rounds``."""
        due = self.rate_every > 0 and round % self.rate_every == 0
        return self.guard == "on" and due and round + 1 < rounds
