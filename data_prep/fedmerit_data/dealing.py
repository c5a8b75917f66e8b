"""How many patients each site of a partition gets, and which: numbers alone, the same for the same seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput

SCHEMES = ("uniform", "powerlaw", "dirichlet", "banded", "imbalanced", "variety")
CLASSES = ("source", "size", "intensity", "labels")
FITS = 500  # more than enough for `_variety` to settle
EXPONENT = 1.25  # of 5 to 20 sites, at most 5% of the patients are elsewhere than by CGSV's released code
ALPHA = 0.5
KAPPA, HOLDERS = 0.6, 1


@dataclass(frozen=True)
class Scheme:
    """How many sites, and how the patients are shared out among them.

    Args:
        by: ``uniform``: as many patients each. ``powerlaw``: site k of N gets a share proportional to
            k^``exponent``, the first the fewest (POW, Sec. 4.1, Xu et al. 2021). ``dirichlet``: for every class of
            patients the sites' shares are one draw of Dir_N(``alpha``) (DIR, Sec. 5.1, Wang et al. 2024). ``banded``:
            as many each, the classes in order cut into N bands: by intensity, every site sees a narrow range.
            ``imbalanced``: each of the first ``holders`` sites gets a share of ``kappa``, the others share the rest
            evenly (imbalanced(κ, m), Sec. 5.1, Tastan et al. 2025). ``variety``: as many each, of more and more
            classes: the first site's of one, the last's of all, as near as equal sizes allow (CLA, Sec. 4.1, Xu et al.
            2021).
        into: Number of sites, N >= 1.
        exponent: For ``powerlaw``, 0 (uniform) to 10; 1.25 where not given.
        alpha: For ``dirichlet``, 0.001 (every class at one site) to 1e6 (uniform); 0.5 where not given.
        kappa: For ``imbalanced``, κ, 0 to 1, with something left for the others; 0.6 where not given.
        holders: For ``imbalanced``, m, at least one and fewer than the sites; 1 where not given.
        classes: What a patient's class is: its ``source`` site, or which quarter of all patients it belongs to by
            the organ's ``size`` or ``intensity``, or by the part that the last of several ``labels`` has of all that is
            labelled, as the cup has of the disc. Where not given, the source; the size for a Dirichlet draw over a
            single source; for ``variety``, which takes quarters alone, the labels where there are several, else the
            size. All but ``dirichlet``, ``banded`` and ``variety`` spread every class in proportion.
        seed: Moves who goes where, and the Dirichlet draws.
        alone: Classes, such as sources, that the last site gets and no other: an outlier. The others share the rest.

    Raises:
        BadInput: an argument is out of its range, or belongs to another scheme.
    """

    by: str
    into: int
    exponent: float | None = None
    alpha: float | None = None
    classes: str | None = None
    seed: int = 0
    alone: tuple[str, ...] = ()
    kappa: float | None = None
    holders: int | None = None

    def __post_init__(self) -> None:
        if self.by not in SCHEMES:
            raise BadInput(f"scheme {self.by!r}: expected one of {', '.join(SCHEMES)}")
        if self.classes not in (None, *CLASSES):
            raise BadInput(f"classes {self.classes!r}: expected one of {', '.join(CLASSES)}")
        if self.into < 1:
            raise BadInput(f"into {self.into}: expected a number of sites, 1 or more")
        if self.seed < 0:
            raise BadInput(f"seed {self.seed}: expected 0 or more")
        if self.alone and self.into < 2:
            raise BadInput(f"alone {', '.join(self.alone)}: expected 2 sites or more, the last of which gets it")
        others = self.into - bool(self.alone)  # sites that the scheme deals to
        kept = "; one of the sites is kept for alone" if self.alone else ""
        for name, scheme, low, high in (
            ("exponent", "powerlaw", 0, 10),
            ("alpha", "dirichlet", 1e-3, 1e6),
            ("kappa", "imbalanced", 0, 1),
            ("holders", "imbalanced", 1, max(1, others - 1)),
        ):
            value = getattr(self, name)
            if value is not None and self.by != scheme:
                raise BadInput(f"{name} {value:g}: belongs to {scheme}, but the scheme is {self.by}; leave it out")
            if value is not None and not low <= value <= high:
                raise BadInput(f"{name} {value:g}: expected {low:g} to {high:g}{kept * (name == 'holders')}")
        if self.by == "variety" and self.classes == "source":
            raise BadInput("classes source: variety needs classes of one size; take size, intensity or labels")
        if self.by == "imbalanced" and not (others > self._held[1] and self._held[0] * self._held[1] < 1):
            raise BadInput(
                f"kappa {self._held[0]:g}, holders {self._held[1]}: expected something left for the others of "
                f"{self.into} sites{kept}"
            )

    @property
    def _held(self) -> tuple[float, int]:
        """κ and m."""
        return KAPPA if self.kappa is None else self.kappa, self.holders or HOLDERS

    @property
    def parameters(self) -> dict[str, float]:
        """The scheme's own parameter, its default where none was given."""
        if self.by == "powerlaw":
            return {"exponent": float(EXPONENT if self.exponent is None else self.exponent)}
        if self.by == "dirichlet":
            return {"alpha": float(ALPHA if self.alpha is None else self.alpha)}
        if self.by == "imbalanced":
            return {"kappa": float(self._held[0]), "holders": self._held[1]}
        return {}

    def shares_of(self, classes: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        """`shares` by the names of the classes, with what `alone` says of some of them.

        Raises:
            BadInput: no patient is of a class of ``alone``, or all are of those.
        """
        if not self.alone:
            return dict(zip(classes, self.shares(len(classes)), strict=True))
        known = ", ".join(sorted(classes))
        for name in self.alone:
            if name not in classes:
                raise BadInput(f"alone {name}: no such class of patients; there are {known}")
        others = [name for name in classes if name not in self.alone]
        if not others:
            raise BadInput(f"alone {', '.join(self.alone)}: nothing is left for the others; there are {known}")
        rest = replace(self, into=self.into - 1, alone=()).shares(len(others))
        last = np.eye(self.into)[-1]
        return {**dict(zip(others, np.pad(rest, ((0, 0), (0, 1))), strict=True)), **dict.fromkeys(self.alone, last)}

    def shares(self, classes: int) -> NDArray[np.float64]:
        """(classes, sites) float64: which share of a class each site gets; rows sum to 1."""
        if self.by == "banded":
            ends, cuts = np.linspace(0, 1, classes + 1), np.linspace(0, 1, self.into + 1)
            overlap = np.minimum(ends[1:, None], cuts[1:]) - np.maximum(ends[:-1, None], cuts[:-1])
            return np.asarray(overlap.clip(min=0) * classes)
        if self.by == "dirichlet":
            rng = np.random.default_rng([self.seed, *b"shares"])
            return rng.dirichlet(np.full(self.into, self.parameters["alpha"]), size=classes)
        if self.by == "variety":
            return _variety(classes, self.into)
        if self.by == "imbalanced":
            kappa, holders = self._held
            others = np.full(self.into, (1 - kappa * holders) / (self.into - holders))
            return np.tile(np.where(np.arange(self.into) < holders, kappa, others), (classes, 1))
        sizes = np.arange(1, self.into + 1, dtype=np.float64) ** self.parameters.get("exponent", 0)
        return np.tile(sizes / sizes.sum(), (classes, 1))


def _variety(classes: int, sites: int) -> NDArray[np.float64]:
    """(classes, sites) shares of sites of equal size that see from the fewest classes they can to all, in a ring.

    Each site's classes begin where those of the one before end; proportional fitting makes sites and classes even.
    """
    widths = np.floor(np.linspace(np.ceil(classes / sites), classes, sites) + 1e-9)
    starts = np.cumsum(widths) - widths
    seen = (np.arange(classes)[:, None] - starts) % classes < widths
    shares: NDArray[np.float64] = seen.astype(np.float64)
    for _ in range(FITS):
        shares *= classes / sites / shares.sum(axis=0)
        shares /= shares.sum(axis=1, keepdims=True)
    return shares


def apportion(total: int, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """``total`` patients to sites in proportion to ``shares`` (sites,), at least one each: largest remainders.

    Sites whose proportional part is below one get one, and the others share what is left in proportion; equal
    remainders (to nine digits, as sums of shares are rounded) go to the first. ``total`` is at least the number of
    sites.
    """
    quotas = np.ones(len(shares))
    small = np.zeros(len(shares), dtype=bool)
    while not small.all():
        quotas[~small] = (total - small.sum()) * shares[~small] / shares[~small].sum()
        below = ~small & (quotas < 1)
        if not below.any():
            break
        quotas[below] = 1
        small |= below
    counts = np.floor(quotas + 1e-9).astype(np.int64)
    order = np.argsort(-np.round(quotas - counts, 9), kind="stable")
    counts[order[: total - counts.sum()]] += 1
    return counts


def deal(classes: NDArray[np.int64], shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """The site of each patient, given their ``classes`` (patients,), equal ones adjacent, and `Scheme.shares`.

    How many each site gets is `apportion` of what it expects. Its patients stand where its expectation, summed along
    the row of patients, passes halves: every class is dealt as its shares say, as near as whole patients allow.
    """
    expected = np.cumsum(shares[classes], axis=0)
    counts = apportion(len(classes), expected[-1])
    row = np.arange(len(classes) + 1)
    places = [
        np.interp((np.arange(count) + 0.5) / count * summed[-1], [0, *summed], row)
        for count, summed in zip(counts, expected.T, strict=True)
    ]
    return np.repeat(np.arange(len(counts)), counts)[np.argsort(np.concatenate(places), kind="stable")]
