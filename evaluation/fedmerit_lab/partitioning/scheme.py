"""Partition schemes: which share of the patients of each class every site gets, as declared options.

Loads nothing heavy, since the help of the command line needs it: `fedmerit_lab.partitioning.assignment` computes.
"""

from dataclasses import dataclass
from typing import Annotated

from fedmerit.errors import BadInput
from fedmerit.schema.declarations import Shown, check
from fedmerit.schema.rules import About, Choice, Count, Number

SCHEMES = ("uniform", "powerlaw", "dirichlet", "banded", "imbalanced", "variety")
CLASSES = ("source", "size", "intensity", "labels")
EXPONENT = 1.25  # with 5 to 20 sites, at most 5% of the patients are at another site than with CGSV's released code
ALPHA = 0.5
KAPPA, HOLDERS = 0.6, 1
OWNERS = {"exponent": "powerlaw", "alpha": "dirichlet", "kappa": "imbalanced", "holders": "imbalanced"}
VARIANTS = "Noise and duplicates"  # a panel of the help


@dataclass(frozen=True)
class Scheme:
    """The number of sites, and how the patients are split among them.

    The schemes: ``uniform``: the same number of patients for every site. ``powerlaw``: site k of N gets a share
    proportional to k^``exponent``, the first the fewest (POW, Sec. 4.1, Xu et al. 2021). ``dirichlet``: for every class
    of patients the sites' shares are one draw of Dir_N(``alpha``) (DIR, Sec. 5.1, Wang et al. 2024). ``banded``: equal
    numbers, the ordered classes cut into N bands: by intensity, every site sees a narrow range. ``imbalanced``: each of
    the first ``holders`` sites gets a share of ``kappa``, the others share the rest evenly (imbalanced(κ, m), Sec. 5.1,
    Tastan et al. 2025). ``variety``: equal numbers, of more and more classes: the first site's of one, the last's of
    all, as near as equal sizes allow (CLA, Sec. 4.1, Xu et al. 2021).

    All schemes except ``dirichlet``, ``banded`` and ``variety`` spread every class in proportion. ``variety`` takes no
    sources as classes, only quarters of all patients: by the organ's size or intensity, or by the fraction of the
    labelled pixels that the last label covers, as the cup covers a fraction of the disc.

    Raises:
        BadInput: a field is out of its range, or belongs to another scheme.
    """

    by: Annotated[
        str,
        Choice(SCHEMES),
        About("Equal shares; a power law; drawn per class; bands of classes; imbalanced; growing class count."),
    ]
    into: Annotated[int, Count(1), About("Number of sites: site-1, site-2, ...")]
    exponent: Annotated[
        float | None,
        Number(0, 10),
        About("powerlaw: site k gets a share proportional to k^A; 0 is uniform."),
        Shown(default=f"{EXPONENT}"),
    ] = None
    alpha: Annotated[
        float | None,
        Number(1e-3, 1e6),
        About("dirichlet: large is even, small is concentrated."),
        Shown(default=f"{ALPHA}"),
    ] = None
    classes: Annotated[
        str | None,
        Choice(CLASSES),
        About("A patient's class: source site; quarter by organ size, intensity, or the last label's share."),
        Shown(default="source; size for dirichlet over one; labels or size for variety"),
    ] = None
    seed: Annotated[int, Count(), About("Random seed of the assignment and of the draws of shares.")] = 0
    outlier: Annotated[
        tuple[str, ...],
        About("Class, such as a source, all of whose patients go to the last site only; may be repeated."),
        Shown("CLASS", panel=VARIANTS),
    ] = ()
    kappa: Annotated[
        float | None, Number(0, 1), About("imbalanced: κ, the share of each large site."), Shown(default=f"{KAPPA}")
    ] = None
    holders: Annotated[
        int | None,
        Count(1),
        About("imbalanced: m, the number of large sites; the others share the rest evenly."),
        Shown(default=f"{HOLDERS}"),
    ] = None

    def __post_init__(self) -> None:
        try:
            check(self)
        except ValueError as error:
            raise BadInput(str(error)) from None
        if self.outlier and self.into < 2:
            raise BadInput(f"outlier {', '.join(self.outlier)}: expected 2 sites or more, the last of which gets it")
        for name, scheme in OWNERS.items():
            if (value := getattr(self, name)) is not None and self.by != scheme:
                raise BadInput(f"{name} {value:g}: belongs to {scheme}, but the scheme is {self.by}; leave it out")
        if self.by == "variety" and self.classes == "source":
            raise BadInput("classes source: variety needs classes of one size; take size, intensity or labels")
        kappa, holders = self.imbalance
        others = self.into - bool(self.outlier)  # sites that the scheme gives patients to
        if self.by == "imbalanced" and not (others > holders and kappa * holders < 1):
            kept = "; one of the sites is kept for the outlier" if self.outlier else ""
            raise BadInput(
                f"kappa {kappa:g}, holders {holders}: expected something left for the others of {self.into} sites{kept}"
            )

    @property
    def imbalance(self) -> tuple[float, int]:
        """The values of κ and m, with defaults filled in."""
        return KAPPA if self.kappa is None else self.kappa, self.holders or HOLDERS

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters of this scheme, with defaults filled in."""
        if self.by == "powerlaw":
            return {"exponent": float(EXPONENT if self.exponent is None else self.exponent)}
        if self.by == "dirichlet":
            return {"alpha": float(ALPHA if self.alpha is None else self.alpha)}
        if self.by == "imbalanced":
            return {"kappa": float(self.imbalance[0]), "holders": self.imbalance[1]}
        return {}
