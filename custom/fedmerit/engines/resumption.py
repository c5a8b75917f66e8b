"""Resuming a run: what run.json says, and the options, scripts and images that have to agree with it."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedmerit import plugins
from fedmerit.engines.runs import describe_run, read_sites
from fedmerit.errors import BadInput
from fedmerit.files import lock_folder, write_json
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.configuration.requirements import require_observers, require_privacy
from fedmerit.schema.configuration.run import read_plan
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import open_sites, require_same_preparation
from fedmerit.server.checkpoint import is_finished
from fedmerit.trust import allow, allow_places

SAME = ("plan", "script", "sites", "engine", "privacy")  # of run.json, in runs by script that may stand for each other
IMAGES = ("sites", "server_sites")  # options that say where images lie


def relocate(run: Path, options: Mapping[str, Any]) -> None:
    """Write into the run.json of an unfinished run where its images are now, by ``options``.

    Args:
        options: as of `require_same`; ``sites`` and ``server_sites`` may be other folders with the same images.

    Raises:
        BadInput: images there are not those that the run was created with, or another process works on the run.
    """
    info = read_run(run)
    places = {"sites_folder": ("sites", "site_digests"), "server_sites": ("server_sites", "server_digests")}
    for place, (option, digests) in places.items():
        if not (options.get(option) and info[place]) or is_finished(run, info["rounds"]):
            continue
        folder = Path(options[option]).resolve()
        allow_places(folder)
        if str(folder) != info[place]:
            only = info["only"] if option == "sites" else None
            require_same_preparation(open_sites(folder, only), info[digests], run)
            info[place] = str(folder)
            with lock_folder(run):
                write_json(run / "run.json", info)


def has_ended_elsewhere(run: Path) -> bool:
    """Return whether a run has ended and its site folders are gone, so nothing is left to do."""
    info = read_run(run)
    return is_finished(run, info["rounds"]) and not Path(info["sites_folder"]).is_dir()


def needs_resuming(run: Path, options: Mapping[str, Any]) -> bool:
    """Return whether a resumed run has anything left to do, with ``options`` as of `require_same`.

    A run that `has_ended_elsewhere` has not, and needs no images. Any other finds them by `relocate`.

    Raises:
        BadInput: the run was created with other options or images, or another process works on the run.
    """
    info = read_run(run)
    allow(*options.get("track", ()))  # a person's
    if "script" in info:
        for name, value in options.items():
            if info.get(name) != value:
                raise BadInput(f"{run}: {name} {value!s:.80}: a run by script resumes as it began; give only --out")
        return not is_finished(run, info["rounds"])
    if has_ended_elsewhere(run):
        require_same(run, {name: value for name, value in options.items() if name not in IMAGES})
        return False
    relocate(run, options)
    require_same(run, options)
    return True


def require_same(run: Path, options: Mapping[str, Any]) -> None:
    """Check that options, and parts of the user's own, are those that the run was created with.

    Raises:
        BadInput: one differs.
    """
    info = read_run(run)
    plugins.require_given(info.get("parts", {}), run / "run.json")
    config = read_plan(run)
    observed = {name: getattr(config, name) for name in ("values", "keep_updates", "share_models")}
    recorded = {**info, **observed, "sites": info["sites_folder"]}
    as_recorded: Mapping[str, Callable[[Any], Any]] = {
        **dict.fromkeys(IMAGES, lambda folder: str(Path(folder).resolve())),
        "settings": lambda given: (
            {name: value for name, value in recorded["settings"].items() if name == "guard"}  # need not be repeated
            | {name: str(value) for name, value in given.items()}
        ),
        "only": sorted,
        "track": list,
        "privacy": lambda specs: require_privacy(specs, info["method"], config.build_method()),
        "values": lambda specs: require_observers(specs, False, info["method"], config.build_method()),
    }
    for name, value in options.items():
        asked = as_recorded[name](value) if name in as_recorded else value
        if asked != recorded[name]:
            raise BadInput(f"{run}: was started with {name} {recorded[name]!r}, not {asked!r}; resume it with the same")


def require_same_script_run(run: Path, asked: RunOptions) -> None:
    """Check that a run folder of a script is what `fedmerit.engines.runs.create` would write now.

    Raises:
        BadInput: it is not.
    """
    current = json.loads(json.dumps(describe_run(run.name, asked, read_sites(asked))))
    recorded = read_run(run)
    for name in SAME:
        before, asks = recorded.get(name), current[name]
        if before != asks:
            parts = [name]
            if isinstance(before, dict) and isinstance(asks, dict):
                parts = [f"{name}: {part}" for part in asks if before.get(part) != asks[part]]
            raise BadInput(f"{run}: was started with another {parts[0]}; give it the same, or choose another --out")
