"""Masks that are readable and yet not plausible: sizes, volumes, label conventions, borders."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby

import numpy as np

from fedmerit.trainers.monai_trainer.data import SiteFolder
from fedmerit_data.checking.conventions import Regions, conventions, in_words
from fedmerit_data.checking.findings import Finding, Located
from fedmerit_data.checking.measured import COMPARABLE, MOST_OUTSIDE, Measured, outliers

# Largest cross-section in cm² where the pixel is known in mm, else share of the frame: beyond these no organ is drawn.
SIZES_CM2: Mapping[str, tuple[float, float]] = {"prostate": (3, 70)}
SHARES: Mapping[str, tuple[float, float]] = {"prostate": (0.001, 0.6), "disc": (0.002, 0.8), "cup": (0.0002, 0.6)}
# Millilitres: series of prostate MRI have medians of 26 to 54 ml (Christie and Sharpley, Prostate Cancer 2019, review);
# beyond 500 g it is giant prostatic hyperplasia, of which there are case reports.
VOLUMES_ML: Mapping[str, tuple[float, float]] = {"prostate": (5, 500)}
# How many robust deviations from the median are too many, and the least deviation, of the logarithm of sizes.
OUTLIER, SPREAD = 6.0, 0.1


def sizes(cases: Sequence[Measured]) -> Iterator[Finding]:
    """Absolute bounds per label, then outliers among the cases of all sites that show the label."""
    by_label: dict[str, list[tuple[Located, float, str, tuple[float, float]]]] = defaultdict(list)
    for case in cases:
        if case.disordered:
            continue  # told by `label_conventions`; sizes of labels that are mixed up follow from that
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
        unusual = outliers(logarithms[:, None], OUTLIER, SPREAD)
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


def volumes(cases: Sequence[Measured]) -> Iterator[Finding]:
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


def label_conventions(cases: Sequence[Measured]) -> Iterator[Finding]:
    """Labels that mean something else, in a site by itself or beside the others; else single cases are told."""
    comparable: dict[tuple[str, ...], dict[SiteFolder, list[Regions]]] = defaultdict(dict)  # by what labels are called
    for _, group in groupby(cases, key=lambda item: item.where.site.path):
        members = list(group)
        site = members[0].where.site
        mixed_up = False
        for inner, outer in members[0].outside:
            wrong = [case for case in members if case.outside[inner, outer] > MOST_OUTSIDE]
            if len(wrong) > len(members) / 2:
                mixed_up = True
                detail = f"{inner} not within {outer} in {len(wrong)} of {len(members)} cases"
                message = f"{detail}; the two may be swapped, or {outer} drawn without the {inner}: check the label map"
                yield Finding("label convention", site.name, site.path / "site.json", message, detail=detail)
                continue
            for case in wrong:
                detail = f"{case.outside[inner, outer]:.0%} of the {inner} outside the {outer}"
                yield case.where.finding("label order", detail, file=case.where.case.label_file, detail=detail)
        if not mixed_up:
            comparable[site.labels][site] = [case.regions for case in members if case.regions is not None]
    for site, reading, misfit, other in chain.from_iterable(map(conventions, comparable.values())):
        better = in_words(reading, site.labels)
        detail = f"fits the other sites far better with {better} (misfit {misfit:.1f}, so {other:.1f})"
        message = f"{detail}; where there are but two sites either may be the wrong one: check the label maps"
        yield Finding("label convention", site.name, site.path / "site.json", message, detail=detail)


def borders(cases: Sequence[Measured]) -> Iterator[Finding]:
    """Masks that touch the border of the frame, or the first or last slice of a volume."""
    for case in cases:
        for kind, touching in (("mask at border", case.at_border), ("mask at end", case.at_end)):
            names = [name for name, touches in zip(case.where.site.labels, touching, strict=True) if touches]
            if names:
                detail = ", ".join(names)
                place = "border of the frame" if kind == "mask at border" else "first or last slice"
                message = f"{detail} reaches the {place}"
                yield case.where.finding(kind, message, file=case.where.case.label_file, detail=detail)
