"""Readers of RIGA: six experts' contours of disc and cup, each drawn on a copy of the clean "prime" image."""

import re
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import binary_fill_holes, distance_transform_edt
from skimage.filters import threshold_otsu
from skimage.measure import label, regionprops
from skimage.morphology import closing, disk

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Decoded, RawCase, RawSite, list_files, note_file, require_folder, require_same_shape
from fedmerit_data.readers.kind import Kind, fundus_kind
from fedmerit_data.spatial.photographs import load, make_case

Mask = NDArray[np.bool_]

EXPERTS = 6
EXPECTED = "imageKprime.* and imageK-1.* to imageK-6.*"
FILE = re.compile(r"image(?P<number>\d+)(?:-(?P<expert>[1-6])|prime)\.(?:jpe?g|tiff?)", re.IGNORECASE)
UNUSABLE = ("BinRushed1-Corrected-image44-4", "BinRushed2-image20-3", "MagrabiFemale-image26-3")
LOSSLESS_NOISE, JPEG_NOISE = 2, 10  # grey levels by which a copy differs if nothing is drawn
ANOTHER = 0.3  # largest share of pixels that differ by more in a copy of the image
SPECK = 0.05  # share of the longest line; shorter pieces are specks
SMALLEST = 0.01  # share of the disc's area; smaller enclosed regions are not the cup
STRAY = 0.1  # share of the line outside the disc; with more the disc is not the outermost curve
HALF_LINE = 8  # pixels
GAPS = (0, 1, 2, 4)  # pixels by which a line is thickened to close it, in the order tried


def find_sites(source: Path, part: str, expert: int | None = None) -> list[RawSite]:
    """Return the cases below ``source``/``part``, or below ``source`` if that is the part itself, as one site.

    With an ``expert``, 1 to 6, only those with contours by this one.
    """
    name = f"RIGA-{part}"
    folder = source / part if (source / part).is_dir() else source
    found: dict[str, dict[str, Path]] = defaultdict(dict)
    left_out = []
    require_folder(folder, f"{part}/.../{EXPECTED}")
    for path in list_files(folder):
        relative, match = path.relative_to(folder), FILE.fullmatch(path.name)
        if match is None:
            left_out.append((relative.as_posix(), "not named imageKprime or imageK-1 to imageK-6"))
            continue
        case = "-".join((*relative.parts[:-1], f"image{int(match['number'])}"))
        if f"{case}-{match['expert']}" in UNUSABLE:
            left_out.append((relative.as_posix(), "known to be unusable in the release"))
        else:
            note_file(found[case], match["expert"] or "prime", path)
    cases = []
    for case, files in sorted(found.items()):
        prime = files.pop("prime", None)
        if expert is not None:
            files = {number: file for number, file in files.items() if number == str(expert)}
        if prime and files:
            first, *others = (files[number] for number in sorted(files))
            cases.append(RawCase(case, f"{name}-{case}", prime, first, tuple(others)))
            continue
        reason = f"no contours of this image by expert {expert}" if expert else "no expert's contours of this image"
        reason = reason if prime else "its clean image, prime, is missing"
        left_out += [(path.relative_to(folder).as_posix(), reason) for path in (prime, *files.values()) if path]
    if not cases:
        raise BadInput(f"{folder}: has no cases in this layout; expected {EXPECTED}")
    return [RawSite(name, tuple(cases), tuple(sorted(left_out)))]


def decode(case: RawCase, expected: int = EXPERTS) -> Decoded:
    """Return one photograph as a case of one slice, labels disc and cup.

    Pixels that more than half of its experts enclosed.

    Remarks say whose contours do not close and are left out, and that there are fewer experts than ``expected``.
    """
    image = load(case.image, "RGB")
    experts, remarks = [], []
    for path in (case.label, *case.more):
        copy = load(path, "RGB")
        require_same_shape(RawCase(case.name, case.patient, case.image, path), image, copy)
        share = np.mean(_difference(image, copy) > JPEG_NOISE)
        if share > ANOTHER:
            raise BadInput(
                f"{path}: differs from {case.image.name} in {share:.0%} of its pixels; expected a copy drawn on"
            )
        lossy = any(file.suffix.lower() in (".jpg", ".jpeg") for file in (case.image, path))
        curves = enclosed(drawn(image, copy, lossy))
        if curves is None:
            remarks.append(f"{path.name}: no closed contour found; this expert is left out")
            continue
        if not curves[1].any():
            remarks.append(f"{path.name}: one closed contour found, taken as the disc; no cup")
        experts.append(curves)
    if len(case.more) + 1 < expected:
        remarks.append(f"copies of {len(case.more) + 1} experts found; the release has {EXPERTS} of most images")
    if not experts:
        raise BadInput(f"{case.label}: no closed contour found on it or on another copy; expected disc and cup drawn")
    disc, cup = np.sum(experts, axis=0) * 2 > len(experts)
    return make_case(image, disc, cup, remarks=tuple(remarks))


