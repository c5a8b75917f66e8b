"""How the data of a run are prepared: the data plan of volumes, and a network's input."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from fedmerit.errors import BadInput
from fedmerit.files import read_object, record_hash
from fedmerit.schema.declarations import Checked, read
from fedmerit.schema.rules import About, Choice, Count, Number, Text

ORGAN_SHARE = 1 / 3  # of the patches of a batch that show a label for certain (Isensee et al. 2021)


@dataclass(frozen=True)
class DataPlan(Checked):
    """A decision of `fedmerit data plan`; plain numbers, since site folders carry it to others."""

    size: Annotated[int, Count(16, 4096), About("rows and columns of a prepared slice")]
    field_of_view: Annotated[float, Number(10, 1000), About("mm, side of a slice")]
    slice_distance: Annotated[float, Number(0.01, 100), About("mm between prepared slices")]
    patch: Annotated[tuple[int, int, int], Count(2, 1024), About("slices, rows and columns that a step sees")]
    depth: Annotated[int, Count(2, 9), About("levels of the network")]
    width: Annotated[int, Count(1, 512), About("channels of its first level")]
    batch_size: Annotated[int, Count(1, 4096), About("patches of a step")]

    @property
    def spacing(self) -> tuple[float, float, float]:
        """The millimetres between slices, rows and columns of prepared volumes."""
        side = self.field_of_view / self.size
        return self.slice_distance, side, side

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a run on such sites, beneath those that a person chooses."""
        heads = max(1, self.depth - 3)  # beside the output: of all levels but the two lowest, as in nnU-Net
        deep = {"deep_supervision": True, "deep_supr_num": heads} if self.depth > 2 else {}
        return {
            "architecture": "dynunet",
            "patch": self.patch,
            "spacing": self.spacing,
            "depth": self.depth,
            "width": self.width,
            "arguments": deep,
            "batch_size": self.batch_size,
            "organ_share": ORGAN_SHARE,
        }

    @property
    def digest(self) -> str:
        """The SHA-256, in hexadecimal."""
        return record_hash(self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str) -> "DataPlan":
        """Return the plan that `to_dict` wrote; `BadInput` naming ``where`` if it is none."""
        return read(cls, values, f"{where}: data plan")


def load_data_plan(file: Path) -> DataPlan:
    """Read the plan in a file that `fedmerit data plan` wrote; `BadInput` if the file holds none."""
    plan = read_data_plan(read_object(file), str(file))
    if plan is None:
        raise BadInput(f"{file}: holds no data plan; expected what `fedmerit data plan` writes")
    return plan


def read_data_plan(info: Mapping[str, Any], where: str) -> DataPlan | None:
    """Read the data plan in a site.json; None: the site was prepared by none. `BadInput` if the entry is no plan."""
    stated = info.get("data_plan")
    if stated is not None and not isinstance(stated, Mapping):
        raise BadInput(f"{where}: data_plan is {type(stated).__name__}, expected a plan; run `fedmerit prepare` again")
    return None if stated is None else DataPlan.from_dict(stated, where)


NORMALISATIONS = ("mri", "mri_by_channel", "xray", "ct_soft_tissue", "ct_lung", "ct_bone", "photo")


PREPARED_OTHERWISE = "images are prepared by another data plan, size or field of view than the run's"


@dataclass(frozen=True)
class Preprocessing(Checked):
    """A way from a raw image to the network's input, slice by slice, and from its logits to a mask.

    Volumes are cut into axial slices, rows from anterior to posterior, columns from the patient's right to left.
    """

    size: Annotated[tuple[int, int], Count(1, 16384), About("(height, width) of a slice, in pixels")]
    field_of_view: Annotated[
        float | None,
        Number(high=1e5, above=0),
        About("mm; side of the central square that is kept; None: whole frames, made square"),
    ] = None
    crop: Annotated[
        str, Choice(("whole", "disc")), About("disc: a square about the disc's middle; whole: the field of view")
    ] = "whole"
    crop_multiple: Annotated[
        float | None, Number(high=1000, above=0), About("side of the disc's square, in larger extents of the disc")
    ] = None
    normalisation: Annotated[
        str,
        Choice(NORMALISATIONS),
        About(
            "Normalisation of images; mri, xray: the brightest and darkest half percent of a volume or image clipped, "
            "then mean 0 and deviation 1; mri_by_channel: the same for each channel; photo: for each colour, without "
            "clipping; ct_soft_tissue, ct_lung, ct_bone: Hounsfield units of a window, from -1 to 1."
        ),
    ] = "mri"
    slice_distance: Annotated[
        float | None,
        Number(high=1e3, above=0),
        About("mm; volumes are resampled to slices so far apart; None: as acquired"),
    ] = None
    data_plan: Annotated[str, Text(), About("SHA-256 of the data plan that sites were prepared by; empty: none")] = ""
    channel_names: Annotated[
        tuple[str, ...], Text(), About("channels in order, if there are several and sites name them")
    ] = ()
    threshold: Annotated[
        float, Number(above=0, below=1), About("probability above which a pixel belongs to a label")
    ] = 0.5

    @property
    def spacing(self) -> tuple[float, float] | None:
        """The millimetres between rows and columns; None if they follow the image's own."""
        field = self.field_of_view
        return None if field is None else (field / self.size[0], field / self.size[1])

    @property
    def digest(self) -> str:
        """The SHA-256 of `to_dict`, in hexadecimal."""
        return record_hash(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        content = super().to_dict() | {"spacing": self.spacing and list(self.spacing)}
        return content if self.channel_names else {name: content[name] for name in content if name != "channel_names"}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Preprocessing":
        """Build the input from `to_dict`, or from site.json, whose other entries are left out.

        `BadInput` if a value is of another type.
        """
        try:
            known = {one.name: values[one.name] for one in fields(cls) if one.name in values}
            height, width = values.get("size") or values["image_size"]
            known["size"] = (height, width)
            names = known.pop("channel_names", None) or ()
            known |= {"channel_names": tuple(names)} if len(names) > 1 else {}
            if plan := read_data_plan(values, "site.json") if isinstance(values.get("data_plan"), Mapping) else None:
                known |= {"data_plan": plan.digest, "slice_distance": plan.slice_distance}
            return cls(**known)  # numbers stay as they are: a digest is of their text
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadInput(f"preprocessing: not what a site folder says of it ({error})") from None


def common(sites: Mapping[str, Mapping[str, Any]]) -> Preprocessing | None:
    """Return the input of all sites, by the site.json of each; None if they differ, or one does not say it."""
    try:
        found = {Preprocessing.from_dict(info) for info in sites.values() if _says(info)}
    except (KeyError, TypeError, ValueError):
        return None
    return found.pop() if len(found) == 1 and all(map(_says, sites.values())) else None


def preparation_digest(info: Mapping[str, Any]) -> str:
    """Return SHA-256 of how a site was prepared, by its site.json; "": that does not say it."""
    return Preprocessing.from_dict(info).digest if _says(info) else ""


def is_prepared_otherwise(run: Preprocessing | None, digest: str) -> bool:
    """Return whether the `preparation_digest` of a site differs from the run's; False if either is not known."""
    return run is not None and digest not in ("", run.digest)


def _says(info: Mapping[str, Any]) -> bool:
    return "crop" in info and "field_of_view" in info
