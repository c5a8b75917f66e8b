"""The ensemble of all sites' local models: the mean of their probabilities, without federated training.

It is computed from the saved models of a finished run of local training, and tested on the same cases.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from fedmerit.files import write_json
from fedmerit.schema.results import ResultsFile, Row
from fedmerit.schema.run_info import read_run
from fedmerit.schema.scores import Overlap
from fedmerit.trainers.monai.data import open_sites, require_same_preparation
from fedmerit.trainers.monai.prediction import evaluate
from fedmerit.trust import require_place
from fedmerit_evaluation.results.dice import OWN, UNION
from fedmerit_evaluation.results.evaluation import final_models
from fedmerit_evaluation.studies.study_folders import ENSEMBLE


class Ensemble(nn.Module):
    """Networks of one architecture: logits of the mean of their probabilities, each label by itself."""

    def __init__(self, members: list[nn.Module]):
        super().__init__()
        self.members = nn.ModuleList(members)
        for name in ("patch", "mirrored", "largest"):  # how the members' final masks are made
            if hasattr(members[0], name):
                setattr(self, name, getattr(members[0], name))

    def forward(self, images: Tensor) -> Tensor:
        """(batch, labels, ...) of images (batch, channels, ...)."""
        probabilities = torch.stack([torch.sigmoid(member(images).float()) for member in self.members])
        return torch.logit(probabilities.mean(dim=0), eps=1e-7)


def write_ensemble(standalone: Path, folder: Path) -> None:
    """Write the run folder of the ensemble of a finished run of local training: test results, and run.json last.

    Raises:
        BadInput: its models or its sites are not here, or the sites were prepared again.
    """
    info, model_of = read_run(standalone), final_models(standalone)
    sites = open_sites(require_place(info["sites_folder"], standalone), info["sites"], info["fold"])
    require_same_preparation(sites, info["site_digests"], standalone)
    ensemble, names = Ensemble([model_of(site) for site in sites]), [site.name for site in sites]
    rows: list[Row] = []

    def add(overlap: Overlap, site: str, split: str, tested: str = "") -> None:
        head = folder.name, ENSEMBLE, info["seed"], info["rounds"] - 1, site
        place = overlap.place | {"case": tested + overlap.case}
        quantities = overlap.scores if split == UNION else overlap.quantities
        rows.extend(Row(*head, name, value, split, **place, fold=info["fold"]) for name, value in quantities.items())

    for site in sites:
        found = evaluate(ensemble, site.cases(OWN), site.labels, info["training"].get("amp", False), final=True)
        for overlap in found:
            add(overlap, site.name, OWN)
            for name in names:  # all sites have the same model
                add(overlap, name, UNION, f"{site.name}/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.csv").unlink(missing_ok=True)
    ResultsFile(folder / "results.csv").append(rows)
    changed = {"run": folder.name, "method": ENSEMBLE, "parameters": {}, "models_of": standalone.name}
    write_json(folder / "run.json", {**info, **changed})
