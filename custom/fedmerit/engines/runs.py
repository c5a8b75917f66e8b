"""A run folder from its first file to its last: create and execute."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmerit import plugins
from fedmerit.attacks.catalogue import require_possible
from fedmerit.capabilities import capabilities
from fedmerit.configuration.description import describe, read_plan, run_plan
from fedmerit.configuration.filters import HE, require_privacy
from fedmerit.configuration.network_input import common
from fedmerit.configuration.recipes import ROUNDS
from fedmerit.configuration.run import RunConfiguration, make_configuration
from fedmerit.configuration.tracking import require_tracking
from fedmerit.engines.local import OnExchange, run_local
from fedmerit.engines.resumption import (
    LEGACY_SETTINGS,
    open_recorded_sites,
    read_info,
    require_same_images,
    require_same_transforms,
)
from fedmerit.errors import BadInput
from fedmerit.federation.checkpoint import complete_rounds
from fedmerit.federation.requirements import require_consistent, require_decentralised, require_sites, require_timeouts
from fedmerit.files import LOCK, lock_folder, remove_partial_files, write_json
from fedmerit.machine import cores
from fedmerit.records.ciphertexts import KEYS
from fedmerit.records.results import read_run
from fedmerit.trainers.monai_trainer.data import SERVER_SPLIT, SiteFolder, open_sites, read_site_digests
from fedmerit.trainers.monai_trainer.machine_settings import (
    SERVER,
    assign_devices,
    configured_device,
    pick_device,
    require_known_sites,
)
from fedmerit.trainers.monai_trainer.network_checks import check_image_size, require_repeatable
from fedmerit.trainers.monai_trainer.networks import build_network, initial_network
from fedmerit.wire.messages import Answer

ENGINES = ("sim", "local", "poc")


def create(
    run: Path,
    method: str,
    sites: Path | str,
    rounds: int = ROUNDS,
    seed: int = 0,
    engine: str = "sim",
    threads: int | None = None,
    device: str = "",
    settings: Mapping[str, Any] | None = None,
    server_sites: Path | str | None = None,
    only: Sequence[str] | None = None,
    attacks: Mapping[str, str] | None = None,
    min_sites: int = 1,
    round_timeout: float = 0,
    privacy: Sequence[str] = (),
    track: Sequence[str] = (),
    values: Sequence[str] = (),
    keep_updates: bool = False,
) -> None:
    """Check everything that can be checked, then write run.json: the run can be executed, and resumed, from it.

    The sites are all those in the folder ``sites``, or those of them that ``only`` names; those that ``attacks``
    names follow a spec of `fedmerit.attacks` in the place of honest rounds. On NVFlare a round ends when all sites
    have answered, or after ``round_timeout`` seconds, if any, once ``min_sites`` have. What sites send passes the
    filters ``privacy``; ``privacy`` and ``track`` hold specs of `fedmerit.configuration`, ``values`` those of what is
    observed to tell values by; with ``keep_updates`` the run folder keeps the updates, to tell others afterwards.

    Raises:
        BadInput: the folder holds a run already, or an option, a site or a parameter cannot be used.
    """
    _require_new(run)
    if engine not in ENGINES:
        raise BadInput(f"engine {engine!r}: unknown; expected one of {', '.join(ENGINES)}")
    if threads is not None and threads < 1:
        raise BadInput(f"threads {threads}: expected 1 or more")
    folders = open_sites(Path(sites), only)
    first = folders[0]
    config = configuration_for(folders, method, rounds, seed, settings or {}, values, keep_updates)
    names = [folder.name for folder in folders]
    require_sites(config, names)
    _require_one_machine(config, engine, attacks)
    require_timeouts(min_sites, round_timeout, len(names))
    if engine == "local" and round_timeout:
        raise BadInput(f"--round-timeout {round_timeout:g}: only with NVFlare's engines; take --engine sim")
    if engine == "poc" and threads:
        raise BadInput(f"--threads {threads}: processes of --engine poc all work at once; leave it out")
    known = names if only is None else [folder.name for folder in open_sites(Path(sites))]
    require_known_sites(device, known, present=names)
    specs = require_possible(attacks or {}, names, rounds)
    filters, trackers = require_privacy(privacy, method, config.build_method()), require_tracking(track, engine)
    require_consistent(config, filters)
    for folder in folders:
        folder.require_cases()
        folder.require_arrays()
        pick_device(configured_device(folder.name, device), folder.name)
    own = open_sites(Path(server_sites)) if server_sites is not None else []
    _require_server_set(config, folders, own)
    _require_processes(config, engine, threads, names)
    description = describe(run.name, config, names, engine) | {
        "only": only and sorted(only),
        "threads": threads,
        "device": device,
        "behaviours": specs,
        "privacy": filters,
        "track": trackers,
        "min_sites": min_sites,
        "round_timeout": round_timeout,
        "image_size": list(first.image_size),
        "site_digests": read_site_digests(folders),
        "server_digests": read_site_digests(own),
        "sites_folder": str(Path(sites).resolve()),
        "server_sites": server_sites and str(Path(server_sites).resolve()),
        "settings": {name: str(value) for name, value in (settings or {}).items()},
        **({"parts": parts} if (parts := plugins.script_digests()) else {}),
    }
    run.mkdir(parents=True, exist_ok=True)
    with lock_folder(run):  # of two that begin at once, one is the run
        _require_new(run)
        write_json(run / "run.json", description)


def _require_new(run: Path) -> None:
    """`BadInput` where a run folder cannot be made, or holds something already."""
    in_the_way = next((path for path in (run, *run.parents) if path.exists() and not path.is_dir()), None)
    if in_the_way:
        raise BadInput(f"{run}: cannot be a folder, as {in_the_way} is a file; choose another --out")
    if run.exists() and any(path.name != LOCK for path in run.iterdir()):
        raise BadInput(f"{run}: exists already; continue it with --resume, or choose another --out")


def configuration_for(
    folders: Sequence[SiteFolder],
    method: str,
    rounds: int,
    seed: int,
    settings: Mapping[str, Any],
    values: Sequence[str] = (),
    keep_updates: bool = False,
) -> RunConfiguration:
    """Of a run on such sites; `BadInput` where a setting is none, or their images do not fit the network."""
    first = folders[0]
    network = {"in_channels": first.channels, "labels": list(first.labels)}
    preprocessing = common({folder.name: folder.info for folder in folders})
    config = make_configuration(
        method, first.task, rounds, seed, network, settings, values, keep_updates, preprocessing
    )
    check_image_size(config.network, first.image_size)
    require_repeatable(config.network, initial_network(config.network, seed))
    return config


def _require_one_machine(config: RunConfiguration, engine: str, attacks: Mapping[str, str] | None) -> None:
    """`BadInput` where images were to be pooled elsewhere than in one process, or by sites that attack."""
    if engine != "local":
        require_decentralised(config)
    elif attacks and capabilities(config.build_method()).pools_images:
        raise BadInput(f"--attack: {config.method} has one training for all sites, so that none can attack it")


def _require_processes(config: RunConfiguration, engine: str, threads: int | None, sites: Sequence[str]) -> None:
    """`BadInput` where sites ask each other for their models, and not all of them would be there to answer."""
    at_sites = capabilities(config.build_method()).exchanges_directly
    if at_sites and engine == "sim" and threads is not None and threads < len(sites):
        raise BadInput(
            f"threads {threads}: with exchange=peer all {len(sites)} sites have to be there at once; "
            f"give --threads {len(sites)}, or let the server pass the models on with --set exchange=relay"
        )


def _require_server_set(config: RunConfiguration, folders: Sequence[SiteFolder], own: Sequence[SiteFolder]) -> None:
    """`BadInput` where the method needs a server validation set and there is none, or it does not fit the sites."""
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
) -> None:
    """Train and test from the run's last complete round.

    Args:
        run: the run folder.
        on_round: called with every round's ledger record.
        threads: sites at work at a time, in place of what the run was created with; no result depends on it.
        sites: where this machine has the site folders, if not where they were when the run was created.
        server_sites: where it has the server's own, likewise.
        on_exchange: of `run_local`; other engines do not call it.

    Raises:
        BadInput: the sites are not those the run was created with, a script that it names was not given to this
            process, or another process is at work on it.
        RunFailed: the run did not come to its end; the message says where the log is.
    """
    here = {"sites_folder": sites, "server_sites": server_sites}
    info = {**LEGACY_SETTINGS, **read_info(run), **{name: str(place) for name, place in here.items() if place}}
    plugins.require_given(info.get("parts", []), run / "run.json")
    config, folders = read_plan(run), open_recorded_sites(run, info)
    own = open_sites(Path(info["server_sites"])) if info["server_sites"] else []
    require_same_images(run, info, folders, own)
    names = [folder.name for folder in folders]
    threads = threads or info["threads"]
    _require_processes(config, info["engine"], threads, names)
    require_same_transforms(run, info, config)
    device = assign_devices(info["device"], names)
    attacks, of_server = info.get("behaviours"), info["server_sites"]
    with lock_folder(run) as lock:
        remove_partial_files(run)
        if not complete_rounds(run):  # an earlier version knew fewer settings, and nothing was done by its plan yet
            write_json(run / "run.json", read_run(run) | run_plan(config))
        keys = _encryption_contexts(run, config) if HE in info["privacy"] else None
        if info["engine"] == "local":
            devices = {name: configured_device(name, device) for name in (*names, SERVER)}
            filtered = None if keys else _build_filter(info["privacy"], config)
            run_local(config, folders, run, devices, on_round, threads, own, attacks, filtered, info["min_sites"],
                      keys, on_exchange)  # fmt: skip
        elif info["engine"] == "poc":
            from fedmerit.flare.deploy.poc import run_poc  # NVFlare takes seconds to import

            waiting = info["min_sites"], info["round_timeout"]
            run_poc(config, folders, run, device, on_round, lock, of_server, attacks, *waiting)
        else:
            from fedmerit.flare.simulation import run_simulator

            root, at_work = Path(info["sites_folder"]), min(threads or _concurrent_sites(config, names), len(names))
            run_simulator(config, names, root, run, at_work, device, on_round, lock, of_server, attacks)


def _concurrent_sites(config: RunConfiguration, sites: Sequence[str]) -> int:
    """Sites at work at a time on the simulator: as many as there are cores for; all where they ask each other."""
    at_once = capabilities(config.build_method()).exchanges_directly
    return len(sites) if at_once else max(1, cores() // config.training.cpu_threads)


def _encryption_contexts(run: Path, config: RunConfiguration) -> tuple[bytes, bytes]:
    """Of the sites and of the server: the machine is one, and both find theirs in the run folder."""
    require_privacy([HE], config.method, config.build_method())
    from fedmerit.flare.encryption import contexts

    return contexts(run / KEYS)


def _build_filter(privacy: Sequence[str], config: RunConfiguration) -> Callable[[Answer], Answer] | None:
    """What filters make of an answer, where there are any."""
    if not privacy:
        return None
    from fedmerit.flare.privacy import build_answer_filter

    return build_answer_filter(privacy, build_network(config.network))
