"""run.json of a run folder: what the run is, as far as it may hold it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fedmerit.errors import BadInput
from fedmerit.files import as_file_name, read_json, require_inside, require_no_code
from fedmerit.schema.declarations import read
from fedmerit.schema.results import EXPECTED
from fedmerit.schema.rules import LONGEST_SITE, SITE_NAME

PROGRAMS = ("nvflare", "sites")  # folders of a run folder in which NVFlare, and the sites' scripts, work
Name = Annotated[str, AfterValidator(as_file_name)]
MOST_SITES = 1000  # what is computed of all pairs of them has to fit into memory


def _as_site_name(name: str) -> str:
    """Return the name of a site; ValueError if it has letters that can look like others."""
    if not re.fullmatch(SITE_NAME, name):
        raise ValueError(f"is {ascii(name)[:130]}, expected 1 to {LONGEST_SITE} letters from A to z, digits, - and _")
    return name


class _Plan(BaseModel):
    model_config = ConfigDict(strict=True)
    network: dict[str, Any] = {}
    guard: dict[str, Any] = {}
    preprocessing: dict[str, Any] | None = None


class _Recorded(BaseModel):
    """The fields of a run.json that anything rests on; a missing one is reported when it is needed."""

    model_config = ConfigDict(strict=True)
    run: str = ""
    method: str = ""
    task: str = ""
    engine: str = ""
    seed: int = 0
    metric: str = ""
    fold: int | None = None
    rounds: int = Field(0, ge=0, le=1_000_000)
    sites: list[Annotated[str, AfterValidator(_as_site_name)]] = Field([], max_length=MOST_SITES)
    labels: list[Name] = []
    undefined: list[str] = []
    estimates: bool = False
    parameters: dict[str, Any] = {}
    training: dict[str, Any] = {}
    plan: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    packages: dict[str, str] = {}
    attacks: dict[str, str] = {}
    parts: dict[str, str] = {}
    site_digests: dict[str, str] | None = None
    server_digests: dict[str, str] | None = None
    privacy: list[str] = []
    track: list[str] = []
    only: list[str] | None = None
    image_size: list[int] | None = Field(None, min_length=2, max_length=2)
    sites_folder: str | None = None
    server_sites: str | None = None
    threads: int | None = None


class RunInfo(dict[str, Any]):
    """The content of ``file``, a run.json; `BadInput` names the file if it lacks a field that is needed."""

    def __init__(self, file: Path, content: Mapping[str, Any]):
        super().__init__(content)
        self.file = file

    def __missing__(self, name: str) -> Any:
        raise BadInput(f"{self.file}: lacks {name}; {EXPECTED}")


def read_run(run: Path) -> RunInfo:
    """Read run.json of a run folder.

    Raises:
        BadInput: there is none, it is not what a run writes, or the folder holds code, or a symbolic link that leads
            out of it; they are named.
    """
    file = Path(run) / "run.json"
    require_inside(Path(run))
    require_no_code(Path(run), PROGRAMS)
    content = read_json(file)
    try:
        read(_Recorded, content, file)
        read(_Plan, content.get("plan", {}), file)
    except BadInput as error:
        raise BadInput(f"{error}; {EXPECTED}") from None
    return RunInfo(file, content)