def drawn(image: NDArray[np.uint8], copy: NDArray[np.uint8], lossy: bool) -> Mask:
    """Return (height, width) pixels drawn on ``copy``; ``lossy`` allows for the noise of compression."""
    difference = _difference(image, copy)
    changed = difference > (JPEG_NOISE if lossy else LOSSLESS_NOISE)
    if lossy and changed.any():
        # Compression smears a line over its blocks: drawn pixels differ clearly more than smeared ones.
        changed = difference > threshold_otsu(difference[changed])
    pieces = label(changed, connectivity=2)
    pixels = np.bincount(pieces.ravel())
    pixels[0] = 0
    return np.asarray((pixels >= max(1, SPECK * pixels.max()))[pieces])


def _difference(image: NDArray[np.uint8], copy: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Return (height, width) difference in grey levels, the maximum over colours."""
    return np.asarray(np.abs(image.astype(np.int16) - copy).max(axis=2))


def enclosed(line: Mask) -> tuple[Mask, Mask] | None:
    """Return disc and cup, both (height, width), within the outer and the inner of the closed curves of ``line``.

    Both reach to the middle of their curve, however thick. The cup is empty if only one curve closes;
    `None` if none does, or if the line continues outside the one that does.
    """
    rows, columns = np.flatnonzero(line.any(axis=1)), np.flatnonzero(line.any(axis=0))
    if not rows.size:
        return None
    # Work within the drawing's box: a photograph has a hundred times its pixels.
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    margin = max(GAPS) + 1
    near = np.pad(line[box], margin)
    found = None
    for gap in GAPS:
        found = _curves(closing(near, disk(gap)) if gap else near)
        if found is not None and found[1].any():
            break
    # beyond the disc and the other half of a line of ordinary thickness around it
    if found is None or near[distance_transform_edt(~found[0]) > HALF_LINE].sum() > STRAY * near.sum():
        return None
    disc, cup = np.zeros_like(line), np.zeros_like(line)
    disc[box], cup[box] = (part[margin:-margin, margin:-margin] for part in found)
    return disc, cup


def _curves(line: Mask) -> tuple[Mask, Mask] | None:
    regions = label(~line, connectivity=1)  # a line of touching corners separates them
    inner = (regions != regions[0, 0]) & ~line
    if inner.sum() <= line.sum():  # a closed curve encloses more pixels than its own; specks in an open one do not
        return None
    blobs = label(line | inner, connectivity=2)
    outermost = Counter(blobs[inner].tolist()).most_common(1)[0][0]
    inner &= blobs == outermost
    return _to_middle(inner, line, regions == regions[0, 0]), _cup(regions, inner, line)


def _cup(regions: NDArray[Any], inner: Mask, line: Mask) -> Mask:
    """Return the region within the inner curve: it contains no other region, and is convex, unlike a crescent rim."""
    large = [part for part in regionprops(regions * inner) if part.area >= SMALLEST * inner.sum()]
    cups = [
        part
        for part in large
        if not any(
            np.isin(other.label, regions[part.slice][binary_fill_holes(part.image) & ~part.image]) for other in large
        )
    ]
    if len(large) < 2 or not cups:
        return np.zeros_like(line)
    best = max(cups, key=lambda part: (part.solidity, part.area))
    return _to_middle(regions == best.label, line, ~line & (regions != best.label))


def _to_middle(inside: Mask, line: Mask, outside: Mask) -> Mask:
    """Return ``inside`` and the pixels of the line that are nearer to it than to ``outside``, and the middle ones."""
    nearer = distance_transform_edt(~inside) < distance_transform_edt(~outside) + 1
    return np.asarray(inside | (line & nearer))


def _kind(part: str, expert: int | None = None) -> Kind:
    return fundus_kind(
        description=f"RIGA, {part}: imageKprime.* and six experts' contours drawn on imageK-1.* to -6.*; majority",
        find_sites=partial(find_sites, part=part, expert=expert),
        decode=decode if expert is None else partial(decode, expected=1),
        of_expert=partial(_kind, part),
        licence="the terms of the RIGA release hold",
        citation="Almazroa et al., Retinal fundus images for glaucoma analysis: the RIGA dataset, SPIE Medical Imaging "
        "2018",
    )


BINRUSHED, MAGRABIA, MESSIDOR = map(_kind, ("BinRushed", "Magrabia", "MESSIDOR"))
