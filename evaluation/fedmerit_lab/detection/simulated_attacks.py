"""The attacks that the comparison of detectors simulates: which site follows which attack on site folders."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import open_sites

HONEST = "honest"


@dataclass(frozen=True)
class Roles:
    """A division of roles among the sites."""

    attacker: str
    partner: str  # of two that collude
    trusted: str  # known to be honest
    outlier: str = ""  # honest, with images unlike the others'; "": none is known


def assign_roles(sites: Path, attacker: str | None = None, outlier: str | None = None) -> Roles:
    """Return roles by name: the last site except the outlier attacks; the first others are partner and trusted.

    Raises:
        BadInput: a named site is not there, or fewer than three sites are left.
    """
    names = [folder.name for folder in open_sites(sites)]
    for name in (attacker, outlier):
        if name is not None and name not in names:
            raise BadInput(f"{sites}: holds no site {name}; there are {', '.join(names)}")
    chosen = attacker or [name for name in names if name != outlier][-1]
    others = [name for name in names if name not in (chosen, outlier)]
    if len(others) < 2:
        raise BadInput(f"{sites}: has {len(names)} sites; an attacker, a partner and a trusted site are needed")
    return Roles(chosen, others[0], others[1], outlier or "")


@dataclass(frozen=True)
class SimulatedAttack:
    """An attack on site folders.

    Args:
        specs: from roles and number of rounds, by site the spec of its attack.
        sybil: a key of `fedmerit_lab.attacks.sybils.SYBILS`, by which the site folders change; "": they do not.
        first: from the number of rounds, the first round that is not honest.
    """

    specs: Callable[[Roles, int], Mapping[str, str]]
    sybil: str = ""
    first: Callable[[int], int] = lambda rounds: 0


def _by_one(spec: str) -> SimulatedAttack:
    return SimulatedAttack(lambda roles, rounds: {roles.attacker: spec})


def _rigged_by_two(roles: Roles, rounds: int) -> Mapping[str, str]:
    pair = (roles.attacker, roles.partner)
    return dict.fromkeys(pair, f"rigged:friends={'+'.join(pair)}")


ATTACKS: Mapping[str, SimulatedAttack] = {
    HONEST: SimulatedAttack(lambda roles, rounds: {}),
    "zero update": _by_one("zero"),
    "zero update from the middle on": SimulatedAttack(
        lambda roles, rounds: {roles.attacker: f"zero:from={rounds // 2}"}, first=lambda rounds: rounds // 2
    ),
    "zero update, two rounds of three": _by_one("rests"),
    "zero update, every other round": _by_one("rests:every=2"),
    "zero update, one round of three": _by_one("rests:works=2"),
    "noise of an honest norm": _by_one("noise"),
    "last step": _by_one("delta"),
    "last step and noise, cosine .83": _by_one("delta:noise=0.67"),
    "replay": _by_one("replay"),
    "knows the rules": _by_one("adaptive"),
    "one image, repeated": _by_one("repeat"),
    "a part of the images": _by_one("partial"),
    "shifted masks": _by_one("shifted"),
    "11 % of the honest update": _by_one("scaled:by=0.11"),
    "10,000 times the honest update": _by_one("scaled:by=10000"),
    "signs reversed": _by_one("sign-flip"),
    "half the signs reversed": _by_one("half-flip"),
    "claims the best of itself": _by_one("inflated:what=minus_error"),
    "zero update and claims": _by_one("zero-inflated"),
    "claims 1,000 times its images": _by_one("inflated:what=num_samples:by=1000"),
    "rigs the evaluation": SimulatedAttack(lambda roles, rounds: {roles.attacker: f"rigged:friends={roles.attacker}"}),
    "two rig the evaluation": SimulatedAttack(_rigged_by_two),
    "two exact copies": SimulatedAttack(
        lambda roles, rounds: {f"{roles.attacker}-copy": f"twin:of={roles.attacker}"}, "duplicate"
    ),
    "two copies, cosine .77": SimulatedAttack(
        lambda roles, rounds: {f"{roles.attacker}-copy": f"near-twin:of={roles.attacker}:noise=0.83"}, "duplicate"
    ),
    "a site split in two": SimulatedAttack(lambda roles, rounds: {}, "split"),
}
WORST = (  # those with the largest gain in docs/guard.md, and those that are hardest to detect
    "a site split in two",
    "claims 1,000 times its images",
    "signs reversed",
    "half the signs reversed",
    "knows the rules",
    "last step and noise, cosine .83",
    "noise of an honest norm",
    "zero update and claims",
    "two rig the evaluation",
    "two copies, cosine .77",
)
