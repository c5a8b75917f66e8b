"""A kind of raw data: how its cases are found and decoded, and which labels it has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from fedmerit_data.raw_cases import Decoded, RawCase, RawSite
from fedmerit_data.spatial.preprocessing import Normalise, make_normaliser


@dataclass(frozen=True)
class Kind:
    """A kind of raw data: how to find its sites, decode a case and normalise it, and the source of its data.

    ``find_sites`` and ``decode`` raise `fedmerit.errors.BadInput` with the name of a file that is missing, unreadable
    or does not fit the layout. ``generate`` writes synthetic raw files in the layout; ``field_of_view`` is the default
    in mm, `None` for whole frames (of layouts without millimetres). ``crops`` are the possible crops, the default
    first: ``whole`` (or the field of view), and ``disc`` for photographs with a label ``disc``. ``of_expert`` is the
    same kind with the masks by one expert, from 1, of layouts with masks by several.
    """

    description: str
    task: str
    labels: tuple[str, ...]
    channels: int
    find_sites: Callable[[Path], list[RawSite]]
    decode: Callable[[RawCase], Decoded]
    normalisation: str  # one of `fedmerit.schema.configuration.data.NORMALISATIONS`
    field_of_view: float | None
    licence: str
    citation: str | None = None
    generate: Callable[[Path, int, int | None], None] | None = None
    crops: tuple[str, ...] = ("whole",)
    of_expert: Callable[[int], "Kind"] | None = None
    notes: Mapping[str, str] = field(default_factory=dict)  # what to know before use, by site; "": of all sites
    channel_names: tuple[str, ...] = ()  # (): not stated, or stated by each case
    modality: str = ""  # DICOM's code; "": not stated, or stated by each case

    @property
    def normalise(self) -> Normalise:
        """The normalisation of intensities."""
        return make_normaliser(self.normalisation, self.channels)

    @property
    def needs_source(self) -> bool:
        """Whether raw files have to exist before; synthetic kinds write their own."""
        return self.generate is None


GENERATED = "generated, shows no patient; Apache-2.0 as FedMerit"  # the licence of synthetic kinds

# Fields that kinds of one task have in common.
prostate_kind = partial(
    Kind,
    task="prostate",
    labels=("prostate",),
    channels=1,
    normalisation="mri",
    field_of_view=120.0,
    channel_names=("t2",),
    modality="MR",
)
photo_kind = partial(Kind, channels=3, normalisation="photo", field_of_view=None)
fundus_kind = partial(photo_kind, task="fundus", labels=("disc", "cup"), crops=("disc", "whole"))
disc_kind = partial(photo_kind, task="fundus-disc", labels=("disc",), crops=("whole", "disc"))


def disc_only(kind: Kind) -> Kind:
    """Return a kind with only the first label of another one, the disc."""
    return disc_kind(
        description=f"{kind.description}; only the disc",
        find_sites=kind.find_sites,
        decode=partial(_decode_disc_only, kind.decode),
        licence=kind.licence,
        citation=kind.citation,
    )


def _decode_disc_only(decode: Callable[[RawCase], Decoded], case: RawCase) -> Decoded:
    both = decode(case)
    return replace(both, label=both.label[:, :1])
