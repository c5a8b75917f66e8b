"""Run folders of sites that train by a script: on this machine, in a process for each, or on NVFlare."""

import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from fedmerit.contract import flat
from fedmerit.engines.local import OnExchange, carry_out
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import lock_folder, remove_partial_files, sha256, write_json
from fedmerit.machine import cores
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.configuration.run import configure_script, describe, read_plan
from fedmerit.schema.configuration.script import Script
from fedmerit.schema.declarations import read
from fedmerit.schema.messages import Answer, Reply, Task, Work, describe_failure
from fedmerit.schema.run_info import read_run
from fedmerit.schema.scores import Overlap
from fedmerit.seeds import random_seed
from fedmerit.server.requirements import require_sites
from fedmerit.server.server import Federation
from fedmerit.site.site import Site
from fedmerit.tensor_files import load_state
from fedmerit.trainers.factory import FIRST_MODEL
from fedmerit.trainers.script.named_tensors import load_weights
from fedmerit.trainers.script.trainer import ScriptTrainer
from fedmerit.trust import allow, allow_script, require_trusted_script

if TYPE_CHECKING:
    from fedmerit.engines.nvflare.local_scripts import LocalScript

OF_IMAGES = (*("sites", "fold", "server_sites", "recipe", "preset", "final_model", "contributions", "device"),)
ERRORS, OUTPUT = "errors.log", "script.log"  # in a site's folder of the run: why it gave no answer; what it printed
SAME = ("plan", "script", "sites", "engine", "privacy")  # of run.json, in runs that may stand for each other


class Launch(BaseModel):
    """How a run folder's sites start their script; run.json records it."""

    model_config = ConfigDict(strict=True, extra="forbid")
    file: str
    sha256: str
    clients: int = Field(ge=1)  # all sites that have it; those of the run may be fewer
    args: str = ""
    timeout: float = Field(0.0, ge=0)  # seconds to wait for an answer; 0: as long as it takes
    command: Literal[""] = ""  # no process of its own by a command
    transfer: Literal["FULL"] = "FULL"

    @property
    def sites(self) -> list[str]:
        """The names of all sites that have it."""
        return [f"site-{number}" for number in range(1, self.clients + 1)]


@dataclass(frozen=True)
class SiteScripts:
    """What trains at the sites of runs: read, and found fit to be sent."""

    launch: Launch
    script: Script
    first: Mapping[str, Tensor]  # the weights that all begin with
    names: list[str]  # of the sites that take part


def read_scripts(asked: RunOptions) -> SiteScripts:
    """The script and model that a person asks for, whose script this process may run from now on.

    Raises:
        BadInput: one is not there or cannot be used, or an option is of prepared images.
    """
    from fedmerit.engines.nvflare.script_recipe import describe_script, plain_weights, require_args

    for name in OF_IMAGES:
        if name in asked.model_fields_set:
            raise BadInput(f"--{name.replace('_', '-')}: of prepared images, and this run has a script; leave it out")
    file = (asked.script or Path()).resolve()
    if not file.is_file():
        raise BadInput(f"--script {asked.script}: file not found; expected the sites' Python script")
    require_args(asked.script_args)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_seed(asked.seed, "initial model"))
        model = load_model(str(asked.model))
    launch = Launch(
        file=str(file), sha256=sha256(file), clients=asked.clients, args=asked.script_args, timeout=asked.script_timeout
    )
    if unknown := sorted({*asked.only} - {*launch.sites}):
        raise BadInput(f"--only: no client is called {unknown[0]}; there are {', '.join(launch.sites)}")
    allow_script(launch.sha256)
    names = [name for name in launch.sites if name in (asked.only or launch.sites)]
    return SiteScripts(launch, describe_script(model, file, asked.metric or None), plain_weights(model), names)


def create_script_run(run: Path, asked: RunOptions) -> None:
    """Check what can be checked, then write the run folder's run.json and first model.

    Raises:
        BadInput: as of `read_scripts`, or the method needs what a script cannot do.
    """
    scripts = read_scripts(asked)
    allow(*asked.track)
    description = _describe(run.name, asked, scripts)
    run.mkdir(parents=True, exist_ok=True)
    with lock_folder(run):
        torch.save(dict(scripts.first), run / FIRST_MODEL)
        write_json(run / "run.json", description)


def _describe(name: str, asked: RunOptions, scripts: SiteScripts) -> dict[str, Any]:
    """run.json of a run that is asked for; `BadInput` if it cannot be."""
    from fedmerit.engines.nvflare.script_recipe import require_script_filters

    more: dict[str, Any] = {"seed": asked.seed, "settings": asked.all_settings, "values": asked.values}
    more |= {"keep_updates": asked.keep_updates, "share_models": asked.share_models}
    config = configure_script(str(asked.method), asked.rounds, scripts.script, **more)
    filters = require_script_filters(config, asked.privacy)
    require_sites(config, scripts.names)
    asked.waiting.require_sites(len(scripts.names))
    recorded = asked.recorded() | {"script": scripts.launch.model_dump(), "privacy": filters}
    return describe(name, config, scripts.names, asked.engine) | recorded


def require_same_script_run(run: Path, asked: RunOptions) -> None:
    """`BadInput` if a run folder is not what `create_script_run` would write now."""
    now = json.loads(json.dumps(_describe(run.name, asked, read_scripts(asked))))
    recorded = read_run(run)
    for name in SAME:
        before, asks = recorded.get(name), now[name]
        if before != asks:
            parts = [name]
            if isinstance(before, dict) and isinstance(asks, dict):
                parts = [f"{name}: {part}" for part in asks if before.get(part) != asks[part]]
            raise BadInput(f"{run}: was started with another {parts[0]}; give it the same, or choose another --out")


