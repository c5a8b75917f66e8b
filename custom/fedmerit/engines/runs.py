"""A run folder from its first file to its last: create, execute."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmerit import plugins
from fedmerit.ciphertexts import KEYS
from fedmerit.contract.capabilities import capabilities
from fedmerit.engines.engine import Engine, Laboratory, OnExchange, OnRound, OpenRun
from fedmerit.engines.image_sites import ImageSites, configure_images
from fedmerit.engines.live_curves import write_curves
from fedmerit.engines.local import run_local
from fedmerit.engines.script_sites import ScriptSites
from fedmerit.errors import BadInput
from fedmerit.files import LOCK, lock_folder, remove_partial_files, write_json
from fedmerit.schema.configuration.options import RunOptions, Waiting
from fedmerit.schema.configuration.requirements import require_privacy
from fedmerit.schema.configuration.run import RunConfiguration, describe, make_configuration, read_plan, with_sharing
from fedmerit.schema.configuration.settings import ROUNDS, TASKS, guarded, with_preset, with_recipe
from fedmerit.schema.configuration.specs import HE, require_tracking
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import images_digest, open_sites
from fedmerit.server.requirements import require_consistent, require_decentralised, require_sites
from fedmerit.site.policy import JobRules
from fedmerit.trust import allow, allow_places, require_trusted_trackers


def create(run: Path, method: str, sites: Path | str | None = None, rounds: int = ROUNDS, **options: Any) -> None:
    """Check everything that can be checked, then write run.json: the run can be executed, and resumed, from it.

    Args:
        run: the run folder to make.
        method: the name of a method.
        sites: the folder of site folders; None: ``options`` name a script and its model.
        rounds: the number of rounds to train.
        **options: further ones of `RunOptions`.

    Raises:
        BadInput: the folder holds a run already, or an option, a site or a parameter cannot be used.
    """
    _require_new(run)
    asked = RunOptions.read({"method": method, "rounds": rounds, **({"sites": sites} if sites else {}), **options})
    at_sites = read_sites(asked)
    description = describe_run(run.name, asked, at_sites)
    run.mkdir(parents=True, exist_ok=True)
    with lock_folder(run):  # of two processes that begin at once, one has the run
        _require_new(run)
        at_sites.begin(run)
        write_json(run / "run.json", description)


def read_sites(asked: RunOptions) -> ImageSites | ScriptSites:
    """Return what trains at the sites of a run that is asked for; `BadInput` if it cannot be used."""
    asked.require_sites()
    return ScriptSites.read(asked) if asked.script else ImageSites.read(asked)


def describe_run(name: str, asked: RunOptions, at_sites: ImageSites | ScriptSites) -> dict[str, Any]:
    """Return run.json of a run that is asked for; `BadInput` if it cannot be carried out."""
    config, names = at_sites.configure(asked), at_sites.names
    require_sites(config, names)
    if asked.engine != "local":
        require_decentralised(config)
    asked.waiting.require_sites(len(names))
    filters = require_privacy(asked.privacy, config.method, config.build_method())
    trackers = require_tracking(asked.track)
    allow(*trackers)
    require_consistent(config, filters)
    _require_processes(config, asked.engine, asked.threads, names)
    of_sites = at_sites.describe(config, asked)
    parts = {"parts": digests} if (digests := plugins.script_digests()) else {}
    chosen = {"privacy": filters, "track": trackers}
    return describe(name, config, names, asked.engine) | asked.recorded() | chosen | of_sites | parts


def execute(
    run: Path,
    on_round: OnRound,
    threads: int | None = None,
    sites: Path | None = None,
    server_sites: Path | None = None,
    on_exchange: OnExchange = lambda tasks, answers: None,
    laboratory: Laboratory | None = None,
) -> None:
    """Train and test from the run's last complete round.

    Args:
        run: the run folder, as `create` wrote it.
        on_round: called with every round's ledger record.
        threads: concurrent sites, instead of the recorded number; no result depends on it.
        sites: the site folders on this machine, if they have moved since the run was created.
        server_sites: the server's own, if they have moved.
        on_exchange: called by the local engine before the server makes anything of the answers.
        laboratory: replaces sites of a run with simulated attacks; without it such a run is refused.

    Raises:
        BadInput: the sites are not those the run was created with, a script that it names was not given to this
            process, or another process is at work on it.
        Untrusted: only run.json names a script, or an address to send scalars to, and nobody trusts that.
        RunFailed: the run did not finish; the message says where the log is.
    """
    info = read_run(run)
    require_trusted_trackers(info.get("track", ()), f"{run / 'run.json'}")
    if info.get("attacks") and laboratory is None:
        raise BadInput(
            f"{run}: has simulated attacks, which only the laboratory executes; continue it with "
            f"`fedmerit lab run --resume --out {run}`"
        )
    allow_places(sites, server_sites)
    here = {"sites_folder": sites, "server_sites": server_sites}
    info |= {name: str(place) for name, place in here.items() if place}
    plugins.require_given(info.get("parts", {}), run / "run.json")
    config, kind = read_plan(run), ScriptSites if "script" in info else ImageSites
    at_sites, threads = kind.recorded(run, info), threads or info["threads"]
    _require_processes(config, info["engine"], threads, at_sites.names)
    engine, privacy = _find_engine(info["engine"]), info["privacy"]
    tracked = info.get("track", ()) if engine is run_local else ()  # NVFlare's engines have receivers
    with lock_folder(run) as lock, write_curves(tracked, run, at_sites.names) as write_round:

        def observe(record: Mapping[str, Any]) -> None:
            write_round(record)
            on_round(record)

        remove_partial_files(run)
        contexts = _make_contexts(run, config) if HE in privacy else None
        more = (privacy, Waiting.of_record(info), threads, contexts, on_exchange, laboratory or Laboratory())
        engine(OpenRun(run, config, at_sites, lock, observe, *more))


def _find_engine(name: str) -> Engine:
    """Return the engine of this name; `BadInput` if there is none."""
    if name == "local":
        return run_local
    from fedmerit.engines.nvflare.program import run_poc, run_simulator  # NVFlare takes seconds to import

    engines: Mapping[str, Engine] = {"sim": run_simulator, "poc": run_poc}
    if name not in engines:
        raise BadInput(f"engine {name!r}: runs on this machine have one of local, {', '.join(engines)}")
    return engines[name]


def _make_contexts(run: Path, config: RunConfiguration) -> tuple[bytes, bytes]:
    """Return TenSEAL's contexts of the sites and of the server; the machine is one, and both are in the run folder."""
    require_privacy([HE], config.method, config.build_method())
    from fedmerit.engines.nvflare.encryption import contexts

    return contexts(run / KEYS)


