"""The final models of a run: one global model, or one per site; a site from which it was withheld has its own."""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from torch import nn

from fedmerit.configuration.filters import HE
from fedmerit.configuration.network_input import Preprocessing
from fedmerit.errors import BadInput
from fedmerit.records.results import read_run
from fedmerit.trainers.monai_trainer.data import SiteFolder, open_sites
from fedmerit.trainers.monai_trainer.network_checks import check_image_size
from fedmerit.trainers.monai_trainer.saved_networks import load_network, read_description


def model_folder(run: Path) -> Path:
    """Where a run keeps its final models; `BadInput` where there is none."""
    folder = Path(run) / "models"
    names = sorted(path.stem for path in folder.glob("*.pt"))
    if not names and HE in read_run(run).get("privacy", []):
        raise BadInput(
            f"{run}: the run was encrypted, its model is at the sites; take models/ from a site's run folder"
        )
    if not names:
        raise BadInput(
            f"{folder}: no model in it; let the run finish, or go on with it by `fedmerit run --resume --out {run}`"
        )
    return folder


def final_model(run: Path, site: str | None = None) -> Path:
    """The file of a final model: the global one or the only one, else that of ``site``, or what that took home.

    Raises:
        BadInput: there is none, or one for each site and ``site`` is none of these.
    """
    taken_home = Path(run) / "models" / "selected" / f"{site}.pt"  # by --final-model selected
    if site is not None and taken_home.is_file():
        return taken_home
    files = {path.stem: path for path in sorted(model_folder(run).glob("*.pt"))}
    shared = "global" if "global" in files else next(iter(files))
    if site is None and ("global" in files or len(files) == 1):
        return files[shared]
    if site in files:
        return files[site]
    given = "has one model per site" if site is None else f"has no model of {site!r}"
    raise BadInput(f"{run}: {given}; choose with --site one of {', '.join(files)}")


def final_models(run: Path) -> Callable[[SiteFolder], nn.Module]:
    """What gives each site folder its final model: the global one, the only one, or the site's own.

    Raises:
        BadInput: the run has no models; or, from the function returned, none fits the site.
    """
    folder = model_folder(run)
    names = sorted(path.stem for path in folder.glob("*.pt"))
    trained, _ = read_description(folder)
    loaded: dict[str, nn.Module] = {}

    def model_of(site: SiteFolder) -> nn.Module:
        shared = site.name not in names and ("global" in names or len(names) == 1)
        name = ("global" if "global" in names else names[0]) if shared else site.name
        if name not in names:
            raise BadInput(
                f"site {site.name}: {run} has one model per site, and none for it (there are {', '.join(names)}); "
                "evaluate on these sites, or a run that has a global model"
            )
        for what, ours, theirs in (
            ("channels", trained.in_channels, site.channels),
            ("labels", trained.labels, site.labels),
        ):
            if ours != theirs:
                raise BadInput(
                    f"site {site.name}: its {what} are {theirs}, but {run} was trained for {ours}; "
                    "prepare the site as the run's sites were"
                )
        check_image_size(trained, site.image_size)
        if name not in loaded:
            loaded[name] = load_network(folder, name)
        return loaded[name]

    return model_of


def list_preparation_differences(run: Path, sites: Path) -> list[str]:
    """A text for each way in which site folders were prepared unlike the images that the run's models were trained on.

    None of what model.json or a site.json does not say, as those of earlier versions.
    """
    _, said = read_description(model_folder(run))
    trained = said.to_dict() if said else {}
    unlike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for site in open_sites(sites):
        own = {**site.info, "size": list(site.image_size)}
        for name in (field.name for field in fields(Preprocessing)):
            if name in own and name in trained and own[name] != trained[name]:
                unlike[name, json.dumps(own[name])].append(site.name)
    return [
        f"site {', '.join(names)}: prepared with {field} {own}, but {run} was trained with {json.dumps(trained[field])}"
        for (field, own), names in unlike.items()
    ]
