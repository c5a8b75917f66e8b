"""A survey of images before training: what it counts, in which bins, and the floor under every number of it.

NVFlare has a controller of statistics. It sends what sites say as serialised objects, which an egress list cannot look
into; its filters put a floor under a whole feature's count, not under a bin's; it derives ranges from noisy minima and
maxima; and one site that refuses ends the job. So a survey is a question of our own, with fixed bins.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fedmerit.schema.declarations import read
from fedmerit.schema.rules import About, Count, Declared, Message, Text

ANSWERS = "survey.json"  # in the server's folder of the job
LEAST = 5  # patients behind every number that leaves, if nobody asks for more
TOO_FEW = "has fewer patients than the floor of the survey, and says nothing"
INTENSITY = "intensity"  # followed by the channel's number if there are several
VOLUME, AREA = "volume", "area"  # of a label, whose name follows
PLANE, VALUES_CUT = "plane", "values_cut"
PLANES = ("not stated", "axial", "sagittal", "coronal")


@dataclass(frozen=True)
class Quantity:
    """A quantity that is counted, in bins that are the same everywhere and for good.

    Bins of someone's choice could be moved until a difference of two answers shows a patient.
    """

    title: str
    unit: str
    edges: tuple[float, ...]  # n of them part n + 1 bins, the outer two open; an edge belongs to the bin above it
    names: tuple[str, ...] = ()  # of bins that are no numbers

    @property
    def bins(self) -> int:
        """The number of bins."""
        return len(self.edges) + 1


QUANTITIES: Mapping[str, Quantity] = {
    "pixel_spacing": Quantity(
        "Spacing of pixels, as acquired", "mm", (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0)
    ),
    "slice_spacing": Quantity("Spacing of slices", "mm", (0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 7.0, 10.0)),
    "slices": Quantity("Slices of a case", "", (2, 10, 15, 20, 25, 30, 40, 60, 90, 130, 200)),
    "field_of_view": Quantity("Field of view", "mm", (60, 80, 100, 120, 150, 180, 220, 260, 320, 400)),
    PLANE: Quantity("Plane of the slices", "", (0.5, 1.5, 2.5), PLANES),
    VALUES_CUT: Quantity("Values beyond the window", "%", (1, 5, 10, 25, 50, 75)),
    INTENSITY: Quantity("Intensity, as prepared", "", tuple(step / 4 for step in range(-12, 21))),
    VOLUME: Quantity("Volume of", "ml", (0.01, 5, 10, 20, 40, 60, 100, 150, 250)),
    AREA: Quantity("Largest cross-section of", "% of the image", (0.01, 1, 2, 5, 10, 20, 40)),
}


def is_intensity(name: str) -> bool:
    """Return whether a quantity is the intensity of a channel, of which voxels count and not cases."""
    return name.partition(" ")[0] == INTENSITY


def find_quantity(name: str) -> Quantity:
    """Return the quantity of a tally by its name; `KeyError` if there is none of that name."""
    kind, _, rest = name.partition(" ")
    if kind in (VOLUME, AREA) and rest:
        known = QUANTITIES[kind]
        return Quantity(f"{known.title} {rest}", known.unit, known.edges)
    if kind == INTENSITY and rest.isdecimal():
        known = QUANTITIES[kind]
        return Quantity(f"{known.title}, channel {rest}", known.unit, known.edges)
    if name in (VOLUME, AREA):
        raise KeyError(name)
    return QUANTITIES[name]


Patients = Annotated[int, Count(), About("Patients.", "patients")]


@dataclass(frozen=True)
class Question(Message):
    """A task to count the site's images, in bins."""

    floor: Annotated[int, Count(2), About("Patients behind every number of the answer, at least.", "patients")] = LEAST

    def __post_init__(self) -> None:
        if isinstance(self.floor, bool) or not isinstance(self.floor, int) or self.floor < 2:
            raise ValueError(f"floor {self.floor!r}: expected a whole number of patients from 2 on")


@dataclass(frozen=True)
class Tally(Declared):
    """A count of one quantity by bin; 0 for a bin that is empty or below the floor, which look the same."""

    patients: Annotated[tuple[Patients, ...], About("Patients with anything in the bin.", "patients")]
    voxels: Annotated[
        tuple[Annotated[int, Count()], ...], About("Voxels in the bin, of intensities; of other quantities nothing.")
    ] = ()


@dataclass(frozen=True)
class Surveyed(Message):
    """The answer of a site to a survey."""

    patients: Patients
    slices: Annotated[int, Count(), About("Slices of all cases.", "slices")]
    tallies: Annotated[
        Mapping[Annotated[str, Text(r"[\w.\-]{1,60}( [\w.\-]{1,120})?", "a quantity")], Tally],
        About("Counts by quantity."),
    ]
    floor: Annotated[int, Count(), About("Patients behind every number, and behind what is left out.", "patients")]

    def __post_init__(self) -> None:
        for name, tally in self.tallies.items():
            try:
                bins, counted = find_quantity(name).bins, is_intensity(name)
            except KeyError:
                raise ValueError("a quantity that no survey asks for") from None
            if (len(tally.patients), len(tally.voxels)) != (bins, bins * counted):
                raise ValueError("other bins than those agreed on")
            if counted and [count > 0 for count in tally.patients] != [count > 0 for count in tally.voxels]:
                raise ValueError("voxels of no patient, or patients without any")

    @classmethod
    def read(cls, content: Any) -> Self:
        """Return the answer that a table of fields holds; raise `ValueError` if it is none."""
        return TypeAdapter(cls).validate_python(content)

    def below(self, floor: int) -> bool:
        """Return whether a number, or what it tells of those left out, may stand for fewer than ``floor`` patients."""
        counts = [count for tally in self.tallies.values() for count in tally.patients]
        return self.floor < floor or any(0 < count < floor for count in (*counts, self.patients))


@dataclass(frozen=True)
class Survey(Declared):
    """The answers of all sites to a survey, as `ANSWERS` holds them."""

    floor: Annotated[int, Count(), About("Patients behind every number.", "patients")]
    sites: Annotated[Mapping[str, Surveyed], About("Answers by site.")]
    refused: Annotated[Mapping[str, str], About("By site, why it has no answer.")]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values that the file holds."""
        return dict(TypeAdapter(Survey).dump_python(self, mode="json"))

    @classmethod
    def from_dict(cls, content: Any) -> Self:
        """Return the survey that `to_dict` wrote; raise `ValueError` if it is none."""
        return read(cls, content, "not a survey")


def mask_small_bins(table: NDArray[np.int64], floor: int, voxels: bool = False) -> Tally:
    """Return the bins of a table that may be shown.

    A bin is shown if ``floor`` patients or more have something in it. Since totals are known, what is left out is a
    number, too: further bins are left out, those with the fewest patients first, until what all of them hold together
    is nothing, or of ``floor`` patients or more.

    Args:
        table: (patients, bins), what each patient has in each bin.
        voxels: whether to say how much there is in a bin, beside of how many patients.
    """
    patients, held = (table > 0).sum(axis=0), table.sum(axis=0)
    shown = patients >= floor
    order = np.lexsort((held, patients))
    for place in order[shown[order]]:
        if not 0 < (table[:, ~shown] > 0).any(axis=1).sum() < floor:
            break
        shown[place] = False
    masked = [tuple(map(int, np.where(shown, counts, 0))) for counts in (patients, held)]
    return Tally(masked[0], masked[1] if voxels else ())
