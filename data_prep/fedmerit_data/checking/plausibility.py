"""Plausibility of valid cases: sizes and places of masks, label conventions, flips, intensities, patients.

Every case is measured once; the checks then compare it with absolute bounds, with its site and with the other sites.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedmerit.schema.scores import SPLITS
from fedmerit.schema.site_folder import SiteFolder
from fedmerit_data.checking.duplicates import FINE, Fingerprint, find_duplicates, make_fingerprint
from fedmerit_data.checking.findings import Finding, LocatedCase

MIN_COMPARABLE = 5  # cases; fewer are not compared with each other
WITHIN = {"cup": "disc"}
MAX_OUTSIDE = 0.05  # share of the inner label that may lie outside the outer one
THUMBNAIL_SHAPE = (8, 16, 16)  # slices, height, width of thumbnails
# With fewer patients the results on a split say little; five test patients are what the README asks for.
FEWEST_PATIENTS: Mapping[str, int] = {"training": 3, "validation": 3, "testing": 5}
# Flips: the margin by which a volume has to agree better with its site's others when flipped. Of 35 real volumes none
# did by chance; flipped ones were found upside down in 35 and with their slices reversed in 34 cases. Left and right of
# a pelvis, and upside down in photographs, look too much alike; masks are too symmetric to show a flip.
FLIP_MARGIN = 0.05
FLIPS = {"slices in reverse order": 0, "upside down": 1}
# Outliers: the number of robust deviations from the median, and the least deviation, of intensities (deviation 1 in
# each case) and of the logarithm of sizes.
INTENSITY_OUTLIER, INTENSITY_SPREAD = 8.0, 0.1
SIZE_OUTLIER, SIZE_SPREAD = 6.0, 0.1
# Largest cross-section in cm² if the pixel size in mm is known, else as a share of the frame: bounds of any organ.
SIZES_CM2: Mapping[str, tuple[float, float]] = {"prostate": (3, 70)}
FRAME_SHARES: Mapping[str, tuple[float, float]] = {"prostate": (0.001, 0.6), "disc": (0.002, 0.8), "cup": (0.0002, 0.6)}
# Millilitres: series of prostate MRI have medians of 26 to 54 ml (Christie and Sharpley, Prostate Cancer 2019, review);
# beyond 500 g it is giant prostatic hyperplasia, of which there are case reports.
VOLUMES_ML: Mapping[str, tuple[float, float]] = {"prostate": (5, 500)}


@dataclass(frozen=True)
class CaseMeasurement:
    """A case's measurements for the checks; sizes are per label."""

    where: LocatedCase
    fingerprint: Fingerprint | None  # None: a flat or small image
    sizes: NDArray[np.float64]  # largest cross-section, as a share of the frame
    volumes: NDArray[np.float64] | None  # ml; None if the file does not state the distance of its slices
    touches_border: NDArray[np.bool_]
    touches_end: NDArray[np.bool_]
    thumbnail: NDArray[np.float64] | None  # of shape THUMBNAIL_SHAPE; None for photographs
    levels: NDArray[np.float64]  # percentiles of all intensities
    is_flat: bool  # all pixels have one value
    outside: Mapping[tuple[str, str], float]  # share of the inner label that lies outside the outer one

    @property
    def is_disordered(self) -> bool:
        """Whether a label is outside the one that it should be part of."""
        return any(share > MAX_OUTSIDE for share in self.outside.values())

    @property
    def is_mostly_flat(self) -> bool:
        """Whether 90 % of the pixels have one value."""
        return bool(self.levels[0] == self.levels[-1])


