"""Every attack by name, and specs of attacks, such as ``noise`` or ``shifted:from=3:share=0.5``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import ClassVar

from fedmerit.errors import BadInput
from fedmerit.plugins import Catalogue
from fedmerit.schema import declarations
from fedmerit.schema.declarations import Checked, parameter, parse_spec
from fedmerit.site.site import Site


@dataclass(frozen=True, kw_only=True)
class SiteAttack(Checked):
    """What a run needs of an attack. `fedmerit_lab.attacks.attack.Attack` has the hooks that attacks replace."""

    from_: int = parameter(0, "first round of the attack; honest before", low=0)
    earliest: ClassVar[int] = 0  # the first round in which it can be done; honest before

    @property
    def first(self) -> int:
        """The first round that is not honest."""
        return max(self.from_, self.earliest)

    @property
    def others(self) -> tuple[str, ...]:
        """Names of sites that it needs there to be."""
        return ()

    def wrap(self, site: Site) -> Site:
        """The ``site``, following the attack."""
        raise NotImplementedError


STUDY_ATTACKS = ("duplicate", "split")  # they write new site folders: `fedmerit_lab.attacks.sybils.SYBILS`
KINDS: Catalogue[type[SiteAttack]] = Catalogue(
    "attacks",
    {},  # the laboratory brings its own by entry points: pyproject.toml
    lambda part: isinstance(part, type) and issubclass(part, SiteAttack) and is_dataclass(part),
    "a frozen dataclass derived from fedmerit_lab.attacks.attack.Attack",
)


def wrap_attacker(site: Site, spec: str | None) -> Site:
    """The site unchanged, or following the attack of a spec."""
    return site if spec is None else parse(spec).wrap(site)


def parse(spec: str) -> SiteAttack:
    """The attack of a spec; `BadInput` if it is none."""
    attack: SiteAttack = parse_spec(spec, KINDS, "attack")
    return attack


def format_spec(attack: SiteAttack) -> str:
    """The spec of an attack, complete with its defaults; `parse` gives the attack back."""
    return declarations.format_spec(attack, KINDS, separator=":")  # in a setting of several sites commas separate them


def require_possible(specs: Mapping[str, str], sites: Sequence[str], rounds: int) -> dict[str, str]:
    """The specs by site, complete; `BadInput` if a site is not in ``sites``, or there are too few ``rounds``."""
    complete = {}
    for site, spec in specs.items():
        if (kind := str(spec).partition(":")[0]) in STUDY_ATTACKS:
            raise BadInput(
                f"attack {site}={spec}: changes the site folders, which a run does not; use "
                f"`fedmerit lab attacks --kinds {kind} --attackers {site}`"
            )
        attack = parse(str(spec))
        named = [site, *attack.others]
        if unknown := [name for name in named if name not in sites]:
            raise BadInput(f"attack {site}={spec}: no site {unknown[0]}; there are {', '.join(sites)}")
        if attack.first >= rounds:
            raise BadInput(
                f"attack {site}={spec}: begins in round {attack.first}, counted from 0, and there are {rounds}; "
                "train more rounds, or let it begin earlier"
            )
        complete[site] = format_spec(attack)
    return complete
