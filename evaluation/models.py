"""The final models of a run: one global model, or one per site."""

from collections.abc import Callable
from pathlib import Path

from torch import nn

from fedmerit.data import SiteFolder
from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.training import load_network


def final_models(run: Path) -> Callable[[SiteFolder], nn.Module]:
    """What gives each site folder its final model: the global one, or the site's own.

    Raises:
        BadInput: the run has no models; or, from the function returned, none fits the site.
    """
    folder = Path(run) / "models"
    names = sorted(path.stem for path in folder.glob("*.pt"))
    if not names:
        raise BadInput(f"{folder}: no model in it; let the run finish, or `fedmerit run METHOD --out {run}` again")
    description = read_json(folder / "model.json")
    loaded: dict[str, nn.Module] = {}

    def model_of(site: SiteFolder) -> nn.Module:
        name = "global" if "global" in names else site.name
        if name not in names:
            raise BadInput(
                f"site {site.name}: {run} has one model per site, and none for it (there are {', '.join(names)}); "
                "evaluate on these sites, or a run that has a global model"
            )
        _check_fits(description, site, run)
        if name not in loaded:
            loaded[name] = load_network(folder, name)
        return loaded[name]

    return model_of


def _check_fits(description: dict[str, object], site: SiteFolder, run: Path) -> None:
    labels = list(site.labels)
    for what, ours, theirs in (
        ("channels", description.get("in_channels"), site.channels),
        ("labels", description.get("labels"), labels),
    ):
        if ours != theirs:
            raise BadInput(
                f"site {site.name}: its {what} are {theirs}, but the model of {run} was trained for {ours}; "
                "prepare the site as the run's sites were"
            )
    depth = description.get("depth")
    step = 2 ** (int(depth) - 1) if isinstance(depth, int) else 1
    if any(side % step for side in site.image_size):
        raise BadInput(
            f"site {site.name}: image size {site.image_size[0]}x{site.image_size[1]}, but the model of {run} "
            f"takes multiples of {step}; prepare the site as the run's sites were"
        )
