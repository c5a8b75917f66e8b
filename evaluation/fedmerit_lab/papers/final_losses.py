"""The test loss of a finished run's final models, which some papers plot with accuracy."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import texts_digest
from fedmerit.files import write_text
from fedmerit.schema.site_folder import Case, open_sites
from fedmerit.trainers.monai.networks import patch_size
from fedmerit.trainers.monai.patches import build_samples
from fedmerit.trainers.monai.prediction import image_losses
from fedmerit_evaluation.results.evaluation import final_models
from fedmerit_evaluation.results.runs import open_run

FILE = "testing-losses-{}.csv"  # by a digest of the sites


def final_losses(run: Path, sites: Path) -> "pd.Series[float]":
    """By site, the mean soft Dice loss of its final model over the test images of all sites, 0 to 1.

    Args:
        run: a finished run folder; the result is stored in its folder ``evaluation``.
        sites: the site folders it was trained on.

    Raises:
        BadInput: there are no final models, or no site has a test image.
    """
    whose = texts_digest([str(Path(sites).resolve()), *(site.digest for site in open_sites(sites))])
    path = Path(run) / "evaluation" / FILE.format(whose[:16])
    if not path.exists():
        write_text(path, _computed(run, sites).to_csv(lineterminator="\n"))
    # a site may be called NA
    table = pd.read_csv(path, dtype={"site": str}, keep_default_na=False, na_values={"loss": [""]})
    return table.set_index("site")["loss"]


def _computed(run: Path, sites: Path) -> "pd.Series[float]":
    folders, model_of = open_sites(sites), final_models(run)
    cases: Sequence[Case] = [case for folder in folders for case in folder.cases("testing")]
    if not cases:
        raise BadInput(f"{sites}: no site has a testing case; prepare the sites again")
    amp = open_run(run).info["training"].get("amp", False)
    found: dict[torch.nn.Module, float] = {}  # one model for all is evaluated once
    losses = {}
    for folder in folders:
        model = model_of(folder)
        if model not in found:
            found[model] = float(image_losses(model, build_samples(cases, patch_size(model)), amp).mean())
        losses[folder.name] = found[model]
    return pd.Series(losses, name="loss").rename_axis("site")