def _require_new(run: Path) -> None:
    """Check that a run folder can be made, and is empty; raise BadInput if not."""
    in_the_way = next((path for path in (run, *run.parents) if path.exists() and not path.is_dir()), None)
    if in_the_way:
        raise BadInput(f"{run}: cannot be a folder, as {in_the_way} is a file; choose another --out")
    if run.exists() and set(os.listdir(run)) - {LOCK}:
        raise BadInput(f"{run}: exists already; continue it with --resume, or choose another --out")


def _require_processes(config: RunConfiguration, engine: str, threads: int | None, sites: Sequence[str]) -> None:
    """Check that all sites are there to answer if they ask each other for their models; raise BadInput if not."""
    at_sites = capabilities(config.build_method()).exchanges_directly
    if at_sites and engine == "sim" and threads is not None and threads < len(sites):
        raise BadInput(
            f"threads {threads}: with exchange=peer all {len(sites)} sites have to be there at once; "
            f"give --threads {len(sites)}, or let the server pass the models on with --set exchange=relay"
        )


def job_configuration(asked: RunOptions, task: str | None) -> tuple[RunConfiguration, list[str]]:
    """Return the configuration of a job that is exported, and its privacy filters.

    Args:
        asked: its options; ``sites``, if given, has site folders like those of the hospitals; ``server_sites`` has the
            site.json and datalist.json of the server's own images, whose digest the plan names.
        task: of the sites, if no ``sites`` are given.

    Raises:
        BadInput: an option cannot be used.
    """
    method = str(asked.method)
    settings = _deployed_settings(guarded(asked.all_settings), method, str(task))
    if asked.sites is None:
        observed = asked.values, asked.keep_updates
        network, parts = TASKS[str(task)], (asked.rounds, asked.seed)
        config = make_configuration(method, str(task), *parts, network, settings, *observed, fold=asked.fold)
    else:
        config = configure_images(open_sites(asked.sites, fold=asked.fold), asked, settings)
    own = open_sites(asked.server_sites) if asked.server_sites is not None else []
    config = replace(config, server_images=images_digest(own))
    config = with_sharing(config, asked.share_models, False, bool(config.server_images))
    filters = require_privacy(asked.privacy, method, config.build_method())
    require_tracking(asked.track)
    require_consistent(config, filters)
    return config, filters


def _deployed_settings(settings: Mapping[str, Any], method: str, task: str) -> dict[str, Any]:
    """Return the settings of an exported job, with steps of as many images as hospitals' default rules ask for.

    A batch size that a person or a paper chose stays.
    """
    chosen, least = with_preset(settings, method), JobRules().least_batch
    recipe = with_recipe(chosen, task)
    if "batch_size" in chosen or recipe.get("batch_size", least) >= least:
        return dict(settings)
    return {**settings, "batch_size": least} | ({"steps": recipe["steps"]} if "steps" in recipe else {})
