"""Resuming a run: what run.json says, and the options, scripts and images that have to agree with it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmerit import plugins
from fedmerit.engines.given_contributions import add_contributions
from fedmerit.errors import BadInput
from fedmerit.files import lock_folder, write_json
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.configuration.requirements import require_observers, require_privacy
from fedmerit.schema.configuration.run import read_plan
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import SiteFolder, open_sites, require_same_preparation
from fedmerit.server.checkpoint import is_finished
from fedmerit.trust import allow, allow_places, require_place

NEEDED = (
    "method", "sites", "rounds", "seed", "engine", "plan", "sites_folder", "server_sites", "settings",
    "image_size", "site_digests", "server_digests", "fold", *RunOptions().recorded(),
)  # fmt: skip
IMAGES = ("sites", "server_sites")  # options that say where images lie


def read_info(run: Path) -> dict[str, Any]:
    """run.json as `fedmerit.engines.runs.create` wrote it; `BadInput` if it lacks something."""
    info = read_run(run)
    if missing := [name for name in NEEDED if name not in info]:
        raise BadInput(f"{run / 'run.json'}: lacks {', '.join(missing)}; expected what `fedmerit run` wrote")
    return info


def relocate(run: Path, options: Mapping[str, Any]) -> None:
    """Write into the run.json of an unfinished run where its images are now, by ``options``.

    Args:
        options: as of `require_same`; ``sites`` and ``server_sites`` may be other folders with the same images.

    Raises:
        BadInput: images there are not those that the run was created with, or another process works on the run.
    """
    info = read_info(run)
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
    """Whether a run has ended and its site folders are gone, so nothing is left to do."""
    info = read_info(run)
    return is_finished(run, info["rounds"]) and not Path(info["sites_folder"]).is_dir()


def needs_resuming(run: Path, options: Mapping[str, Any]) -> bool:
    """Whether a resumed run has anything left to do, with ``options`` as of `require_same`.

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
    """`BadInput` if the options, or scripts of your own, are not those that the run was created with."""
    info = read_info(run)
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
    given = dict(options)
    if source := given.pop("contributions", None):
        given["settings"] = add_contributions(given.get("settings", {}), source, info["sites"])
    for name, value in given.items():
        asked = as_recorded[name](value) if name in as_recorded else value
        if asked != recorded[name]:
            raise BadInput(f"{run}: was started with {name} {recorded[name]!r}, not {asked!r}; resume it with the same")


def open_recorded_sites(run: Path, info: Mapping[str, Any]) -> list[SiteFolder]:
    """The run's site folders; `BadInput` if they are not those that it was created with."""
    root = Path(info["sites_folder"])
    if not root.is_dir():
        raise BadInput(f"{root}: no such folder, where {run} had its sites; --resume --sites PLACE says where they are")
    require_place(root, run)
    folders = open_sites(root, info["only"], info["fold"])
    names = [folder.name for folder in folders]
    if names != info["sites"]:
        raise BadInput(f"{root}: holds {', '.join(names)}; run {run} was started with {', '.join(info['sites'])}")
    return folders


def require_same_images(
    run: Path, info: Mapping[str, Any], folders: Sequence[SiteFolder], own: Sequence[SiteFolder] = ()
) -> None:
    """`BadInput` if images were prepared again since the run was created."""
    before, now = info["image_size"], list(folders[0].image_size)
    if before != now:
        raise BadInput(
            f"{folders[0].path.parent}: holds images of {now[0]}x{now[1]}, run {run} was started with "
            f"{before[0]}x{before[1]}; prepare the old folder again, or choose another --out"
        )
    require_same_preparation(folders, info["site_digests"], run)
    require_same_preparation(own, info["server_digests"], run)
