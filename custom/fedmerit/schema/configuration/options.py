"""The options of a run, each once: the command line, TOML files, Python and run.json derive from `RunOptions`.

A field has the name, type, default, range and description of the option. `Shown` is how the command line shows it.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from fedmerit.errors import BadInput, suggest
from fedmerit.files import read_text
from fedmerit.schema.configuration.settings import RECIPES, ROUNDS
from fedmerit.trust import NAMED, require_trusted, require_trusted_trackers

TRAINING, MACHINES, PROTECTION, STUDIES = "Training", "Machines", "Guard and privacy", "Studies and records"
MOST_FILE = 1 << 20  # bytes of a file of options
NVFLARE_ONLY = ("round_timeout", "track")  # options that the local engine has no use for
OF_SCRIPTS = ("script", "model", "script_args", "script_timeout", "clients", "metric")  # instead of sites
MERGED = ("recipe", "preset", "final_model", "guard", "on_verdict")  # settings with an option of their own


STUDY_OPTIONS = (
    *OF_SCRIPTS, "rounds", "only", "threads", "device", "server_sites", "recipe", "preset", "final_model", "guard",
    "on_verdict", "settings", "privacy", "min_sites", "round_timeout", "values", "keep_updates",
    "share_models",
)  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """How the command line shows an option, and whether run.json records it unchanged."""

    metavar: str = ""
    default: str = ""  # in words, if the default is none
    flag: str = ""  # if the option has another name than the field: one item of it each time
    panel: str = "Options"
    is_recorded: bool = False


def parse_names(text: Any) -> Any:
    """The names of ``A,B``; `ValueError` if one is empty or occurs twice. Lists pass."""
    names = [name.strip() for name in text.split(",")] if isinstance(text, str) else text
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError("expected names of sites such as A,B")
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("expected names of sites such as A,B, each once")
    return names


def split_specs(text: Any) -> Any:
    """Specs separated by commas, whose parameters are separated by colons or commas. Lists pass."""
    return [spec for spec in re.split(r",(?!\w+=)", text) if spec] if isinstance(text, str) else text


Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Names = Annotated[tuple[str, ...], BeforeValidator(parse_names)]
Specs = Annotated[tuple[str, ...], BeforeValidator(split_specs)]


def _label(name: str, value: Any) -> str:
    return f"{name}={value!r}"


class Waiting(NamedTuple):
    """How many sites have to answer for a round to end, and after how many seconds (0: as the engine has it)."""

    min_sites: int
    round_timeout: float

    def require_sites(self, number: int) -> None:
        """`BadInput` if so many sites cannot be enough for a round."""
        if self.min_sites > number:
            raise BadInput(f"min_sites={self.min_sites}: expected 1 to the number of sites, {number}")

    @classmethod
    def of_record(cls, info: Mapping[str, Any]) -> Self:
        """As run.json has it."""
        return cls(*(info[name] for name in cls._fields))


JOB_WAITING = Waiting(2, 0.0)  # of an exported job, if nothing else is asked for


class RunOptions(BaseModel):
    """What a run can be asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    out: Annotated[Path | None, Field(description="Run folder to write.")] = None
    method: Annotated[str | None, Field(description="Such as fedce; `fedmerit methods` lists all.")] = None
    sites: Annotated[Path | None, Field(description="Folder of site folders.")] = None
    rounds: Annotated[Whole, Field(ge=1, description="Rounds to train.")] = ROUNDS
    seed: Annotated[Whole, Field(ge=0, description="Random seed.")] = 0
    fold: Annotated[
        Whole | None, Field(ge=0, description="Split of sites that were prepared with --folds."), Shown("NUMBER")
    ] = None
    engine: Annotated[
        Literal["sim", "local", "poc"], Field(description="NVFlare's simulator, one process, or NVFlare's own.")
    ] = "sim"
    only: Annotated[
        Names, Field(description="Sites of --sites that take part."), Shown("SITE,SITE", "all", is_recorded=True)
    ] = ()

    script: Annotated[
        Path | None, Field(description="NVFlare client script, in place of --sites."), Shown("FILE.py")
    ] = None
    model: Annotated[
        str | None, Field(description="Its model, of a class without arguments."), Shown("FILE.py:NAME")
    ] = None
    script_args: Annotated[str, Field(description="Its arguments."), Shown("TEXT", "")] = ""
    script_timeout: Annotated[
        Number, Field(ge=0, description="Longest wait for it."), Shown("SECONDS", "no limit")
    ] = 0.0  # fmt: skip
    clients: Annotated[Whole, Field(ge=1, description="Sites that run it."), Shown("NUMBER")] = 2
    metric: Annotated[str, Field(description="Its measure, 0 to 1."), Shown("NAME")] = "dice"

    recipe: Annotated[
        str | None, Field(description="Training defaults; quick: for trials."),
        Shown("|".join(RECIPES), "default", panel=TRAINING),
    ] = None  # fmt: skip
    preset: Annotated[
        str | None, Field(description="Train as the paper of this or another method."),
        Shown("paper|METHOD", panel=TRAINING),
    ] = None  # fmt: skip
    final_model: Annotated[
        Literal["method", "selected"] | None,
        Field(description="selected: a site receives the best on its own validation cases."),
        Shown("method|selected", "method", panel=TRAINING),
    ] = None
    settings: Annotated[
        dict[str, Any],
        Field(description="A parameter: `fedmerit methods METHOD` lists them."),
        Shown("NAME=VALUE", flag="set", panel=TRAINING),
    ] = {}

    threads: Annotated[
        Whole | None, Field(ge=1, description="Concurrent sites."),
        Shown("NUMBER", "cores", panel=MACHINES, is_recorded=True),
    ] = None  # fmt: skip
    device: Annotated[
        str,
        Field(description="cuda:0 for all, or SITE=cuda:0,SITE=cpu."),
        Shown("DEVICE", "auto", panel=MACHINES, is_recorded=True),
    ] = ""
    server_sites: Annotated[
        Path | None, Field(description="The server's own site folders, to validate on."), Shown(panel=MACHINES)
    ] = None
    min_sites: Annotated[
        Whole, Field(ge=1, description="Sites that have to answer for a round to end."),
        Shown("NUMBER", panel=MACHINES, is_recorded=True),
    ] = 1  # fmt: skip
    round_timeout: Annotated[
        Number,
        Field(ge=0, description="Longest wait for sites beyond --min-sites."),
        Shown("SECONDS", "automatic", panel=MACHINES, is_recorded=True),
    ] = 0.0
    track: Annotated[
        tuple[str, ...], Field(description="Show scalars live, at the server."),
        Shown("tensorboard|mlflow[:uri=URL]", "", panel=MACHINES, is_recorded=True),
    ] = ()  # fmt: skip

    guard: Annotated[
        Literal["on", "off"] | None,
        Field(description="off: the papers' algorithms, without bounds and verdicts."),
        Shown("on|off", "on", panel=PROTECTION),
    ] = None
    on_verdict: Annotated[
        Literal["show", "withhold", "exclude"] | None,
        Field(description="Action against detected free riders."),
        Shown("show|withhold|exclude", "withhold", panel=PROTECTION),
    ] = None
    privacy: Annotated[
        tuple[str, ...],
        Field(description="Filter of updates: percentile, svt, gaussian; he: encryption."),
        Shown("KIND[:NAME=VALUE,...]", "", panel=PROTECTION, is_recorded=True),
    ] = ()
    share_models: Annotated[
        Annotated[bool, Strict()] | None,
        Field(description="Sites may get models of other single sites."),
        Shown(panel=PROTECTION),
    ] = None
    values: Annotated[
        Specs,
        Field(description="Observe sites' values: multi_round, one_round, leave_one_out_loss, local_only."),
        Shown("NAME[:NAME=VALUE],...", panel=STUDIES),
    ] = ()
    keep_updates: Annotated[
        bool, Strict(), Field(description="Keep all updates, for `fedmerit value estimate`."),
        Shown(panel=STUDIES),
    ] = False  # fmt: skip

    @model_validator(mode="after")
    def _check_engine(self) -> Self:
        if self.engine == "local" and self.round_timeout:
            raise ValueError(f"--round-timeout {self.round_timeout:g}: only with NVFlare's engines; take --engine sim")
        if self.engine == "poc" and self.threads:
            raise ValueError(f"--threads {self.threads}: with --engine poc all sites are concurrent; leave it out")
        return self

    @classmethod
    def read(cls, values: Mapping[str, Any], source: str = "", label: Callable[[str, Any], str] = _label) -> Self:
        """The options of these ``values`` by name.

        Raises:
            BadInput: it names ``source``, the option and its value as ``label`` writes them, and what was expected.
        """
        before = f"{source}: " if source else ""
        for name in values:
            if name not in cls.model_fields:
                near = suggest(name, [*flags(), *cls.model_fields], flags())
                raise BadInput(f"{before}unknown option {name}{near}; a parameter of method or training is in settings")
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            if not first["loc"]:  # of several options, which the message names
                raise BadInput(f"{before}{first['ctx']['error']}") from None
            name = str(first["loc"][0])
            field = cls.model_fields[name]
            raise BadInput(f"{before}{label(name, values[name])}: {_expected(first, field)}") from None

    @classmethod
    def read_file(cls, file: Path) -> Self:
        """The options that a TOML file holds; `BadInput` naming it and what cannot be used."""
        try:
            content = tomllib.loads(read_text(file, MOST_FILE))
        except BadInput as error:
            raise BadInput(f"--config {error}; expected a TOML file of options") from None
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{file}: not readable as TOML ({error})") from None
        found = cls.read(content, str(file))
        for named in NAMED.finditer(" ".join(map(str, [found.method, *found.settings.values()]))):
            require_trusted(named.group(), str(file))
        require_trusted_trackers(found.track, str(file))
        return found

    @property
    def all_settings(self) -> dict[str, Any]:
        """``settings``, and beneath them those that have options of their own."""
        named = {name: value for name in MERGED if (value := getattr(self, name)) is not None}
        return {**named, **self.settings}

    def given(self) -> dict[str, Any]:
        """The options that were given, by name; `all_settings` among them as ``settings``, if there are any."""
        found = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        rest = {name: value for name, value in found.items() if name not in (*MERGED, "settings")}
        return rest | ({"settings": settings} if (settings := self.all_settings) else {})

    def for_study(self, *more: str) -> dict[str, Any]:
        """What every run of a study is created with, beside its method, seed and settings: sites, rounds, and the given
        ones; and the values of ``more`` options even if they were not given."""
        rest = {name: value for name, value in self.given().items() if name not in ("method", "seed", "settings")}
        return {**rest, **{name: getattr(self, name) for name in ("rounds", *more)}}

    def require_sites(self) -> None:
        """`BadInput` if nothing says what trains: site folders, or a script and its model."""
        if self.sites is None and self.script is None:
            raise BadInput("--sites: missing; name the folder of site folders, or a --script and its --model instead")
        if self.script is not None and self.model is None:
            raise BadInput("--model: missing; a --script needs it, as FILE.py:NAME")

    @property
    def has_own_processes(self) -> bool:
        """Whether the sites of a run have processes of their own: on NVFlare, and with a script."""
        return self.engine != "local" or self.script is not None

    def with_given(self, other: Self) -> Self:
        """These options, replaced by those that ``other`` was given; settings by name."""
        both = {**self.given(), **other.given()}
        settings = self.all_settings | other.all_settings
        return type(self).read(both | ({"settings": settings} if settings else {}))

    def recorded(self) -> dict[str, Any]:
        """What run.json records of the options unchanged."""
        values = self.model_dump(mode="json")
        return {name: values[name] for name, shown in shown_fields().items() if shown.is_recorded}

    @property
    def waiting(self) -> Waiting:
        """For how many sites the server waits, and how long."""
        return Waiting(self.min_sites, self.round_timeout)


