"""One plan for the volumes of all sites: how images are prepared, and the network and patches that fit them."""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import record_hash
from fedmerit.files import read_object
from fedmerit.schema.configuration.spec_syntax import build
from fedmerit.schema.parameters import Checked, parameter

ORGAN_SHARE = 1 / 3  # of the patches of a batch that show a label for certain (Isensee et al. 2021)


@dataclass(frozen=True)
class DataPlan(Checked):
    """What `fedmerit data plan` decides; plain numbers, since site folders carry it to others."""

    size: int = parameter(MISSING, "rows and columns of a prepared slice", low=16, high=4096)
    field_of_view: float = parameter(MISSING, "mm, side of a slice", low=10, high=1000)
    slice_distance: float = parameter(MISSING, "mm between prepared slices", low=0.01, high=100)
    patch: tuple[int, int, int] = parameter(MISSING, "slices, rows and columns that a step sees", low=2, high=1024)
    depth: int = parameter(MISSING, "levels of the network", low=2, high=9)
    width: int = parameter(MISSING, "channels of its first level", low=1, high=512)
    batch_size: int = parameter(MISSING, "patches of a step", low=1, high=4096)

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimetres between slices, rows and columns of prepared volumes."""
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
        """SHA-256, in hexadecimal."""
        return record_hash(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self) | {"patch": list(self.patch)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str) -> "DataPlan":
        """The plan that `to_dict` wrote; `BadInput` naming ``where`` if it is none."""
        plan: DataPlan = build(cls, values, f"{where}: data plan")
        return plan


def load_plan(file: Path) -> DataPlan:
    """That of a file that `fedmerit data plan` wrote; `BadInput` if it is none."""
    plan = read_plan(read_object(file), str(file))
    if plan is None:
        raise BadInput(f"{file}: holds no data plan; expected what `fedmerit data plan` writes")
    return plan


def read_plan(info: Mapping[str, Any], where: str) -> DataPlan | None:
    """That of a site.json; None: the site was prepared by none. `BadInput` if it is no plan."""
    stated = info.get("data_plan")
    if stated is not None and not isinstance(stated, Mapping):
        raise BadInput(f"{where}: data_plan is {type(stated).__name__}, expected a plan; run `fedmerit prepare` again")
    return None if stated is None else DataPlan.from_dict(stated, where)
