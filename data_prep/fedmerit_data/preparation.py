"""The options of a preparation: raw data, and how to prepare them."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.files import record_hash, sha256
from fedmerit.schema.configuration.data import DataPlan
from fedmerit.schema.declarations import check
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.version import package_version
from fedmerit_data.kinds import GENERIC, KINDS
from fedmerit_data.options import RATIOS, PreparationOptions
from fedmerit_data.readers.generic import generic_kind
from fedmerit_data.readers.kind import Kind
from fedmerit_data.readers.label_map import ANY, LabelMap
from fedmerit_data.readers.labelled_images import Allowed
from fedmerit_data.readers.lists import stated_channels, stated_labels
from fedmerit_data.readers.patients import Lookup, read_lookup
from fedmerit_data.splits import Earlier, read_earlier

DISC_MULTIPLE = 3.0


@dataclass(frozen=True)
class Preparation(PreparationOptions):
    """The raw data and options of a preparation: equal options give equal bytes.

    ``field_of_view``, ``crop`` and ``crop_multiple`` get the kind's defaults.

    Raises:
        BadInput: an argument is out of its range, or does not belong to the kind.
    """

    pictures: bool = False  # draw ``out``/overview, which shows images and is as private as they are
    data_plan: DataPlan | None = None  # in place of size and field of view; it also sets the distance of slices

    def __post_init__(self) -> None:
        if self.data_plan is not None:
            object.__setattr__(self, "size", self.data_plan.size)
            object.__setattr__(self, "field_of_view", self.data_plan.field_of_view)
        if self.kind == GENERIC and self.source is not None:
            if self.labels is None:
                object.__setattr__(self, "labels", stated_labels(Path(self.source)))
            if self.channels is None:
                object.__setattr__(self, "channels", stated_channels(Path(self.source)))
        try:
            check(self)
        except ValueError as error:
            raise BadInput(str(error)) from None
        for fault in self._faults():
            raise BadInput(fault)
        crop = self.crop or self.layout.crops[0]
        if self.field_of_view is None:
            object.__setattr__(self, "field_of_view", self.layout.field_of_view)
        if crop == "disc" and self.crop_multiple is None:
            object.__setattr__(self, "crop_multiple", DISC_MULTIPLE)
        object.__setattr__(self, "crop", crop)
        if self.folds:
            object.__setattr__(self, "ratios", (1 - 2 / self.folds, 1 / self.folds, 1 / self.folds))

    def _faults(self) -> Iterator[str]:
        """Yield errors in the fields; each check may rely on those before it."""
        if self.kind not in KINDS:
            yield f"kind {self.kind!r}: expected one of {', '.join(KINDS)}"
        own = self._generic_options
        if self.kind != GENERIC and (unfit := [name for name in own if getattr(self, name) is not None]):
            yield f"{', '.join(unfit)}: fixed for kind {self.kind}; only kind {GENERIC} takes them"
        if self.expert is not None and KINDS[self.kind].of_expert is None:
            several = ", ".join(name for name, kind in KINDS.items() if kind.of_expert)
            yield f"expert {self.expert}: kind {self.kind} has no masks by several experts; those that have: {several}"
        if KINDS[self.kind].needs_source and self.source is None:
            yield f"kind {self.kind}: needs --source, the folder that holds its raw site folders"
        if KINDS[self.kind].needs_source and self.patients is not None:
            yield f"patients {self.patients}: kind {self.kind} takes all patients of its source; leave it out"
        layout, ratios, field, multiple = self.layout, self.ratios, self.field_of_view, self.crop_multiple
        if len(ratios) != 3 or not all(part >= 0 for part in ratios) or not math.isclose(sum(ratios), 1, abs_tol=1e-6):
            shares = ",".join(f"{ratio:g}" for ratio in ratios)
            yield f"ratios {shares}: expected three shares with sum 1, such as 0.5,0.25,0.25"
        if self.folds is not None:
            yield from self._fold_faults()
        if field is not None and layout.field_of_view is None and self.data_plan is None:
            yield f"field of view {field:g} mm: images of kind {self.kind} are not cropped by mm; leave it out"
        crop = layout.crops[0] if self.crop is None else self.crop
        if crop not in layout.crops:
            yield f"crop {crop!r}: kind {self.kind} allows {' or '.join(layout.crops)}"
        if multiple is not None and crop != "disc":
            yield f"crop multiple {multiple:g}: is the size of a disc crop, but the crop is {crop}; leave it out"

    def _fold_faults(self) -> Iterator[str]:
        if self.ratios != RATIOS:
            yield "ratios: folds are of equal size, so one of them tests and one validates; leave ratios or folds out"
        if self.server_share:
            yield (
                f"server share {self.server_share:g}: with folds every patient is tested, so none can be set aside; "
                "prepare other patients, and name their folder with --server-sites"
            )

    @cached_property
    def site_lookup(self) -> Lookup | None:
        """The function from a case to its site, if the option names a table's column or a pattern."""
        return None if self.site is None else read_lookup(self.site, "site")

    @property
    def layout(self) -> Kind:
        """The kind, that of one expert if asked for; the generic one with its options."""
        if self.kind != GENERIC:
            kind = KINDS[self.kind]
            return kind.of_expert(self.expert) if kind.of_expert and self.expert is not None else kind
        return generic_kind(**{name: value for name, value in self._generic_options.items() if value is not None})

    @property
    def _generic_options(self) -> dict[str, Any]:
        """The options that only the generic kind takes."""
        names = ("labels", "channels", "task", "modality", "site", "fill", "resample", "channel", "pairs")
        options = {name: getattr(self, name) for name in names}
        return options | ({"site": None} if self.site_lookup else {})

    @cached_property
    def earlier(self) -> Mapping[str, Earlier]:
        """The splits of the earlier site folders, by site."""
        return {} if self.like is None else read_earlier(Path(self.like), self.folds)

    def raw_folder(self, out: Path) -> Path:
        """Return the folder of the raw files of a preparation of ``out``, given or generated."""
        return out.with_name(f"{out.name}-raw") if self.source is None else Path(self.source)

    def record(self) -> dict[str, Any]:
        """Return the fields of site.json on how it was prepared."""
        record: dict[str, Any] = {
            "source": self.kind,
            "ratios": list(self.ratios),
            **({"folds": self.folds} if self.folds else {}),
            **({"expert": self.expert} if self.expert else {}),
            "seed": self.seed,
            **(
                {}
                if self.like is None
                else {"like": record_hash({name: vars(one) for name, one in self.earlier.items()})}
            ),
            "slices": self.slices,
            "server_share": self.server_share,
            "patient_table": None if self.patient_table is None else _digest(str(self.patient_table)),
            **({"groups": self.groups.rpartition(":")[2].split(",")} if self.groups else {}),
            "field_of_view": self.field_of_view,
            "crop": self.crop,
            "crop_multiple": self.crop_multiple,
            "normalisation": self.layout.normalisation,
        }
        if self.data_plan is not None:
            record["data_plan"] = self.data_plan.to_dict()
        if self.kind == GENERIC:
            labels = ANY if self.labels is None else self.labels
            record["label_values"] = {name: list(values) for name, values in labels.items()}
            record |= {"fill": self.fill, "resample": bool(self.resample), "channel": self.channel}
            if isinstance(self.channels, tuple):
                record["channels_asked"] = list(self.channels)
        return record

    def meaning(self) -> dict[str, Any]:
        """Return the fields of site.json on the meaning of images and labels."""
        return {"task": self.layout.task, "labels": list(self.layout.labels), "channels": self.layout.channels}

    def array_options(self, raw: Path) -> dict[str, Any]:
        """Return all that the stored arrays depend on: with other values, finished cases cannot be reused."""
        only_in_lists = (
            "groups",
            "ratios",
            "folds",
            "seed",
            "like",
            "slices",
            "server_share",
            "patient_table",
            "normalisation",
        )
        options = {name: value for name, value in self.record().items() if name not in only_in_lists}
        options |= {"size": self.size} | self.meaning()
        if self.kind == GENERIC:
            options["normalisation"] = self.layout.normalisation
        if self.layout.generate is not None:
            options |= {"seed": self.seed, "patients": self.patients, "raw": str(raw.resolve())}
        return options | {"fedmerit_version": package_version()}


