"""Whether a free rider can be named: by the paper's value, its cosine's fall, both, its loss; functions of results.

A rule names sites after some rounds of a run; it is right where it names the rider and nobody else, wrong where it
names an honest site. Runs are read after several numbers of rounds, so that one training serves all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.freeriders import detectors
from fedmerit_evaluation.freeriders.detectors import DETECTORS, Detector, of_rounds
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.attacked_runs import HONEST, Attack

RIGHTLY, FALSELY = "Rider named alone [%]", "Honest site named [%]"
WINDOW = 5  # rounds, of the means whose difference is a fall


def cosine_drops(results: Results) -> pd.DataFrame:
    """How far each site's cosine to the mean update fell, beyond the median of the sites: ``(run, round)`` x sites.

    From the mean of the first `WINDOW` rounds to that of the last ones; 0 before the two part. "The similarity between
    local gradients from the free rider and global [ones] decreases" (Appendix C, Jiang et al. 2023), of all sites
    where training converges.
    """
    cosines = of_rounds(results, "cosine_to_mean")
    if cosines.empty:
        return cosines
    runs = cosines.groupby(level="run")
    early = runs.transform(lambda column: column.iloc[:WINDOW].mean())
    recent = runs.rolling(WINDOW, min_periods=1).mean().droplevel(0).reindex(cosines.index)
    falls = (early - recent).where(runs.cumcount() >= WINDOW, 0.0).where(cosines.notna())
    return falls.sub(falls.median(axis=1), axis=0)


VALUE = next(detector for detector in DETECTORS if detector.name == "free-rider value")
FALL = Detector(
    "cosine's fall",
    "the cosine to the mean update fell by 0.1 more than the sites' median did, and most of all by far",
    "Figure 7, Jiang et al. 2023, which prints no bound",
    cosine_drops,
    threshold=0.1,
    lead=2.0,
)


def low_losses(results: Results) -> pd.DataFrame:
    """How far each site's training loss is below the median site's, as a part of it: ``(run, round)`` x sites.

    Of means over `WINDOW` rounds; below 0 where it is above. Whoever trains on one image soon knows it by heart. It is
    the site's own word, as its error is.
    """
    recent = of_rounds(results, "train_loss").groupby(level="run").rolling(WINDOW, min_periods=1).mean().droplevel(0)
    return 1 - recent.div(recent.median(axis=1), axis=0)


LOSS = Detector(
    "training loss",
    "the training loss is below 0.6 of the median site's",
    "none of the papers; the bound by six generated hospitals, seeds 0 to 2 (docs/freeriders.md)",
    low_losses,
    threshold=0.4,
)


@dataclass(frozen=True)
class Rule:
    """One way to name: a site that all of its detectors flag in the round."""

    name: str
    detectors: tuple[Detector, ...]

    def flags(self, results: Results) -> pd.DataFrame:
        """Whether each site is named in each round: ``(run, round)`` x sites, bool."""
        first, *others = (detectors.flags(one, one.suspicion(results)) for one in self.detectors)
        for other in others:
            first = first & other.reindex_like(first).fillna(False).astype(bool)
        return first

    def suspicion(self, results: Results) -> pd.DataFrame:
        """What they say together, where it is of several: their product, what speaks for a site being 0."""
        first, *others = (one.suspicion(results) for one in self.detectors)
        for other in others:
            first = first.clip(lower=0) * other.clip(lower=0)
        return first


RULES = (Rule(VALUE.name, (VALUE,)), Rule(FALL.name, (FALL,)), Rule("both", (VALUE, FALL)), Rule(LOSS.name, (LOSS,)))


def detection_rates(attacks: Sequence[Attack], results: Results, after: Sequence[int]) -> Table:
    """Method and attack, rounds, rule: how often the rider is named alone, and how often an honest site is.

    Args:
        attacks: of a study; runs in which all are honest count for the honest sites.
        results: theirs, with Dice of what sites trained.
        after: numbers of rounds, of which those are left out that the runs do not have.

    Raises:
        BadInput: the results hold no Dice of the models that sites trained.
    """
    there = [attack for attack in attacks if attack.folder.name in set(results.rows["run"])]
    said = {rule.name: (rule.flags(results), rule.suspicion(results)) for rule in RULES}
    rows = []
    for label, kind in dict.fromkeys((one.label, one.kind) for one in there if one.kind != HONEST):
        ridden = [one for one in there if (one.label, one.kind) == (label, kind)]
        honest = [one for one in there if (one.label, one.kind) == (label, HONEST)]
        for rounds in after:
            for rule, (flags, suspicion) in said.items():
                found = [_in_one(one, flags, suspicion, rounds) for one in (*ridden, *honest)]
                if any(one is None for one in found[: len(ridden)]):
                    continue
                rows.append(
                    {"Method": label, "Behaviour": kind, "After rounds": rounds, "Rule": rule}
                    | _summary([one for one in found[: len(ridden)] if one], [one for one in found if one])
                )
    caption = (
        "Of runs with a rider: how often the rule names it and nobody else, how often it is the most suspicious, AUROC "
        "over sites; of all runs, those in which all are honest among them: how often an honest site is named. "
        "Read after so many of the runs' rounds"
    )
    return Table("naming", caption, pd.DataFrame(rows), decimals=2)


@dataclass(frozen=True)
class _Found:
    riders: frozenset[str]
    named: frozenset[str]
    suspicions: "pd.Series[float]"  # by site


def _in_one(attack: Attack, flags: pd.DataFrame, suspicion: pd.DataFrame, rounds: int) -> _Found | None:
    """What is said in a run after so many rounds; None where it has fewer."""
    place = (attack.folder.name, rounds - 1)
    if place not in flags.index:
        return None
    named = flags.columns[flags.loc[[place]].to_numpy(bool)[0]]
    said = suspicion.loc[[place]].iloc[0].dropna()
    return _Found(frozenset(attack.riders), frozenset(map(str, named)), said)


def _summary(ridden: Sequence[_Found], every: Sequence[_Found]) -> dict[str, float]:
    of_riders = [value for one in ridden for site, value in one.suspicions.items() if site in one.riders]
    of_honest = [value for one in ridden for site, value in one.suspicions.items() if site not in one.riders]
    tied = [one.suspicions.index[one.suspicions == one.suspicions.max()] for one in ridden]
    highest = [float(np.mean(top.isin(one.riders))) if len(top) else 0.0 for one, top in zip(ridden, tied, strict=True)]
    return {
        "Runs": len(ridden),
        RIGHTLY: 100 * sum(one.named == one.riders for one in ridden) / len(ridden),
        "Rider highest [%]": 100 * sum(highest) / len(ridden),
        FALSELY: 100 * sum(bool(one.named - one.riders) for one in every) / len(every),
        "AUROC": detectors.auroc(of_riders, of_honest),
    }
