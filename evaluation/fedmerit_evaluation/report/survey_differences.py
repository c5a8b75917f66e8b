"""Where sites differ in a survey as preparation should have prevented: orientation, unit, window, label conventions."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from fedmerit.schema.survey import AREA, PLANE, VALUES_CUT, VOLUME, Quantity, Survey, find_quantity, is_intensity

FAR = 8.0  # times; hospitals' organs differ by less; lengths in another unit are in the outermost bins
LITTLE = 0.5  # share of intensities that a site has in common with the others; of four prostate hospitals .8 and more
MOST = 50  # % of the values beyond the window
LENGTHS = ("pixel_spacing", "slice_spacing", "field_of_view")

Shares = Mapping[str, np.ndarray[tuple[int], np.dtype[np.float64]]]  # of each site, by bin


def survey_differences(survey: Survey) -> list[str]:
    """A sentence for each site and quantity in which it differs from the others."""
    names = dict.fromkeys(name for one in survey.sites.values() for name in one.tallies)
    return [text for name in names for text in _differences(name, _shares(survey, name))]


def _shares(survey: Survey, name: str) -> Shares:
    """Sites that say nothing of a quantity, or all of whose bins are below the floor, are left out."""
    counts = {
        site: np.array(one.tallies[name].voxels or one.tallies[name].patients, float)
        for site, one in survey.sites.items()
        if name in one.tallies
    }
    return {site: row / row.sum() for site, row in counts.items() if row.any()}


def _differences(name: str, shares: Shares) -> Iterator[str]:
    quantity, kind = find_quantity(name), name.partition(" ")[0]
    compare: Callable[[str, Shares, Quantity], str | None] | None = None
    if is_intensity(name):
        compare = _intensity
    elif kind in (*LENGTHS, VOLUME, AREA):
        compare = _size
    elif kind in (PLANE, VALUES_CUT):
        compare = _plane if kind == PLANE else _cut
    for site in shares if compare and len(shares) > 1 else ():
        assert compare is not None
        if text := compare(site, shares, quantity):
            yield f"{site}: {text}"


def _intensity(site: str, shares: Shares, quantity: Quantity) -> str | None:
    others = np.mean([row for name, row in shares.items() if name != site], axis=0)
    common = float(np.minimum(shares[site], others).sum())
    if common >= LITTLE:
        return None
    return f"its intensities have {common:.0%} in common with the other sites': is its modality or window another?"


def _size(site: str, shares: Shares, quantity: Quantity) -> str | None:
    own, others = _median(shares[site], quantity), _others(site, shares, quantity)
    is_beyond = quantity.unit == "mm" and own in (quantity.edges[0], quantity.edges[-1]) and own != others
    if 1 / FAR < own / others < FAR and not is_beyond:
        return None
    why = "is its unit of length right?" if quantity.unit == "mm" else "do its labels mean the same?"
    return f"{quantity.title}: about {own:.3g} {quantity.unit}, the other sites {others:.3g}: {why}"


def _plane(site: str, shares: Shares, quantity: Quantity) -> str | None:
    own = int(np.argmax(shares[site]))
    others = int(np.argmax(np.sum([row for name, row in shares.items() if name != site], axis=0)))
    if own == others:
        return None
    return f"its slices are {quantity.names[own]}, those of the other sites {quantity.names[others]}"


def _cut(site: str, shares: Shares, quantity: Quantity) -> str | None:
    own, others = _median(shares[site], quantity), _others(site, shares, quantity)
    if not others < MOST <= own:
        return None
    return "most of its values are beyond the window, those of the other sites are not: are they Hounsfield units?"


def _others(site: str, shares: Shares, quantity: Quantity) -> float:
    return float(np.median([_median(row, quantity) for name, row in shares.items() if name != site]))


def _median(row: np.ndarray[tuple[int], np.dtype[np.float64]], quantity: Quantity) -> float:
    """The middle of the bin that half of the patients are below; of an outer bin its one edge."""
    place = int(np.searchsorted(np.cumsum(row), 0.5))
    low, high = quantity.edges[max(place - 1, 0)], quantity.edges[min(place, len(quantity.edges) - 1)]
    return float(np.sqrt(low * high))
