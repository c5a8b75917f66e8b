"""What is readable and yet not plausible: sizes, volumes, borders, flips, intensities, label conventions."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_prep.conventions import Regions, conventions, regions, told
from data_prep.duplicates import Look, duplicates, look
from data_prep.findings import Finding, Located
from fedmerit.files import read_json
from fedmerit.training.data import SPLITS, SiteFolder

# Largest cross-section in cm² where the pixel is known in mm, else share of the frame: beyond these no organ is drawn.
SIZES_CM2: Mapping[str, tuple[float, float]] = {"prostate": (3, 70)}
SHARES: Mapping[str, tuple[float, float]] = {"prostate": (0.001, 0.6), "disc": (0.002, 0.8), "cup": (0.0002, 0.6)}
# Millilitres: series of prostate MRI have medians of 26 to 54 ml (Christie and Sharpley, Prostate Cancer 2019, review);
# beyond 500 g it is giant prostatic hyperplasia, of which there are case reports.
VOLUMES_ML: Mapping[str, tuple[float, float]] = {"prostate": (5, 500)}
WITHIN = {"cup": "disc"}
ASTRAY = 0.05
# How many robust deviations from the median are too many, and the least deviation: of the logarithm of sizes, and of
# intensities, which have deviation 1 in each case.
SIZE_OUTLIER, SIZE_SPREAD = 6.0, 0.1
LEVEL_OUTLIER, LEVEL_SPREAD = 8.0, 0.1
# By how much a volume has to agree better with its site's others when flipped. Of 35 real volumes none did by chance;
# flipped ones were found upside down in 35 and with their slices reversed in 34 cases. Left and right of a pelvis, and
# upside down in photographs, which are alike, are not told apart; nor do masks alone tell: they are too symmetric.
FLIPPED = 0.05
FLIPS = {"slices in reverse order": 0, "upside down": 1}
COMPARABLE = 5  # cases of a site, below which no case can be called unlike the others
FEW_PATIENTS = 3
GRID = (8, 16, 16)  # slices, height, width of thumbnails


@dataclass(frozen=True)
class Measured:
    """What the checks need to know of one case; sizes are per label."""

    where: Located
    look: Look | None  # None: a flat image
    sizes: NDArray[np.float64]  # largest cross-section, as a share of the frame
    volumes: NDArray[np.float64] | None  # ml; None where the case does not say how far apart its voxels lie
    regions: Regions | None  # None: a label is nowhere or everywhere
    at_border: NDArray[np.bool_]
    at_end: NDArray[np.bool_]
    thumbnail: NDArray[np.float64] | None  # of shape GRID; None for photographs
    levels: NDArray[np.float64]  # percentiles of all intensities
    astray: Mapping[tuple[str, str], float]  # share of the inner label that lies outside the outer one

    @property
    def disordered(self) -> bool:
        """Whether a label lies outside the one that it should be part of."""
        return any(share > ASTRAY for share in self.astray.values())

    @property
    def flat(self) -> bool:
        """Whether there is next to nothing to see."""
        return bool(self.levels[0] == self.levels[-1])


def plausibility(
    sites: Sequence[SiteFolder], cases: Sequence[Located], checksums: Mapping[Path, str]
) -> Iterator[Finding]:
    """Findings about ``cases``, whose arrays are readable and of the stated shape, and their ``sites``."""
    spacings = {site.path: _spacings(site) for site in sites}
    measured = [_measure(case, spacings[case.site.path].get(case.case.name)) for case in cases]
    yield from _few_patients(sites)
    yield from duplicates([(case.where, case.look) for case in measured if case.look is not None], checksums)
    yield from _sizes(measured)
    yield from _volumes(measured)
    yield from _conventions(measured)
    yield from _borders(measured)
    for _, group in groupby(measured, key=lambda item: item.where.site.path):
        site = list(group)
        yield from _flat(site)
        if len(site) >= COMPARABLE:
            yield from _flips(site)
            yield from _intensities(site)


def _spacings(site: SiteFolder) -> dict[str, tuple[float, ...]]:
    """By case, the mm between stored slices, rows and columns, where datalist.json states all three."""
    lists = read_json(site.path / "datalist.json")
    stated = {entry["case"]: entry.get("spacing") for split in site.splits for entry in lists.get(split, [])}
    return {
        case: tuple(float(step) for step in spacing)
        for case, spacing in stated.items()
        if isinstance(spacing, list)
        and len(spacing) == 3
        and all(isinstance(step, int | float) and 0 < step < np.inf for step in spacing)
    }


def _measure(where: Located, spacing: tuple[float, ...] | None) -> Measured:
    image, label = np.asarray(where.case.image), np.asarray(where.case.label).astype(bool)
    names = where.site.labels
    middle = image[len(image) // 2].mean(axis=0)
    volume = len(image) > 1
    top_or_bottom = np.asarray(label[..., [0, -1], :].any(axis=(0, 2, 3)))
    left_or_right = np.asarray(label[..., [0, -1]].any(axis=(0, 2, 3)))
    first_or_last = np.asarray(label[[0, -1]].any(axis=(0, 2, 3)))
    return Measured(
        where=where,
        look=look(middle),
        sizes=label.mean(axis=(2, 3)).max(axis=0),
        volumes=None if spacing is None else label.sum(axis=(0, 2, 3)) * np.prod(spacing) / 1000,
        regions=regions(image, label),
        at_border=np.logical_or(top_or_bottom, left_or_right),
        at_end=np.logical_and(first_or_last, volume),
        thumbnail=_thumbnail(image) if volume else None,
        levels=np.percentile(image, (5, 25, 50, 75, 95)),
        astray={
            (inner, outer): _astray(label[:, names.index(inner)], label[:, names.index(outer)])
            for inner, outer in WITHIN.items()
            if inner in names and outer in names
        },
    )


def _thumbnail(image: NDArray[np.float32]) -> NDArray[np.float64]:
    """Slices at even distances from the first to the last, each averaged down to a few pixels."""
    places = np.linspace(0, len(image) - 1, GRID[0]).round().astype(int)
    taken: NDArray[np.float64] = image[places].mean(axis=1, dtype=np.float64)
    for axis in (1, 2):
        parts = np.array_split(taken, GRID[axis], axis=axis)
        taken = np.stack([part.mean(axis=axis) for part in parts], axis=axis)
    return taken


def _astray(inner: NDArray[np.bool_], outer: NDArray[np.bool_]) -> float:
    return float((inner & ~outer).sum() / max(inner.sum(), 1))


def _few_patients(sites: Sequence[SiteFolder]) -> Iterator[Finding]:
    for site in sites:
        for split in SPLITS:
            patients = len({case.patient for case in site.cases(split)})
            if 0 < patients < FEW_PATIENTS:
                detail = f"{patients} patient(s)"
                message = f"split {split} has {detail}; below {FEW_PATIENTS} its results say little"
                yield Finding("few patients", site.name, site.path / "datalist.json", message, split, detail=detail)


def _sizes(cases: Sequence[Measured]) -> Iterator[Finding]:
    """Absolute bounds per label, then outliers among the cases of all sites that show the label."""
    by_label: dict[str, list[tuple[Located, float, str, tuple[float, float]]]] = defaultdict(list)
    for case in cases:
        if case.disordered:
            continue  # told by `_conventions`; sizes of labels that are mixed up follow from that
        site = case.where.site
        spacing = site.info.get("spacing")
        for name, share in zip(site.labels, case.sizes, strict=True):
            size, unit, bounds = share * 100, "% of the frame", tuple(100 * end for end in SHARES.get(name, (0, 1)))
            if spacing and name in SIZES_CM2:
                size = share * np.prod(site.image_size) * np.prod(spacing) / 100
                unit, bounds = "cm²", SIZES_CM2[name]
            if share > 0:
                by_label[name].append((case.where, float(size), unit, (bounds[0], bounds[1])))
    for name, found in by_label.items():
        logarithms = np.log([size for _, size, _, _ in found])
        unusual = _outlying(logarithms[:, None], SIZE_OUTLIER, SIZE_SPREAD)
        usual = np.exp(np.median(logarithms))
        for (where, size, unit, (low, high)), outlying in zip(found, unusual, strict=True):
            if not low <= size <= high:
                kind, expected = "implausible size", f"expected {low:g} to {high:g}"
            elif outlying and len(found) >= COMPARABLE:
                kind, expected = "unusual size", f"{usual:.3g} in the median case"
            else:
                continue
            detail = f"largest {name} {size:.3g} {unit}, {expected}"
            yield where.finding(kind, f"{detail}; look at the mask", file=where.case.label_file, detail=detail)


def _volumes(cases: Sequence[Measured]) -> Iterator[Finding]:
    """Bounds in ml, of volumes that state where their voxels lie; a note per site of how many do not."""
    for _, group in groupby(cases, key=lambda item: item.where.site.path):
        members = [case for case in group if case.thumbnail is not None]
        site = members[0].where.site if members else None
        for position, name in enumerate(site.labels if site else ()):
            if site is None or name not in VOLUMES_ML:
                continue
            low, high = VOLUMES_ML[name]
            for case in members:
                if case.volumes is not None and case.sizes[position] and not low <= case.volumes[position] <= high:
                    detail = f"{name} of {case.volumes[position]:.3g} ml, expected {low:g} to {high:g}"
                    message = f"{detail}; look at the mask, and at the spacing that the file states"
                    yield case.where.finding(
                        "implausible volume", message, file=case.where.case.label_file, detail=detail
                    )
            if unknown := sum(case.volumes is None for case in members):
                detail = f"{unknown} of {len(members)} cases"
                message = (
                    f"{detail} do not state, or only nominally, how far apart their slices lie: no volume of {name}"
                )
                yield Finding("unknown volume", site.name, site.path / "datalist.json", message, detail=detail)


def _outlying(values: NDArray[np.float64], most: float, least_spread: float) -> NDArray[np.bool_]:
    """Which rows of (cases, values) lie far from the others in any column, by median and median deviation."""
    away = np.abs(values - np.median(values, axis=0))
    spread = np.maximum(1.4826 * np.median(away, axis=0), least_spread)
    return np.asarray((away > most * spread).any(axis=1))


def _conventions(cases: Sequence[Measured]) -> Iterator[Finding]:
    """Labels that mean something else, in a site by itself or beside the others; else single cases are told."""
    comparable: dict[tuple[str, ...], dict[SiteFolder, list[Regions]]] = defaultdict(dict)  # by what labels are called
    for _, group in groupby(cases, key=lambda item: item.where.site.path):
        members = list(group)
        site = members[0].where.site
        mixed_up = False
        for inner, outer in members[0].astray:
            wrong = [case for case in members if case.astray[inner, outer] > ASTRAY]
            if len(wrong) > len(members) / 2:
                mixed_up = True
                detail = f"{inner} not within {outer} in {len(wrong)} of {len(members)} cases"
                message = f"{detail}; the two may be swapped, or {outer} drawn without the {inner}: check the label map"
                yield Finding("label convention", site.name, site.path / "site.json", message, detail=detail)
                continue
            for case in wrong:
                detail = f"{case.astray[inner, outer]:.0%} of the {inner} outside the {outer}"
                yield case.where.finding("label order", detail, file=case.where.case.label_file, detail=detail)
        if not mixed_up:
            comparable[site.labels][site] = [case.regions for case in members if case.regions is not None]
    for site, reading, misfit, other in chain.from_iterable(map(conventions, comparable.values())):
        detail = (
            f"fits the other sites far better with {told(reading, site.labels)} (misfit {misfit:.1f}, so {other:.1f})"
        )
        message = f"{detail}; where there are but two sites either may be the wrong one: check the label maps"
        yield Finding("label convention", site.name, site.path / "site.json", message, detail=detail)


def _borders(cases: Sequence[Measured]) -> Iterator[Finding]:
    for case in cases:
        for kind, touching in (("mask at border", case.at_border), ("mask at end", case.at_end)):
            names = [name for name, touches in zip(case.where.site.labels, touching, strict=True) if touches]
            if names:
                detail = ", ".join(names)
                place = "border of the frame" if kind == "mask at border" else "first or last slice"
                message = f"{detail} reaches the {place}"
                yield case.where.finding(kind, message, file=case.where.case.label_file, detail=detail)


def _flat(site: Sequence[Measured]) -> Iterator[Finding]:
    for case in site:
        if case.flat:
            yield case.where.finding("flat image", "holds a single value; export the image again")


def _flips(site: Sequence[Measured]) -> Iterator[Finding]:
    """Volumes that agree better with the mean of the site's others when they are flipped."""
    volumes = [(case.where, case.thumbnail) for case in site if case.thumbnail is not None]
    if len(volumes) < COMPARABLE:
        return
    total = np.sum([thumbnail for _, thumbnail in volumes], axis=0)
    for where, thumbnail in volumes:
        others = total - thumbnail
        upright = _correlation(thumbnail, others)
        for how, axis in FLIPS.items():
            flipped = _correlation(np.flip(thumbnail, axis), others)
            if flipped - upright > FLIPPED:
                detail = f"{how}: agreement with the site's others {upright:.2f}, flipped {flipped:.2f}"
                yield where.finding("flipped", f"seems to be stored {detail}; look at it", detail=detail)


def _correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    first, second = first - first.mean(), second - second.mean()
    norm = np.sqrt((first**2).sum() * (second**2).sum())
    return float((first * second).sum() / norm) if norm > 0 else 0.0


def _intensities(site: Sequence[Measured]) -> Iterator[Finding]:
    levels = np.stack([case.levels for case in site])
    usual = np.median(levels, axis=0)
    for case, outlying in zip(site, _outlying(levels, LEVEL_OUTLIER, LEVEL_SPREAD), strict=True):
        if outlying and not case.flat:
            detail = f"5, 25, 50, 75, 95% of intensities below {_list(case.levels)}; the site's median {_list(usual)}"
            yield case.where.finding("unusual intensities", detail, detail=detail)


def _list(values: NDArray[np.float64]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)
