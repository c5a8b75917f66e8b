"""Label noise: masks with a stated share of deliberate errors, for studies of sites with poor labels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from fedmerit.errors import BadInput, require_known

Mask = NDArray[np.uint8]  # (labels, height, width) of 0 and 1: one slice
Rule = Callable[[Mask, Mask, np.random.Generator], Mask]  # mask, another patient's mask, draws: the mask to store


@dataclass(frozen=True)
class TrainingMasks:
    """The masks that one case trains on: ``label`` is (slices, labels, height, width), ``slices`` those used."""

    case: str
    patient: str
    label: NDArray[np.uint8]
    slices: Sequence[int]


@dataclass(frozen=True)
class Disturbed:
    """A case's masks, the slices ``positions`` of which are wrong."""

    label: NDArray[np.uint8]
    positions: tuple[int, ...]


def _moved(mask: Mask, angle: float) -> Mask:
    """Return the mask moved by half of its extent in a direction ``angle`` [radians]."""
    rows, columns = np.nonzero(mask.any(axis=0))
    extent = np.array([np.ptp(rows) + 1, np.ptp(columns) + 1])
    step = np.array([np.sin(angle), np.cos(angle)]) * extent / 2
    whole = np.sign(step) * np.ceil(np.abs(step))  # away from 0: no mask stays where it was
    moved: Mask = ndimage.shift(mask, (0, *whole), order=0, cval=0)
    return moved


RULES: Mapping[str, Rule] = {
    "shift": lambda mask, other, rng: _moved(mask, rng.uniform(0, 2 * np.pi)),  # in a random direction
    "offset": lambda mask, other, rng: _moved(mask, 0.0),  # towards higher columns, all masks of a site alike
    "swap": lambda mask, other, rng: other,  # of a training slice of another patient of the site, one that differs
}


def disturb(
    site: str, masks: Sequence[TrainingMasks], share: float, rule: str, seed: Sequence[int]
) -> dict[str, Disturbed]:
    """Return the cases that change, by name: ``share`` of all training slices that show a label get a wrong mask.

    Their number is the nearest whole one. For one ``seed``, the slices of a smaller share are among those of a
    larger one, and wrong in the same way. Slices without a label are unchanged.

    Raises:
        BadInput: the share is not above 0 and at most 1, or less than half of a slice; the rule is not in `RULES`; no
            slice shows a label; or there is no other patient, or none whose mask differs, to ``swap`` with.
    """
    if not 0 < share <= 1:
        raise BadInput(f"label noise {site}={share:g}: expected a share above 0 and at most 1")
    require_known("noise rule", [rule], RULES)
    shown = [(case, position) for case in masks for position in case.slices if case.label[position].any()]
    if not shown:
        raise BadInput(f"label noise {site}: none of its training slices shows a label; choose another site")
    if rule == "swap" and len({case.patient for case, _ in shown}) < 2:
        raise BadInput(f"label noise {site}: swapping needs 2 training patients with masks; choose another rule")
    count = int(share * len(shown) + 0.5)
    if not count:
        raise BadInput(
            f"label noise {site}={share:g}: none of its {len(shown)} training slices that show a label would be wrong; "
            f"a share of {1 / len(shown):.2g} is one slice"
        )
    chosen = np.random.default_rng(seed).permutation(len(shown))[:count]
    changed: dict[str, Disturbed] = {}
    for place in sorted(chosen.tolist()):
        case, position = shown[place]
        rng = np.random.default_rng([*seed, place])  # of its own: it does not move with the share
        mask = np.array(case.label[position])
        row = (shown[other] for other in rng.permutation(len(shown)))
        others = (donor.label[there] for donor, there in row if donor.patient != case.patient)
        other = next((candidate for candidate in others if (candidate != mask).any()), mask)
        if rule == "swap" and other is mask:
            raise BadInput(
                f"label noise {site}: no other training patient's mask differs from one of {case.case}; "
                "choose another rule"
            )
        before = changed.get(case.case, Disturbed(np.array(case.label), ()))
        before.label[position] = RULES[rule](mask, other, rng)
        changed[case.case] = Disturbed(before.label, (*before.positions, position))
    return changed