def measure_case(where: LocatedCase) -> CaseMeasurement:
    """Measure one case."""
    image, label = np.asarray(where.case.image), np.asarray(where.case.label).astype(bool)
    names, spacing = where.site.labels, where.case.spacing
    middle = image[len(image) // 2].mean(axis=0)
    volume = len(image) > 1
    top_or_bottom = np.asarray(label[..., [0, -1], :].any(axis=(0, 2, 3)))
    left_or_right = np.asarray(label[..., [0, -1]].any(axis=(0, 2, 3)))
    first_or_last = np.asarray(label[[0, -1]].any(axis=(0, 2, 3)))
    return CaseMeasurement(
        where=where,
        fingerprint=make_fingerprint(middle),
        sizes=label.mean(axis=(2, 3)).max(axis=0),
        volumes=None if spacing is None else label.sum(axis=(0, 2, 3)) * np.prod(spacing) / 1000,
        touches_border=np.logical_or(top_or_bottom, left_or_right),
        touches_end=np.logical_and(first_or_last, volume),
        thumbnail=_thumbnail(image) if volume else None,
        levels=np.percentile(image, (5, 25, 50, 75, 95)),
        is_flat=not np.ptp(image),
        outside={
            (inner, outer): _share_outside(label[:, names.index(inner)], label[:, names.index(outer)])
            for inner, outer in WITHIN.items()
            if inner in names and outer in names
        },
    )


def _thumbnail(image: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return slices at even distances from the first to the last, each averaged down to a few pixels."""
    places = np.linspace(0, len(image) - 1, THUMBNAIL_SHAPE[0]).round().astype(int)
    taken: NDArray[np.float64] = image[places].mean(axis=1, dtype=np.float64)
    for axis in (1, 2):
        parts = np.array_split(taken, THUMBNAIL_SHAPE[axis], axis=axis)
        taken = np.stack([part.mean(axis=axis) for part in parts], axis=axis)
    return taken


def _share_outside(inner: NDArray[np.bool_], outer: NDArray[np.bool_]) -> float:
    return float((inner & ~outer).sum() / max(inner.sum(), 1))


def find_outliers(values: NDArray[np.float64], most: float, least_spread: float) -> NDArray[np.bool_]:
    """Return which rows of (cases, values) are outliers in any column, by median and median absolute deviation."""
    away = np.abs(values - np.median(values, axis=0))
    spread = np.maximum(1.4826 * np.median(away, axis=0), least_spread)
    return np.asarray((away > most * spread).any(axis=1))


def check_flat(site: Sequence[CaseMeasurement]) -> Iterator[Finding]:
    """Yield images whose pixels, all or most of them, have one value."""
    for case in site:
        if case.is_flat:
            yield case.where.finding("flat image", "all its pixels have one value; export the image again")
        elif case.is_mostly_flat:
            yield case.where.finding(
                "mostly flat image", "90 % of its pixels or more have one value; look at the image"
            )


def check_flips(site: Sequence[CaseMeasurement]) -> Iterator[Finding]:
    """Yield volumes that agree better with the mean of the site's others when they are flipped."""
    volumes = [(case.where, case.thumbnail) for case in site if case.thumbnail is not None]
    if len(volumes) < MIN_COMPARABLE:
        return
    total = np.sum([thumbnail for _, thumbnail in volumes], axis=0)
    for where, thumbnail in volumes:
        others = total - thumbnail
        upright = _correlation(thumbnail, others)
        for how, axis in FLIPS.items():
            flipped = _correlation(np.flip(thumbnail, axis), others)
            if flipped - upright > FLIP_MARGIN:
                detail = f"{how}: agreement with the site's others {upright:.2f}, flipped {flipped:.2f}"
                yield where.finding("flipped", f"seems to be stored {detail}; look at the image", detail=detail)


def _correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    first, second = first - first.mean(), second - second.mean()
    norm = np.sqrt((first**2).sum() * (second**2).sum())
    return float((first * second).sum() / norm) if norm > 0 else 0.0


def check_intensities(site: Sequence[CaseMeasurement]) -> Iterator[Finding]:
    """Yield images whose percentiles are far from those of the site's others."""
    levels = np.stack([case.levels for case in site])
    usual = np.median(levels, axis=0)
    for case, outlying in zip(site, find_outliers(levels, INTENSITY_OUTLIER, INTENSITY_SPREAD), strict=True):
        if outlying and not case.is_mostly_flat:
            detail = f"5, 25, 50, 75, 95% of intensities below {_list(case.levels)}; the site's median {_list(usual)}"
            yield case.where.finding("unusual intensities", f"{detail}; look at the image", detail=detail)


def _list(values: NDArray[np.float64]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def check_sizes(cases: Sequence[CaseMeasurement]) -> Iterator[Finding]:
    """Check absolute bounds per label, then outliers among the cases of all sites that show the label."""
    by_label: dict[str, list[tuple[LocatedCase, float, str, tuple[float, float]]]] = defaultdict(list)
    for case in cases:
        if case.is_disordered:
            continue  # `check_label_order` reports it; unusual sizes of mixed-up labels follow from that
        site = case.where.site
        spacing = site.info.get("spacing")
        for name, share in zip(site.labels, case.sizes, strict=True):
            low, high = FRAME_SHARES.get(name, (0, 1))
            size, unit, bounds = 100 * share, "% of the frame", (100 * low, 100 * high)
            if spacing and name in SIZES_CM2:
                size = share * np.prod(site.image_size) * np.prod(spacing) / 100
                unit, bounds = "cm²", SIZES_CM2[name]
            if share > 0:
                by_label[name].append((case.where, float(size), unit, bounds))
    for name, found in by_label.items():
        logarithms = np.log([size for _, size, _, _ in found])
        unusual = find_outliers(logarithms[:, None], SIZE_OUTLIER, SIZE_SPREAD)
        usual = np.exp(np.median(logarithms))
        for (where, size, unit, (low, high)), outlying in zip(found, unusual, strict=True):
            if not low <= size <= high:
                kind, expected = "implausible size", f"expected {low:g} to {high:g}"
            elif outlying and len(found) >= MIN_COMPARABLE:
                kind, expected = "unusual size", f"{usual:.3g} in the median case"
            else:
                continue
            detail = f"largest {name} {size:.3g} {unit}, {expected}"
            yield where.finding(kind, f"{detail}; look at the mask", file=where.case.label_file, detail=detail)


def check_volumes(cases: Sequence[CaseMeasurement]) -> Iterator[Finding]:
    """Check bounds in ml for volumes that state the distance of their slices; note per site how many do not."""
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
                message = f"{detail} have no stated slice distance: volume of {name} not checked"
                yield Finding("unknown volume", site.name, site.path / "datalist.json", message, detail=detail)


def check_label_order(cases: Sequence[CaseMeasurement]) -> Iterator[Finding]:
    """Report sites whose inner label is outside the outer one in most cases; else the single cases."""
    for _, group in groupby(cases, key=lambda item: item.where.site.path):
        members = list(group)
        site = members[0].where.site
        for inner, outer in members[0].outside:
            wrong = [case for case in members if case.outside[inner, outer] > MAX_OUTSIDE]
            if len(wrong) > len(members) / 2:
                detail = f"{inner} not within {outer} in {len(wrong)} of {len(members)} cases"
                message = f"{detail}; the two may be swapped, or {outer} drawn without the {inner}: check the label map"
                yield Finding("label convention", site.name, site.path / "site.json", message, detail=detail)
                continue
            for case in wrong:
                detail = f"{case.outside[inner, outer]:.0%} of the {inner} outside the {outer}"
                yield case.where.finding("label order", detail, file=case.where.case.label_file, detail=detail)


def check_borders(cases: Sequence[CaseMeasurement]) -> Iterator[Finding]:
    """Yield masks that touch the border of the frame, or the first or last slice of a volume."""
    for case in cases:
        for kind, touching in (("mask at border", case.touches_border), ("mask at end", case.touches_end)):
            names = [name for name, touches in zip(case.where.site.labels, touching, strict=True) if touches]
            if names:
                detail = ", ".join(names)
                place = "border of the frame" if kind == "mask at border" else "first or last slice"
                message = f"{detail} reaches the {place}; look at the mask"
                yield case.where.finding(kind, message, file=case.where.case.label_file, detail=detail)


def check_plausibility(
    sites: Sequence[SiteFolder], cases: Sequence[LocatedCase], checksums: Mapping[Path, str]
) -> Iterator[Finding]:
    """Check ``cases`` whose arrays are valid, and the number of patients of their ``sites``."""
    measured = [measure_case(case) for case in cases]
    yield from _few_patients(sites)
    yield from _small_images(sites)
    seen = [(case.where, case.fingerprint) for case in measured if case.fingerprint is not None]
    yield from find_duplicates(seen, checksums)
    yield from check_sizes(measured)
    yield from check_volumes(measured)
    yield from check_label_order(measured)
    yield from check_borders(measured)
    for _, group in groupby(measured, key=lambda item: item.where.site.path):
        site = list(group)
        yield from check_flat(site)
        if len(site) >= MIN_COMPARABLE:
            yield from check_flips(site)
            yield from check_intensities(site)


def _small_images(sites: Sequence[SiteFolder]) -> Iterator[Finding]:
    """Yield the sites whose images are too small to be compared with each other."""
    for site in sites:
        if min(site.image_size) < FINE:
            detail = f"{site.image_size[0]} x {site.image_size[1]} pixels"
            message = f"images of {detail}: duplicates not looked for below {FINE}; prepare at a larger --size"
            yield Finding("not compared", site.name, site.path / "site.json", message, detail=detail)


def _few_patients(sites: Sequence[SiteFolder]) -> Iterator[Finding]:
    for site in sites:
        for split in SPLITS:
            patients = len({case.patient for case in site.cases(split)})
            if site.folds and split == "testing":
                patients = len(site.patients_by_fold())
            if 0 < patients < FEWEST_PATIENTS[split]:
                detail = f"{patients} patient{'s' if patients != 1 else ''}"
                message = f"split {split} has {detail}; with fewer than {FEWEST_PATIENTS[split]} its results say little"
                yield Finding("few patients", site.name, site.path / "datalist.json", message, split, detail=detail)
