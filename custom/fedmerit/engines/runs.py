"""A run folder from its first file to its last: create and execute."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmerit import plugins
from fedmerit.ciphertexts import KEYS
from fedmerit.contract.capabilities import capabilities
from fedmerit.engines.given_contributions import add_contributions
from fedmerit.engines.local import OnExchange, run_local
from fedmerit.engines.resumption import open_recorded_sites, read_info, require_same_images
from fedmerit.engines.script_runs import create_script_run, execute_script_run
from fedmerit.errors import BadInput
from fedmerit.files import LOCK, lock_folder, remove_partial_files, write_json
from fedmerit.machine import cores, pick_device
from fedmerit.schema.configuration.data import common
from fedmerit.schema.configuration.options import RunOptions, Waiting
from fedmerit.schema.configuration.requirements import require_privacy
from fedmerit.schema.configuration.run import RunConfiguration, describe, make_configuration, read_plan, with_sharing
from fedmerit.schema.configuration.settings import AUTO, ROUNDS, TASKS, guarded
from fedmerit.schema.configuration.specs import HE, require_tracking
from fedmerit.schema.messages import Answer
from fedmerit.schema.run_info import read_run
from fedmerit.schema.scores import SERVER_SPLIT
from fedmerit.schema.site_folder import SiteFolder, open_sites, read_site_digests
from fedmerit.server.requirements import require_consistent, require_decentralised, require_sites
from fedmerit.site.machine_settings import SERVER, assign_devices, configured_device, require_known_sites
from fedmerit.site.site import Site
from fedmerit.trainers.factory import build_network, check_network
from fedmerit.trainers.monai.step_time import measure_precision
from fedmerit.trust import allow, allow_places, require_place, require_trusted_trackers

SIMULATOR = "fedmerit.engines.nvflare.simulator"


@dataclass(frozen=True)
class Laboratory:
    """How studies replace the sites of a run: none of it can be configured, it is code that the laboratory passes."""

    wrap_site: Callable[[Site], Site] = lambda site: site  # on the local engine
    simulator: str = SIMULATOR  # module of the program that simulates the run on NVFlare


HONEST = Laboratory()


def create(run: Path, method: str, sites: Path | str | None = None, rounds: int = ROUNDS, **options: Any) -> None:
    """Check everything that can be checked, then write run.json: the run can be executed, and resumed, from it.

    Args:
        sites: folder of site folders; None: ``options`` have a script.
        **options: further ones of `RunOptions`.

    Raises:
        BadInput: the folder holds a run already, or an option, a site or a parameter cannot be used.
    """
    _require_new(run)
    given = {"sites": sites, **options} if sites else options
    asked = RunOptions.read({"method": method, "rounds": rounds, **given})
    asked.require_sites()
    if asked.script:
        create_script_run(run, asked)
        return
    sites = Path(str(sites))
    folders = open_sites(sites, asked.only or None, asked.fold)
    names = [folder.name for folder in folders]
    settings = add_contributions(asked.all_settings, asked.contributions, names)
    observed = asked.values, asked.keep_updates, asked.fold
    config = configuration_for(folders, method, rounds, asked.seed, settings, *observed)
    config = with_sharing(config, asked.share_models, asked.engine != "poc", asked.server_sites is not None)
    require_sites(config, names)
    _require_one_machine(config, asked)
    asked.waiting.require_sites(len(names))
    known = names if not asked.only else [folder.name for folder in open_sites(sites)]
    require_known_sites(asked.device, known, present=names)
    filters = require_privacy(asked.privacy, method, config.build_method())
    trackers = require_tracking(asked.track, asked.engine)
    allow(*trackers)
    require_consistent(config, filters)
    for folder in folders:
        folder.require_cases()
        folder.require_arrays()
        pick_device(configured_device(folder.name, asked.device), folder.name)
    took: dict[str, float] = {}
    if settings.get("amp") == AUTO:  # what is faster at one site holds for all
        one = folders[0]
        config, took = measure_precision(config, one, pick_device(configured_device(one.name, asked.device), one.name))
    own = open_sites(asked.server_sites) if asked.server_sites is not None else []
    _require_server_set(config, folders, own)
    _require_processes(config, asked.engine, asked.threads, names)
    description = describe(run.name, config, names, asked.engine) | {
        **asked.recorded(),
        "only": sorted(asked.only) or None,
        "privacy": filters,
        "track": trackers,
        "image_size": list(folders[0].image_size),
        "site_digests": read_site_digests(folders),
        "server_digests": read_site_digests(own),
        "sites_folder": str(sites.resolve()),
        "server_sites": asked.server_sites and str(asked.server_sites.resolve()),
        "settings": {name: str(value) for name, value in settings.items()},
        **({"seconds_per_image": took} if took else {}),
        **({"parts": parts} if (parts := plugins.script_digests()) else {}),
    }
    allow_places(sites, asked.server_sites)
    run.mkdir(parents=True, exist_ok=True)
    with lock_folder(run):  # of two processes that begin at once, one has the run
        _require_new(run)
        write_json(run / "run.json", description)


def job_configuration(asked: RunOptions, task: str | None) -> tuple[RunConfiguration, list[str]]:
    """The configuration of a job that is exported, and its privacy filters.

    Args:
        asked: its options; ``sites``, if given, has site folders like those of the hospitals; ``server_sites``, if
            given, says that the server's kit has images of its own.
        task: of the sites, if no ``sites`` are given.

    Raises:
        BadInput: an option cannot be used.
    """
    settings, method = guarded(asked.all_settings), str(asked.method)
    if asked.contributions:  # in the order of names, as the job's sites will be
        settings = add_contributions(settings, asked.contributions, read_run(asked.contributions)["sites"])
    observed = asked.values, asked.keep_updates
    if asked.sites is None:
        network = TASKS[str(task)]
        config = make_configuration(
            method, str(task), asked.rounds, asked.seed, network, settings, *observed, fold=asked.fold
        )
    else:
        folders = open_sites(asked.sites, fold=asked.fold)
        config = configuration_for(folders, method, asked.rounds, asked.seed, settings, *observed, asked.fold)
    if settings.get("amp") == AUTO:
        raise BadInput("amp=auto: measured on the one machine of `fedmerit run`; give a job true or false")
    config = with_sharing(config, asked.share_models, False, asked.server_sites is not None)
    filters = require_privacy(asked.privacy, method, config.build_method())
    require_tracking(asked.track, "prod")
    require_consistent(config, filters)
    return config, filters


def _require_new(run: Path) -> None:
    """`BadInput` if a run folder cannot be made, or holds something already."""
    in_the_way = next((path for path in (run, *run.parents) if path.exists() and not path.is_dir()), None)
    if in_the_way:
        raise BadInput(f"{run}: cannot be a folder, as {in_the_way} is a file; choose another --out")
    if run.exists() and set(os.listdir(run)) - {LOCK}:
        raise BadInput(f"{run}: exists already; continue it with --resume, or choose another --out")


def configuration_for(
    folders: Sequence[SiteFolder],
    method: str,
    rounds: int,
    seed: int,
    settings: Mapping[str, Any],
    values: Sequence[str] = (),
    keep_updates: bool = False,
    fold: int | None = None,
) -> RunConfiguration:
    """Of a run on such sites; `BadInput` if a setting is none, or their images do not fit the network."""
    first = folders[0]
    network = {"in_channels": first.channels, "labels": list(first.labels)}
    preprocessing = common({folder.name: folder.info for folder in folders})
    settings = {**(first.data_plan.settings if first.data_plan else {}), **settings}
    config = make_configuration(
        method, first.task, rounds, seed, network, settings, values, keep_updates, preprocessing, fold
    )
    check_network(config.network, first.image_size, seed)
    return config


def _require_one_machine(config: RunConfiguration, asked: RunOptions) -> None:
    """`BadInput` if images had to be pooled outside one process."""
    if asked.engine != "local":
        require_decentralised(config)


def _require_processes(config: RunConfiguration, engine: str, threads: int | None, sites: Sequence[str]) -> None:
    """`BadInput` if sites ask each other for their models, and not all of them would be there to answer."""
    at_sites = capabilities(config.build_method()).exchanges_directly
    if at_sites and engine == "sim" and threads is not None and threads < len(sites):
        raise BadInput(
            f"threads {threads}: with exchange=peer all {len(sites)} sites have to be there at once; "
            f"give --threads {len(sites)}, or let the server pass the models on with --set exchange=relay"
        )


def _require_server_set(config: RunConfiguration, folders: Sequence[SiteFolder], own: Sequence[SiteFolder]) -> None:
    """`BadInput` if the method needs a server validation set and there is none, or it does not fit the sites."""
    first = folders[0]
    expected = (first.task, first.channels, first.labels, first.image_size)
    for folder in own:
        found = (folder.task, folder.channels, folder.labels, folder.image_size)
        if found != expected:
            raise BadInput(
                f"{folder.path}: task, channels, labels and size are {found}, the sites' are {expected}; "
                "prepare the server's images like the sites'"
            )
        folder.require_arrays()
    if own:
        return
    lacking = [folder.name for folder in folders if not folder.cases(SERVER_SPLIT)]
    if lacking and capabilities(config.build_method()).candidates:
        raise BadInput(
            f"method {config.method} needs images set aside for the server, and {', '.join(lacking)} set none aside; "
            "prepare the sites with --server-share 0.1, or name a folder of the server's own with --server-sites"
        )


def execute(
    run: Path,
    on_round: Callable[[Mapping[str, Any]], None],
    threads: int | None = None,
    sites: Path | None = None,
    server_sites: Path | None = None,
    on_exchange: OnExchange = lambda tasks, answers: None,
    laboratory: Laboratory | None = None,
) -> None:
    """Train and test from the run's last complete round.

    Args:
        on_round: called with every round's ledger record.
        threads: concurrent sites, instead of the recorded number; no result depends on it.
        sites: the site folders on this machine, if they have moved since the run was created.
        server_sites: the server's own, likewise.
        on_exchange: of `run_local`; other engines do not call it.
        laboratory: replaces sites of a run with simulated attacks; without it such a run is refused.

    Raises:
        BadInput: the sites are not those the run was created with, a script that it names was not given to this
            process, or another process is at work on it.
        Untrusted: only run.json names a script, or an address to send scalars to, and nobody trusts that.
        RunFailed: the run did not finish; the message says where the log is.
    """
    recorded = read_run(run)
    require_trusted_trackers(recorded.get("track", ()), f"{run / 'run.json'}")
    if "script" in recorded:
        execute_script_run(run, recorded, on_round, threads, on_exchange)
        return
    allow_places(sites, server_sites)
    here = {"sites_folder": sites, "server_sites": server_sites}
    info = {**read_info(run), **{name: str(place) for name, place in here.items() if place}}
    plugins.require_given(info.get("parts", {}), run / "run.json")
    config, folders = read_plan(run), open_recorded_sites(run, info)
    own = open_sites(require_place(info["server_sites"], run)) if info["server_sites"] else []
    require_same_images(run, info, folders, own)
    names = [folder.name for folder in folders]
    threads = threads or info["threads"]
    _require_processes(config, info["engine"], threads, names)
    device, waiting = assign_devices(info["device"], names), Waiting.of_record(info)
    of_server = info["server_sites"]
    if info.get("attacks") and laboratory is None:
        raise BadInput(
            f"{run}: has simulated attacks, which only the laboratory executes; continue it with "
            f"`fedmerit lab run --resume --out {run}`"
        )
    laboratory = laboratory or HONEST
    with lock_folder(run) as lock:
        remove_partial_files(run)
        keys = _encryption_contexts(run, config) if HE in info["privacy"] else None
        if info["engine"] == "local":
            devices = {name: configured_device(name, device) for name in (*names, SERVER)}
            filtered = None if keys else build_filter(info["privacy"], config)
            run_local(config, folders, run, devices, on_round, threads, own, laboratory.wrap_site, filtered,
                      waiting.min_sites, keys, on_exchange)  # fmt: skip
        else:
            from fedmerit.engines.nvflare.simulation import run_poc, run_simulator  # NVFlare takes seconds to import

            root, at_work = Path(info["sites_folder"]), min(threads or _concurrent_sites(config, names), len(names))
            if info["engine"] == "poc":
                run_poc(config, names, root, run, device, on_round, lock, of_server)
            else:
                run_simulator(
                    config, names, root, run, at_work, device, on_round, lock, of_server, laboratory.simulator
                )


def _concurrent_sites(config: RunConfiguration, sites: Sequence[str]) -> int:
    """Concurrent sites on the simulator: as many as there are cores for, or all if they ask each other."""
    at_once = capabilities(config.build_method()).exchanges_directly
    return len(sites) if at_once else max(1, cores() // config.training.cpu_threads)


def _encryption_contexts(run: Path, config: RunConfiguration) -> tuple[bytes, bytes]:
    """Of the sites and of the server: the machine is one, and both find theirs in the run folder."""
    require_privacy([HE], config.method, config.build_method())
    from fedmerit.engines.nvflare.encryption import contexts

    return contexts(run / KEYS)


def build_filter(privacy: Sequence[str], config: RunConfiguration) -> Callable[[Answer], Answer] | None:
    """A function that applies the privacy filters to an answer, if there are any."""
    if not privacy:
        return None
    from fedmerit.engines.nvflare.privacy import build_answer_filter

    return build_answer_filter(privacy, build_network(config.network))
