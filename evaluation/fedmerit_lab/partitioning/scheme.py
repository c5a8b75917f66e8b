"""Partition schemes: how many patients of each class every site gets; pure numbers, the same for the same seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedmerit.errors import BadInput, require_known

SCHEMES = ("uniform", "powerlaw", "dirichlet", "banded", "imbalanced", "variety")
CLASSES = ("source", "size", "intensity", "labels")
FITTING_STEPS = 500  # more than enough for `_variety` to converge
EXPONENT = 1.25  # with 5 to 20 sites, at most 5% of the patients are at another site than with CGSV's released code
ALPHA = 0.5
KAPPA, HOLDERS = 0.6, 1


@dataclass(frozen=True)
class Scheme:
    """The number of sites, and how the patients are split among them.

    Args:
        by: ``uniform``: the same number of patients for every site. ``powerlaw``: site k of N gets a share
            proportional to k^``exponent``, the first the fewest (POW, Sec. 4.1, Xu et al. 2021). ``dirichlet``: for
            every class of patients the sites' shares are one draw of Dir_N(``alpha``) (DIR, Sec. 5.1, Wang et al.
            2024). ``banded``: equal numbers, the ordered classes cut into N bands: by intensity, every site sees a
            narrow range. ``imbalanced``: each of the first ``holders`` sites gets a share of ``kappa``, the others
            share the rest evenly (imbalanced(κ, m), Sec. 5.1, Tastan et al. 2025). ``variety``: equal numbers, of more
            and more classes: the first site's of one, the last's of all, as near as equal sizes allow (CLA, Sec. 4.1,
            Xu et al. 2021).
        into: Number of sites, N >= 1.
        exponent: For ``powerlaw``, 0 (uniform) to 10; default 1.25.
        alpha: For ``dirichlet``, 0.001 (every class at one site) to 1e6 (uniform); default 0.5.
        kappa: For ``imbalanced``, κ, 0 to 1, with something left for the others; default 0.6.
        holders: For ``imbalanced``, m, at least one and fewer than the sites; default 1.
        classes: What a patient's class is: its ``source`` site, or its quarter of all patients by the organ's ``size``
            or ``intensity``, or by the fraction of the labelled pixels that the last of several ``labels`` covers, as
            the cup covers a fraction of the disc. Default: the source; the size for a Dirichlet draw over a single
            source; for ``variety``, which takes only quarters, the labels if there are several, else the size. All
            schemes except ``dirichlet``, ``banded`` and ``variety`` spread every class in proportion.
        seed: Random seed of the assignment and of the Dirichlet draws, 0 or more.
        outlier: Classes, such as sources, that the last site gets and no other site does. The others share the rest.

    Raises:
        BadInput: an argument is out of its range, or belongs to another scheme.
    """

    by: str
    into: int
    exponent: float | None = None
    alpha: float | None = None
    classes: str | None = None
    seed: int = 0
    outlier: tuple[str, ...] = ()
    kappa: float | None = None
    holders: int | None = None

    def __post_init__(self) -> None:
        require_known("scheme", [self.by], SCHEMES)
        require_known("classes", [self.classes] if self.classes else [], CLASSES)
        if self.into < 1:
            raise BadInput(f"into {self.into}: expected a number of sites, 1 or more")
        if self.seed < 0:
            raise BadInput(f"seed {self.seed}: expected 0 or more")
        if self.outlier and self.into < 2:
            raise BadInput(f"outlier {', '.join(self.outlier)}: expected 2 sites or more, the last of which gets it")
        others = self.into - bool(self.outlier)  # sites that the scheme gives patients to
        kept = "; one of the sites is kept for the outlier" if self.outlier else ""
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
        kappa, holders = self._imbalance
        if self.by == "imbalanced" and not (others > holders and kappa * holders < 1):
            raise BadInput(
                f"kappa {kappa:g}, holders {holders}: expected something left for the others of {self.into} sites{kept}"
            )

    @property
    def _imbalance(self) -> tuple[float, int]:
        """The values of κ and m."""
        return KAPPA if self.kappa is None else self.kappa, self.holders or HOLDERS

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters of this scheme, with defaults filled in."""
        if self.by == "powerlaw":
            return {"exponent": float(EXPONENT if self.exponent is None else self.exponent)}
        if self.by == "dirichlet":
            return {"alpha": float(ALPHA if self.alpha is None else self.alpha)}
        if self.by == "imbalanced":
            return {"kappa": float(self._imbalance[0]), "holders": self._imbalance[1]}
        return {}

    def class_shares(self, classes: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        """Return `shares` by the names of the classes; the classes in ``outlier`` go to the last site.

        Raises:
            BadInput: no patient is of a class of ``outlier``, or all are.
        """
        if not self.outlier:
            return dict(zip(classes, self.shares(len(classes)), strict=True))
        known = ", ".join(sorted(classes))
        for name in self.outlier:
            if name not in classes:
                raise BadInput(f"outlier {name}: no such class of patients; there are {known}")
        others = [name for name in classes if name not in self.outlier]
        if not others:
            raise BadInput(f"outlier {', '.join(self.outlier)}: nothing is left for the others; there are {known}")
        rest = replace(self, into=self.into - 1, outlier=()).shares(len(others))
        last = np.eye(self.into)[-1]
        return {**dict(zip(others, np.pad(rest, ((0, 0), (0, 1))), strict=True)), **dict.fromkeys(self.outlier, last)}

    def shares(self, classes: int) -> NDArray[np.float64]:
        """Return (classes, sites) float64: the share of each class that each site gets; rows sum to 1."""
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
            kappa, holders = self._imbalance
            others = np.full(self.into, (1 - kappa * holders) / (self.into - holders))
            return np.tile(np.where(np.arange(self.into) < holders, kappa, others), (classes, 1))
        sizes = np.arange(1, self.into + 1, dtype=np.float64) ** self.parameters.get("exponent", 0)
        return np.tile(sizes / sizes.sum(), (classes, 1))


def _variety(classes: int, sites: int) -> NDArray[np.float64]:
    """Return (classes, sites) shares of sites of equal size, from the fewest possible classes to all, in a ring.

    Each site's classes begin where those of the one before end; proportional fitting makes sites and classes even.
    """
    widths = np.floor(np.linspace(np.ceil(classes / sites), classes, sites) + 1e-9)
    starts = np.cumsum(widths) - widths
    seen = (np.arange(classes)[:, None] - starts) % classes < widths
    shares: NDArray[np.float64] = seen.astype(np.float64)
    for _ in range(FITTING_STEPS):
        shares *= classes / sites / shares.sum(axis=0)
        shares /= shares.sum(axis=1, keepdims=True)
    return shares
