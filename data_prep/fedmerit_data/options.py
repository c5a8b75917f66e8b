"""The options of a preparation, each declared once: command line, Python API and checks derive. Loads no NumPy."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from fedmerit.schema.configuration.data import NORMALISATIONS
from fedmerit.schema.declarations import Shown
from fedmerit.schema.rules import About, Choice, Count, Number, Switch, Text

RATIOS = (0.5, 0.25, 0.25)
MAX_FILL = 1e6  # either way
GENERIC, PHOTOGRAPHS = "Kind generic", "Slices and photographs"  # sections of the help


def _parse_ratios(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        first, second, third = map(float, value.split(","))
    except ValueError:
        raise ValueError("expected three numbers such as 0.5,0.25,0.25") from None
    return first, second, third


def _parse_channels(value: Any) -> Any:
    if not isinstance(value, str) or value.strip().isdigit():
        return value
    from fedmerit_data.readers.channel_names import parse_names  # loads NumPy

    return parse_names(value)


def _parse_labels(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    from fedmerit_data.readers.label_map import parse_labels  # loads NumPy

    return parse_labels(value)


@dataclass(frozen=True)
class PreparationOptions:
    """The options that every preparation may have."""

    kind: str = ""  # layout of the raw data, a key of `fedmerit_data.kinds.KINDS`
    source: Annotated[Path | None, About("Folder of the raw data; synthetic kinds need none.")] = None
    ratios: Annotated[
        tuple[float, float, float],
        BeforeValidator(_parse_ratios),
        About("Shares of patients to train, validate and test on."),
        Shown("SHARE,SHARE,SHARE", "0.5,0.25,0.25"),
    ] = RATIOS
    folds: Annotated[int | None, Count(3, 20), About("Cross-validation: splits, each patient tested in one.")] = None
    size: Annotated[int, Count(16, 4096), About("Side of prepared slices.", "px")] = 256
    seed: Annotated[int, Count(), About("Key of the splits, the same at all sites.")] = 0
    like: Annotated[Path | None, About("Earlier site folders, whose patients keep their splits."), Shown("SITES")] = (
        None
    )
    server_share: Annotated[
        float, Number(0, 0.5), About("Share of training patients set aside for the server to validate on.")
    ] = 0.0
    patients: Annotated[int | None, Count(5), About("Synthetic kinds: mean number of patients per site.")] = None
    patient_table: Annotated[
        Path | None, About("CSV of site,case,patient; FILE.csv:COLUMN; or a name PATTERN."), Shown("TABLE")
    ] = None
    groups: Annotated[
        str | None, Text(), About("Dice by group: columns of that table, or FILE.csv:sex,age."), Shown("COLUMNS")
    ] = None
    skip_unreadable: Annotated[bool, Switch(), About("Leave unreadable cases out and count them.")] = False
    slices: Annotated[
        str,
        Choice(("all", "organ")),
        About("Train on all slices, or on those with the organ; validation and testing stay whole."),
        Shown(panel=PHOTOGRAPHS),
    ] = "all"
    field_of_view: Annotated[
        float | None,
        Number(10, 1000),
        About("Side of the central square that is kept.", "mm"),
        Shown(default="the kind's", panel=PHOTOGRAPHS),
    ] = None
    crop: Annotated[
        str | None,
        Text(),
        About("Photographs: a square around the disc, or all."),
        Shown("disc|whole", "the kind's", panel=PHOTOGRAPHS),
    ] = None
    crop_multiple: Annotated[
        float | None,
        Number(1, 20),
        About("Side of that square in disc diameters."),
        Shown(default="3", panel=PHOTOGRAPHS),
    ] = None
    expert: Annotated[
        int | None,
        Count(1, 6),
        About("Kinds riga-*: masks by this expert."),
        Shown(default="what most marked", panel=PHOTOGRAPHS),
    ] = None
    labels: Annotated[
        Mapping[str, tuple[int | str, ...]] | None,
        BeforeValidator(_parse_labels),
        About("Mask values or organ names of each label: disc=1+2,cup=2,ignore=3."),
        Shown("LABELS", "dataset.json's, else mask=any", panel=GENERIC),
    ] = None
    channels: Annotated[
        int | tuple[str, ...] | None,
        BeforeValidator(_parse_channels),
        About("1 (grey), 3 (colours), another number, or names in order: t1,t1ce,t2,flair."),
        Shown(default="dataset.json's, else 3", panel=GENERIC),
    ] = None
    task: Annotated[str | None, Text(), About("Name of the task."), Shown(default="generic", panel=GENERIC)] = None
    modality: Annotated[
        str | None,
        Text(),
        About(f"Normalisation: {', '.join(NORMALISATIONS)}."),
        Shown(default="photo with 3 channels, mri with 1, else mri_by_channel", panel=GENERIC),
    ] = None
    site: Annotated[
        str | None,
        Text(),
        About("Name of the only site; or of each case's: FILE.csv:COLUMN or a PATTERN."),
        Shown("SITE", "the folder's", panel=GENERIC),
    ] = None
    fill: Annotated[
        float | None,
        Number(-MAX_FILL, MAX_FILL),
        About("Value for voxels that have none (NaN)."),
        Shown(default="such images are refused", panel=GENERIC),
    ] = None
    resample: Annotated[
        bool | None,
        Switch(),
        About("Bring channels (linear), masks (nearest) to the finest channel's grid."),
        Shown(panel=GENERIC),
    ] = None
    channel: Annotated[
        int | None,
        Count(0, 4095),
        About("Of images with four axes, the number along the fourth."),
        Shown(panel=GENERIC),
    ] = None
    pairs: Annotated[
        Path | None,
        About("Table of images and masks, as --describe writes it; paths relative to SOURCE."),
        Shown(panel=GENERIC),
    ] = None