def has_script(run: Path) -> bool:
    """Whether a run's sites train by a script."""
    return "script" in read_run(run)


def load_model(text: str) -> nn.Module | Mapping[str, Tensor]:
    """The model of "FILE.py:NAME"; `BadInput` if there is none."""
    file, _, name = text.rpartition(":")
    path = Path(file).resolve()
    if not name.isidentifier() or not path.is_file():
        raise BadInput(f"--model {text}: expected FILE.py:NAME, of a class without arguments")
    sys.path.insert(0, str(path.parent))  # of modules beside it, which it imports
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made = getattr(module, name)
        model = made() if callable(made) and not isinstance(made, nn.Module) else made
    except Exception as error:  # whatever another's code raises
        raise BadInput(f"--model {text}: cannot be made ({type(error).__name__}: {error!s:.200})") from error
    finally:
        sys.path.remove(str(path.parent))
    if not isinstance(model, nn.Module | Mapping):
        raise BadInput(f"--model {text}: made {type(model).__name__}; expected a torch.nn.Module")
    return model


def execute_script_run(
    run: Path,
    info: Mapping[str, Any],
    on_round: Callable[[Mapping[str, Any]], None],
    threads: int | None = None,
    on_exchange: OnExchange = lambda tasks, answers: None,
) -> None:
    """Train and test from the run's last complete round; arguments as of `fedmerit.engines.runs.execute`.

    Raises:
        Untrusted: only run.json names the script, as after an interruption, and nobody trusts that.
    """
    config, names, launch = read_plan(run), list(info["sites"]), read_launch(run)
    with lock_folder(run) as lock:
        remove_partial_files(run)
        if info["engine"] == "local":
            at_work = threads or info["threads"] or cores()
            _run_here(run, info, launch, on_round, at_work, on_exchange)
        else:
            from fedmerit.engines.nvflare.simulation import run_poc, run_simulator

            if info["engine"] == "poc":
                run_poc(config, names, run, run, "", on_round, lock)
            else:
                run_simulator(config, names, run, run, len(names), "", on_round, lock)


def read_launch(run: Path) -> Launch:
    """How the sites of a run start their script.

    Raises:
        BadInput: it is gone, or another than when the run began.
        Untrusted: only run.json names it.
    """
    launch: Launch = read(Launch, read_run(run)["script"], run / "run.json")
    file = Path(launch.file)
    if not file.is_file():
        raise BadInput(f"{file}: the sites' script is gone; put it back")
    require_trusted_script(file, found := sha256(file), f"{run / 'run.json'}")
    if found != launch.sha256:
        raise BadInput(f"{file}: changed since {run} began; put the old one back, or choose another --out")
    return launch


def _run_here(
    run: Path,
    info: Mapping[str, Any],
    launch: Launch,
    on_round: Callable[[Mapping[str, Any]], None],
    threads: int,
    on_exchange: OnExchange,
) -> None:
    from fedmerit.engines.runs import build_filter

    config, names = read_plan(run), list(info["sites"])
    federation = Federation(config, names, run, on_round, min_sites=info["min_sites"])
    filtered = build_filter(info["privacy"], config)
    folders = {name: run / "sites" / name for name in names}
    scripts = {name: _start(name, launch, folder) for name, folder in folders.items()}
    sites = {
        name: Site(ScriptTrainer(name, config, folder, scripts[name].ask), config, folder, participants=names)
        for name, folder in folders.items()
    }

    reasons: dict[str, str] = {}

    def answer(name: str, task: Work) -> Answer:
        try:
            given = sites[name].answer(task)
        except Exception as error:  # as on NVFlare: the run continues if enough others are there
            reasons[name] = str(error)
            with (folders[name] / ERRORS).open("a") as log:
                traceback.print_exception(error, file=log)
            return describe_failure(error)
        if filtered is not None and isinstance(task, Task):
            given = filtered(given)
            if isinstance(given, Reply):
                sites[name].sent(task, given.update)
        return given

    try:
        carry_out(federation, answer, threads, on_exchange)
    except RunFailed as error:
        raise RunFailed("\n".join([str(error), *(reasons[name] for name in sorted(reasons))])) from error
    finally:
        for script in scripts.values():
            script.close()


def _start(site: str, launch: Launch, folder: Path) -> "LocalScript":
    from fedmerit.engines.nvflare.local_scripts import LocalScript

    return LocalScript(site, Path(launch.file), launch.args, launch.transfer, folder / OUTPUT, launch.timeout)


def score_everywhere(run: Path, model: Path) -> dict[str, tuple[Overlap, ...]]:
    """Scores of a run's final ``model`` by the scripts of all sites, also of those that took no part.

    Raises:
        BadInput: the script does not answer evaluations, or `read_launch` refuses it.
        RunFailed: one ended.
    """
    config, launch = read_plan(run), read_launch(run)
    if not config.can_evaluate:
        raise BadInput(f"{launch.file}: does not answer flare.is_evaluate(), so sites that take no part test no model")
    found = {}
    for site in launch.sites:
        folder = run / "sites" / site
        script = _start(site, launch, folder)
        try:
            trainer = ScriptTrainer(site, config, folder, script.ask)
            load_weights(trainer.network, load_state(model))
            network = flat.get_parameters(trainer.network), flat.get_buffers(trainer.network)
            found[site] = trainer.score(network, config.rounds, "testing")
        finally:
            script.close()
    return found
