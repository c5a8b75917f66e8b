"""The options of a run, each once: the command line, TOML files, Python and run.json derive from `RunOptions`.

A field has the name, type, default, range and description of the option. `Shown` is how the command line shows it.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from fedmerit.errors import BadInput, suggest
from fedmerit.files import read_text
from fedmerit.schema.configuration.settings import RECIPES, ROUNDS
from fedmerit.schema.declarations import Label, Shown, assignment, parameters, read
from fedmerit.schema.rules import About, Choice, Count, Number, Switch, Text, fault
from fedmerit.schema.score_name import AUTO
from fedmerit.trust import NAMED, require_trusted, require_trusted_trackers

TRAINING, MACHINES, PROTECTION, STUDIES = "Training", "Machines", "Privacy", "Studies and records"
MOST_FILE = 1 << 20  # bytes of a file of options
NVFLARE_ONLY = ("round_timeout",)  # options that the local engine has no use for
OF_SCRIPTS = ("script", "model", "script_args", "script_timeout", "clients", "metric")  # instead of sites
MERGED = ("recipe", "preset")  # settings with an option of their own


STUDY_OPTIONS = (
    *OF_SCRIPTS, "rounds", "only", "threads", "device", "server_sites", "recipe", "preset", "settings", "privacy",
    "min_sites", "round_timeout", "values", "keep_updates", "share_models",
)  # fmt: skip


def parse_names(text: Any) -> Any:
    """Return the names of ``A,B``; lists pass. Raises `ValueError` if a name is empty or occurs twice."""
    names = [name.strip() for name in text.split(",")] if isinstance(text, str) else text
    is_list = isinstance(names, list | tuple) and all(isinstance(name, str) and name for name in names)
    if not is_list or len(set(names)) < len(names):
        fault("expected names of sites such as A,B, each once")
    return names


def split_specs(text: Any) -> Any:
    """Return the specs of a text, which commas separate, unless a parameter follows. Lists pass."""
    return [spec for spec in re.split(r",(?!\w+=)", text) if spec] if isinstance(text, str) else text


Names = Annotated[tuple[str, ...], BeforeValidator(parse_names)]
Specs = Annotated[tuple[str, ...], BeforeValidator(split_specs)]


class Waiting(NamedTuple):
    """The number of sites that have to answer for a round to end, and after how many seconds (0: as the engine has
    it).
    """

    min_sites: int
    round_timeout: float

    def require_sites(self, number: int) -> None:
        """Raise `BadInput` if so many sites cannot be enough for a round."""
        if self.min_sites > number:
            raise BadInput(f"min_sites={self.min_sites}: expected 1 to the number of sites, {number}")

    @classmethod
    def of_record(cls, info: Mapping[str, Any]) -> Self:
        """Read what run.json has."""
        return cls(*(info[name] for name in cls._fields))


JOB_WAITING = Waiting(2, 0.0)  # of an exported job, if nothing else is asked for


class RunOptions(BaseModel):
    """A choice of what a run is made with."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)  # `--help` needs no validator

    out: Annotated[Path | None, About("Run folder to write.")] = None
    method: Annotated[str | None, Text(), About("Such as fedce; `fedmerit methods` lists all.")] = None
    sites: Annotated[Path | None, About("Folder of site folders.")] = None
    rounds: Annotated[int, Count(1), About("Rounds to train.")] = ROUNDS
    seed: Annotated[int, Count(), About("Random seed.")] = 0
    fold: Annotated[int | None, Count(), About("Split of sites that were prepared with --folds."), Shown("NUMBER")] = (
        None
    )
    engine: Annotated[
        str, Choice(("sim", "local", "poc")), About("NVFlare's simulator, one process, or NVFlare's own.")
    ] = "sim"
    only: Annotated[Names, About("Sites of --sites that take part."), Shown("SITE,SITE", "all", is_recorded=True)] = ()

    script: Annotated[Path | None, About("NVFlare client script, in place of --sites."), Shown("FILE.py")] = None
    model: Annotated[str | None, Text(), About("Its model, of a class without arguments."), Shown("FILE.py:NAME")] = (
        None
    )
    script_args: Annotated[str, Text(), About("Its arguments."), Shown("TEXT")] = ""
    script_timeout: Annotated[float, Number(0), About("Longest wait for it."), Shown("SECONDS", "no limit")] = 0.0
    clients: Annotated[int, Count(1), About("Sites that run it."), Shown("NUMBER")] = 2
    metric: Annotated[str, Text(), About("Its measure, 0 to 1."), Shown("NAME", "its own")] = AUTO

    recipe: Annotated[
        str | None,
        Text(),
        About("Training defaults; quick: for trials."),
        Shown("|".join(RECIPES), "default", panel=TRAINING),
    ] = None
    preset: Annotated[
        str | None,
        Text(),
        About("Train as the paper of this or another method."),
        Shown("paper|METHOD", panel=TRAINING),
    ] = None
    settings: Annotated[
        dict[str, Any],
        About("A parameter: `fedmerit methods METHOD` lists them."),
        Shown("NAME=VALUE", flag="set", panel=TRAINING),
    ] = {}

    threads: Annotated[
        int | None, Count(1), About("Concurrent sites."), Shown("NUMBER", "cores", panel=MACHINES, is_recorded=True)
    ] = None
    device: Annotated[
        str,
        Text(),
        About("cuda:0 for all, or SITE=cuda:0,SITE=cpu."),
        Shown("DEVICE", "auto", panel=MACHINES, is_recorded=True),
    ] = ""
    server_sites: Annotated[
        Path | None, About("The server's own site folders, to validate on."), Shown(panel=MACHINES)
    ] = None
    min_sites: Annotated[
        int,
        Count(1),
        About("Sites that have to answer for a round to end."),
        Shown("NUMBER", panel=MACHINES, is_recorded=True),
    ] = 1
    round_timeout: Annotated[
        float,
        Number(0),
        About("Longest wait for sites beyond --min-sites."),
        Shown("SECONDS", "automatic", panel=MACHINES, is_recorded=True),
    ] = 0.0
    track: Annotated[
        tuple[str, ...],
        Text(),
        About("Write live curves."),
        Shown("tensorboard|mlflow[:uri=URL]", panel=MACHINES, is_recorded=True),
    ] = ()

    privacy: Annotated[
        tuple[str, ...],
        Text(),
        About("Filter of updates: percentile, gaussian; he: encryption."),
        Shown("KIND[:NAME=VALUE,...]", panel=PROTECTION, is_recorded=True),
    ] = ()
    share_models: Annotated[
        bool | None, Switch(), About("Sites may get models of other single sites."), Shown(panel=PROTECTION)
    ] = None
    values: Annotated[
        Specs,
        About("Observe sites' values: multi_round, one_round, leave_one_out_loss, local_only."),
        Shown("NAME[:NAME=VALUE],...", panel=STUDIES),
    ] = ()
    keep_updates: Annotated[
        bool, Switch(), About("Keep all updates, for `fedmerit value estimate`."), Shown(panel=STUDIES)
    ] = False

    @model_validator(mode="after")
    def _check_engine(self) -> Self:
        if self.engine == "local" and self.round_timeout:
            raise ValueError(f"--round-timeout {self.round_timeout:g}: only with NVFlare's engines; take --engine sim")
        if self.engine == "poc" and self.threads:
            raise ValueError(f"--threads {self.threads}: with --engine poc all sites are concurrent; leave it out")
        return self

    @classmethod
    def read(cls, values: Mapping[str, Any], source: str = "", texts: bool = False, label: Label = assignment) -> Self:
        """Return the options of ``values`` by name; arguments as of `fedmerit.schema.declarations.read`.

        Raises:
            BadInput: it names ``source``, the option, its value as ``label`` writes it, and what was expected.
        """
        for name in values:
            if name not in cls.model_fields:
                near = suggest(name, [*flags(), *cls.model_fields], flags())
                message = f"unknown option {name}{near}; a parameter of method or training is in settings"
                raise BadInput(f"{source}: {message}" if source else message)
        return read(cls, values, source, texts, label)

    @classmethod
    def read_file(cls, file: Path) -> Self:
        """Read the options in a TOML file; `BadInput` naming it and what cannot be used."""
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
        """The settings, above those that have options of their own."""
        named = {name: value for name in MERGED if (value := getattr(self, name)) is not None}
        return {**named, **self.settings}

    def given(self) -> dict[str, Any]:
        """Return the options that were given, by name; `all_settings` among them as ``settings``, if there are any."""
        found = {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}
        rest = {name: value for name, value in found.items() if name not in (*MERGED, "settings")}
        return rest | ({"settings": settings} if (settings := self.all_settings) else {})

    def for_study(self, *more: str) -> dict[str, Any]:
        """Return what every run of a study is created with, beside its method, seed and settings: sites, rounds,
        and the given
        ones; and the values of ``more`` options even if they were not given."""
        rest = {name: value for name, value in self.given().items() if name not in ("method", "seed", "settings")}
        return {**rest, **{name: getattr(self, name) for name in ("rounds", *more)}}

    def require_sites(self) -> None:
        """Raise `BadInput` if nothing says what trains: site folders, or a script and its model."""
        if self.sites is None and self.script is None:
            raise BadInput("--sites: missing; name the folder of site folders, or a --script and its --model instead")
        if self.script is not None and self.model is None:
            raise BadInput("--model: missing; a --script needs it, as FILE.py:NAME")

    @property
    def has_own_processes(self) -> bool:
        """Whether the sites of a run have processes of their own: on NVFlare, and with a script."""
        return self.engine != "local" or self.script is not None

    def with_given(self, other: Self) -> Self:
        """Return the options, replaced by those that ``other`` was given; settings by name."""
        both = {**self.given(), **other.given()}
        settings = self.all_settings | other.all_settings
        return type(self).read(both | ({"settings": settings} if settings else {}))

    def recorded(self) -> dict[str, Any]:
        """Return what run.json records of the options unchanged."""
        values = self.model_dump(mode="json")
        return {name: values[name] for name, shown in _shown_fields().items() if shown.is_recorded}

    @property
    def waiting(self) -> Waiting:
        """The number of sites for which the server waits, and how long."""
        return Waiting(self.min_sites, self.round_timeout)


def flags() -> dict[str, str]:
    """Return the fields of `RunOptions` that have another name on the command line, by that name."""
    return {shown.flag: name for name, shown in _shown_fields().items() if shown.flag}


def _shown_fields() -> dict[str, Shown]:
    return {name: option.mark(Shown, Shown()) for name, option in parameters(RunOptions).items()}
