"""What dossiers are about, synthetic: runs without folders, site folders without cases."""

from pathlib import Path
from typing import Any

from made_results import SITES, made_dice, made_results

from fedmerit.files import write_json
from fedmerit_dossier.evidence import DossierSources
from fedmerit_evaluation.results.runs import Run
from fedmerit_evaluation.results.views import Results

INFO = {"method": "fedce", "seed": 0, "sites": list(SITES), "rounds": 6, "parameters": {}, "training": {}}


def made_run(path: Path, results: Results | None = None, label: str = "fedce", **info: Any) -> Run:
    return Run(path, INFO | info, results or made_results([], []), label)


def made_sites(root: Path, **infos: dict[str, Any]) -> Path:
    """Site folders without a case, what site.json says by name."""
    for name, info in infos.items():
        fields = {"name": name, "task": "prostate", "labels": ["prostate"], "channels": 1, "image_size": [64, 64]}
        write_json(root / name / "site.json", fields | info)
        write_json(root / name / "datalist.json", {"training": [], "validation": [], "testing": []})
    return root


def made_tested(folder: Path) -> DossierSources:
    """Two methods and two seeds, tested on six cases of every site."""
    levels = {"standalone": (0.6, 0.7, 0.8), "fedce": (0.7, 0.7, 0.9)}
    rows = made_dice(levels, noise=0.0, seeds=2).rows
    return DossierSources(
        [
            made_run(folder / f"{method}-{seed}", Results(rows[(rows["method"] == method) & (rows["seed"] == seed)]),
                 str(method), method=method, seed=seed)
            for method in ("standalone", "fedce") for seed in (0, 1)
        ],
        [],
    )  # fmt: skip
