"""What commands share: the terminal, how errors end, options that several take. Loads nothing heavy."""

import logging
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text
from typer.core import TyperGroup

from fedmerit.configuration.recipes import RECIPES
from fedmerit.errors import BadInput, RunFailed, printable
from fedmerit.files import is_full

if TYPE_CHECKING:
    from fedmerit_evaluation.studies.cluster import Workers

# The keys of `METHODS` in `fedmerit.methods.registry` and of `TASKS` in `fedmerit.configuration.run`, which load torch
METHODS = (
    "standalone", "pooled", "fedavg", "fedce", "fedce_nvflare", "cgsv", "rffl", "dw", "eu", "rr", "cffl",
    "cffl_released", "fedave", "fedsac", "qfedavg", "fedci", "eci", "fedvalue", "cycle", "vpdl", "fedbn", "silobn",
    "fedprox", "fedavgm", "fedadam", "scaffold", "ditto", "shapfed", "median", "trimmed", "krum",
)  # fmt: skip
TASKS = ("prostate", "fundus", "fundus-disc")

WHOLE = 1000  # characters, more than any line of help


class PlainConsole(Console):
    """Prints names of sites, jobs and paths as they are, whoever chose them: they neither look like markup nor obey."""

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich's, control characters written out, in cells of tables too."""
        return super().render_str(printable(text, "\n\t"), **options)


console = PlainConsole()
log = logging.getLogger("fedmerit.cli")  # silent, unless --log or --verbose asks for it
log.addHandler(logging.NullHandler())


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """What a service manager, a cluster or a closed terminal sends ends a command as Ctrl-C does: nothing is left."""
    heard = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        heard = []  # Python's rule
    try:
        for one in heard:  # not of those that are ignored, as `nohup` has it
            signal.signal(one, signal.default_int_handler)
        yield
    finally:
        for one in heard:
            signal.signal(one, signal.SIG_DFL)