def recorded_labels(site: SiteFolder) -> LabelMap:
    """Return the values of each label by site.json; of a kind with one label, all values above 0; {}: not stated."""
    stated: Any = site.info.get("label_values") or (dict.fromkeys(site.labels, ()) if len(site.labels) == 1 else {})
    return {name: tuple(values) for name, values in stated.items()}


def recorded_allowance(site: SiteFolder) -> Allowed:
    """Return what was done to images and masks on request, by site.json."""
    return Allowed(site.info.get("fill"), bool(site.info.get("resample")), site.info.get("channel"))


def recorded_kind(site: SiteFolder) -> Kind:
    """Return the kind that a site was prepared as, with its options, by site.json.

    Raises:
        BadInput: site.json does not state it.
    """
    info = site.info
    try:
        if info["source"] != GENERIC:
            kind, expert = KINDS[info["source"]], info.get("expert")
            return kind.of_expert(expert) if kind.of_expert and expert is not None else kind
        labels, by, allowed = recorded_labels(site), info["normalisation"], vars(recorded_allowance(site))
        return generic_kind(labels, site.channels, site.task, by, **allowed)
    except (KeyError, TypeError) as error:
        raise BadInput(f"{site.path / 'site.json'}: does not state how it was prepared ({error})") from None


def _digest(table: str) -> str:
    """Return the SHA-256 of a table of patients, or of the text that names a column or pattern."""
    return sha256(Path(table)) if Path(table).is_file() else hashlib.sha256(table.encode()).hexdigest()
