"""Run folders of sites that train by a script: on this machine, in a process for each, or on NVFlare's simulator."""

import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from fedmerit.configuration.description import describe, read_plan
from fedmerit.configuration.script_runs import configure_script
from fedmerit.engines.local import OnExchange, carry_out
from fedmerit.errors import BadInput, RunFailed
from fedmerit.federation.requirements import require_sites
from fedmerit.federation.script_trainer import ScriptTrainer
from fedmerit.federation.server import Federation
from fedmerit.federation.server_models import FIRST_MODEL
from fedmerit.federation.site import Site
from fedmerit.files import lock_folder, parse, remove_partial_files, sha256, write_json
from fedmerit.machine import cores
from fedmerit.options import RunOptions
from fedmerit.records.results import read_run
from fedmerit.seeds import random_seed
from fedmerit.trust import allow, allow_script, require_trusted_script
from fedmerit.wire.messages import Answer, Reply, Task, Work, describe_failure

OF_IMAGES = ("sites", "only", "server_sites", "recipe", "preset", "final_model", "contributions", "device", "attacks")
ERRORS, OUTPUT = "errors.log", "script.log"  # in a site's folder of the run: why it gave no answer; what it printed


class Launch(BaseModel):
    """How a run folder's sites start their script; run.json records it."""

    model_config = ConfigDict(strict=True, extra="forbid")
    file: str
    args: str = ""
    timeout: float = Field(0.0, ge=0)  # seconds to wait for an answer; 0: as long as it takes
    command: Literal[""] = ""  # no process of its own by a command
    transfer: Literal["FULL"] = "FULL"


def create_script_run(run: Path, asked: RunOptions) -> None:
    """Check what can be checked, then write the run folder's run.json and first model.

    Args:
        run: the folder.
        asked: options; those of images are not given.

    Raises:
        BadInput: the run folder is there, the script or model is not, or the method needs what a script cannot do.
    """
    from fedmerit.flare.script_recipe import describe_script, plain_weights, require_script_filters

    if run.exists() and any(run.iterdir()):
        raise BadInput(f"{run}: exists already; continue it with --resume, or choose another --out")
    for name in OF_IMAGES:
        if name in asked.given():
            raise BadInput(f"--{name.replace('_', '-')}: of prepared images, and this run has a script; leave it out")
    if asked.engine == "poc":
        raise BadInput("--engine poc: of prepared images; for a script, FedMeritRecipe in NVFlare's PocEnv does that")
    file = (asked.script or Path()).resolve()
    if not file.is_file():
        raise BadInput(f"--script {asked.script}: file not found; expected the sites' Python script")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_seed(asked.seed, "initial model"))
        model = load_model(str(asked.model))
    script = describe_script(model, file, asked.metric or None)
    more: dict[str, Any] = {"seed": asked.seed, "settings": asked.all_settings, "values": asked.values}
    more |= {"keep_updates": asked.keep_updates, "share_models": asked.share_models}
    config = configure_script(str(asked.method), asked.rounds, script, **more)
    filters = require_script_filters(config, asked.privacy)
    allow_script(sha256(file))
    allow(*asked.track)
    names = [f"site-{number}" for number in range(1, asked.clients + 1)]
    require_sites(config, names)
    asked.waiting.require_sites(len(names))
    launch = Launch(file=str(file), args=asked.script_args, timeout=asked.script_timeout)
    run.mkdir(parents=True, exist_ok=True)
    torch.save(plain_weights(model), run / FIRST_MODEL)
    recorded = asked.recorded() | {"script": launch.model_dump(), "privacy": filters, "attacks": {}}
    write_json(run / "run.json", describe(run.name, config, names, asked.engine) | recorded)


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
    config, names, launch = read_plan(run), list(info["sites"]), parse(Launch, info["script"], run / "run.json")
    file = Path(launch.file)
    if not file.is_file():
        raise BadInput(f"{file}: the sites' script is gone; put it back")
    require_trusted_script(file, sha256(file), f"{run / 'run.json'}")
    with lock_folder(run) as lock:
        remove_partial_files(run)
        if info["engine"] == "local":
            at_work = threads or info["threads"] or cores()
            _run_here(run, info, launch, on_round, at_work, on_exchange)
        else:
            from fedmerit.flare.simulation import run_simulator

            run_simulator(config, names, run, run, len(names), "", on_round, lock)


def _run_here(
    run: Path,
    info: Mapping[str, Any],
    launch: Launch,
    on_round: Callable[[Mapping[str, Any]], None],
    threads: int,
    on_exchange: OnExchange,
) -> None:
    from fedmerit.engines.runs import build_filter
    from fedmerit.flare.local_scripts import LocalScript

    config, names = read_plan(run), list(info["sites"])
    federation = Federation(config, names, run, on_round, min_sites=info["min_sites"])
    filtered = build_filter(info["privacy"], config)
    folders = {name: run / "sites" / name for name in names}
    scripts = {
        name: LocalScript(name, Path(launch.file), launch.args, launch.transfer, folder / OUTPUT, launch.timeout)
        for name, folder in folders.items()
    }
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