class Commands(TyperGroup):
    """Commands whose `BadInput` and `RunFailed` end as a message on standard error and exit code 2 or 1.

    So does what the system says of a file: 2, and 1 where the disk is full.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As typer shows it, but without the Markdown and tracebacks that it loads for that, which take the longest."""
        commands = [(name, command.get_short_help_str(WHOLE)) for name, command in self.commands.items()]
        options = [record for option in self.get_params(ctx) if (record := option.get_help_record(ctx))]
        console.print(Padding(Text(f"{self.get_usage(ctx)}\n\n{self.help}\n"), (1, 1, 0, 1)))
        for title, rows in (("Options", options), ("Commands", commands)):
            table = Table.grid(Column(style="bold cyan", no_wrap=True), Column(), padding=(0, 2, 0, 0))
            for name, text in rows:
                table.add_row(name, Text(text))
            console.print(Panel(table, title=title, title_align="left", border_style="dim"))

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the user named."""
        try:
            with ended_as_by_ctrl_c():
                return super().invoke(ctx)
        except (BadInput, RunFailed) as error:
            log.error("%s", error)
            _tell_error(printable(str(error), "\n\t"))
            raise typer.Exit(2 if isinstance(error, BadInput) else 1) from None
        except OSError as error:
            if is_full(error):
                _tell_error(printable(f"the disk is full ({error}); make room, then give the same command again"))
                raise typer.Exit(1) from None
            if error.filename is None:
                raise
            log.error("%s", error, exc_info=error)
            told = f"{error.filename}: {error.strerror or error}; check the path and who may use it, or name another"
            _tell_error(printable(told))
            raise typer.Exit(2) from None


def _tell_error(text: str) -> None:
    typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(text, err=True)


class Engine(StrEnum):
    """Where a run runs."""

    sim = "sim"
    local = "local"
    poc = "poc"


ENGINE_HELP = "NVFlare's simulator, real processes (poc), or one process."

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the method, the training or the network."),
]
Recipe = Annotated[
    str | None,
    typer.Option(metavar="|".join(RECIPES), help="How to train where --set says nothing; quick: to try things out."),
]
Preset = Annotated[
    str | None,
    typer.Option(metavar="paper|METHOD", help="As the method's paper trains, or as the paper of another does."),
]
Finish = Annotated[
    str | None,
    typer.Option(metavar="none|own", help="own: each site takes home the best for its own patients, or what it had."),
]
Method = typer.Option(
    help=", ".join(METHODS), autocompletion=lambda incomplete: [one for one in METHODS if one.startswith(incomplete)]
)
Methods = Annotated[
    str,
    typer.Option(
        help="Names, with parameters where wanted: fedavg,fedce:combine=plus; or all that work (scaffold needs sgd)."
    ),
]
Sites = typer.Option(help="Folder of site folders.")
SitesFolder = Annotated[Path, Sites]
Rounds = Annotated[int, typer.Option(help="Rounds of each run.")]
Jobs = Annotated[int | None, typer.Option(help="Runs at a time.", show_default="by free cores and memory")]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS|slurm", help="Where to train: docs/clusters.md.", show_default="this machine"),
]
Threads = Annotated[int | None, typer.Option(help="Sites at work at a time.", show_default="cores")]
Device = Annotated[str | None, typer.Option(help="cuda:0 for all, or SITE=cuda:0,SITE=cpu.", show_default="auto")]
ServerSites = Annotated[
    Path | None,
    typer.Option(help="Site folders of the server's own, to validate on instead of what sites set aside."),
]
Privacy = Annotated[
    list[str] | None,
    typer.Option(metavar="KIND:NAME=VALUE,NAME=VALUE", help="What updates pass on leaving, or he: docs/privacy.md."),
]
Track = Annotated[
    list[str] | None,
    typer.Option(metavar="tensorboard|mlflow[:uri=URL]", help="Show the rounds' scalars live, at the server."),
]
RoundTimeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="To wait for a site in a round before it goes on.", show_default="no limit"),
]
Contributions = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN",
        help="Finished run of the same sites that says what they contribute (fedsac, cgsv, cffl, fedave).",
    ),
]
Values = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[:PARAMETER=VALUE],...",
        help="Observe for values of sites: multi_round, one_round, leave_one_out_loss; of standalone, local_only.",
    ),
]
KeepUpdates = Annotated[
    bool, typer.Option("--keep-updates", help="Keep all updates at the server, so that `value` can tell afterwards.")
]
OutFolder = Annotated[Path, typer.Option(help="Folder of the run folders; what is done there is not done again.")]
Truth = Annotated[Path | None, typer.Option(help="What `fedmerit loo` or `fedmerit shapley` wrote, on the same sites.")]


def specs_of(text: str | None) -> list[str] | None:
    """Specs parted by commas, whose parameters are parted by colons or commas; None where there are none."""
    return [spec for spec in re.split(r",(?!\w+=)", text) if spec] if text else None


def given(**options: Any) -> dict[str, Any]:
    """The options that have a value; the others are left to whoever takes them."""
    return {name: value for name, value in options.items() if value is not None}


def assignments(settings: list[str] | None, option: str = "--set") -> dict[str, str]:
    """The values of an option by name; `BadInput` where one is not NAME=VALUE, or a name is given twice."""
    values: dict[str, str] = {}
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not name or not equals:
            raise BadInput(f"{option} {name}: expected NAME=VALUE")
        if name in values:
            raise BadInput(f"{option} {name}: given twice, {values[name]} and {value}; give it once")
        values[name] = value
    return values


Guard = Annotated[
    str | None,
    typer.Option(metavar="on|off", help="Bounds and verdicts of docs/trust.md; off: papers' forms.", show_default="on"),
]
OnVerdict = Annotated[
    str | None,
    typer.Option(metavar="show|withhold|exclude", help="What a verdict does to a site.", show_default="withhold"),
]


def settings_of(
    settings: list[str] | None,
    recipe: str | None,
    finish: str | None = None,
    preset: str | None = None,
    guard: str | None = None,
    on_verdict: str | None = None,
) -> dict[str, str]:
    """What --set, --recipe, --finish, --preset, --guard and --on-verdict say."""
    named = given(recipe=recipe, final_model=finish, preset=preset, guard=guard, on_verdict=on_verdict)
    return {**named, **assignments(settings)}


def with_contributions(settings: Mapping[str, Any], run: Path, sites: Sequence[str]) -> dict[str, Any]:
    """The settings, and among them what --contributions stands for: what these sites contributed to a finished run."""
    from fedmerit.engines.given_contributions import format_setting, read_contributions

    if "contributions" in settings:
        raise BadInput("--contributions: also given by --set; give them once")
    return {**settings, "contributions": format_setting(read_contributions(run, sites))}


def workers_of(jobs: int | None, cluster: str | None, soon: bool = True) -> "Workers":
    """The processes that --jobs and --cluster ask for; `BadInput` where they cannot be had.

    Where they are needed ``soon`` they import what runs need while the command does what is to be done before: the
    earlier this is called, the better.
    """
    from fedmerit_evaluation.studies.run_processes import begin_processes

    require_jobs(jobs)
    if soon and cluster is None and jobs != 1:
        begin_processes()
    from fedmerit_evaluation.studies.cluster import Workers

    return Workers(jobs, cluster, lambda text: console.print(text, soft_wrap=True))


def parse_whole(text: str, option: str, least: int) -> list[int]:
    """The whole numbers of ``10,30``; `BadInput` where one is none, or is below ``least``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) >= least for part in parts):
        raise BadInput(f"{option} {text}: expected whole numbers from {least} on, such as 10,30")
    return [int(part) for part in parts]


def parse_names(text: str, option: str) -> list[str]:
    """The names of sites of ``A,B``; `BadInput` where one is empty, or there twice."""
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise BadInput(f"{option} {text}: expected names of sites such as A,B, each once")
    return names


def tell(text: str) -> None:
    """A line on standard output as it is: no breaks, no control characters."""
    console.print(printable(text), soft_wrap=True, highlight=False)


def plain_table(*headings: str) -> Table:
    """Without lines; what is too long for its column goes on below, so that no path or id is cut."""
    return Table(*(Column(heading, overflow="fold") for heading in headings), box=None)


def require_jobs(jobs: int | None) -> None:
    """`BadInput` where --jobs is no number of processes."""
    if jobs is not None and jobs < 1:
        raise BadInput(f"--jobs {jobs}: expected 1 or more")


def last_round(record: Mapping[str, Any], weighed: bool = True) -> str:
    """A ledger record in at most 28 characters: mean validation Dice and, where ``weighed``, the range of weights."""
    dice, weights = (list(record[name].values()) for name in ("validation_dice", "weights"))
    text = f"Dice {sum(dice) / len(dice):.1%}"
    return f"{text}, weights {100 * min(weights):.0f}-{max(weights):.0%}" if weighed else text