@cache
def shown_fields() -> dict[str, Shown]:
    """How each option is shown, by the name of its field."""
    return {
        name: next((one for one in field.metadata if isinstance(one, Shown)), Shown())
        for name, field in RunOptions.model_fields.items()
    }


def flags() -> dict[str, str]:
    """The fields by the name that they have on the command line, if it is another."""
    return {shown.flag: name for name, shown in shown_fields().items() if shown.flag}


def kind(field: FieldInfo) -> Any:
    """The type of an option's value, without None and constraints."""
    found = field.annotation
    options = [one for one in get_args(found) if one is not type(None)]
    if type(None) in get_args(found) and len(options) == 1:
        found = options[0]
    return get_args(found)[0] if get_origin(found) is Annotated else found


def value_range(field: FieldInfo) -> str:
    """The range of an option in words, "1 or more"; empty if it has none."""
    low = next((one.ge for one in field.metadata if getattr(one, "ge", None) is not None), None)
    return "" if low is None else f"{low:g} or more"


def _expected(error: Mapping[str, Any], field: FieldInfo) -> str:
    """What a value should have been, in words."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] in ("greater_than_equal", "finite_number"):
        return f"expected {value_range(field)}"
    found = kind(field)
    if get_origin(found) is Literal:
        return f"expected one of {', '.join(get_args(found))}"
    words = {int: "a whole number", float: "a number", bool: "true or false", Path: "a path", str: "a text"}
    of_kind = words.get(found) or ("a table of names and values" if get_origin(found) is dict else "a list of texts")
    return ", ".join(filter(None, (f"expected {of_kind}", value_range(field))))
