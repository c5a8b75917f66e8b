"""Synthetic runs behind the tables and figures of papers."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from run_factory import SITES, add_rows, make_run

from fedmerit.methods.registry import METHODS
from fedmerit.schema.results import Row
from fedmerit_lab.papers.artefact import KEEP_OWN


@dataclass(frozen=True)
class SyntheticTraining:
    """A finished training of invented numbers."""

    label: str
    seed: int
    folder: Path
    finished: bool = True


def write_paper_run(folder, label, seed, names=SITES):
    """Every row that a paper's artefact reads, in addition to those of `make_run`."""
    method, *settings = label.split(":")
    parameters = dict(setting.split("=") for setting in settings if f":{setting}" != KEEP_OWN)
    make_run(folder, method=method, seed=seed, sites=names, rounds=4, parameters=parameters)
    random = np.random.default_rng([seed, *label.encode()])
    head = (folder.name, method, seed)
    rows = []
    for place, site in enumerate(names):
        for number in range(4):
            rows.append(Row(*head, number, site, "cosine_to_mean", float(random.uniform(0.1, 1))))
            rows.append(Row(*head, number, site, "quota", 0.5 + 0.1 * place))
            rows.append(Row(*head, number, site, "server_seconds", 1.0 + 0.5 * (method == "eci")))
            rows += [
                Row(*head, number, site, f"{what}_distance", 0.1 * place) for what in ("model", "output", "reward")
            ]
        if method == "cycle":
            rows += [
                Row(*head, number, site, "peer_reputation", 0.2 * place + 0.01 * number, coalition=holder)
                for number in range(1, 4)
                for holder in names
                if holder != site
            ]
        level = (
            0.7
            if METHODS[method].about.download == "global model" and not label.endswith(KEEP_OWN)
            else 0.5 + 0.05 * place + random.uniform(0, 0.02)
        )
        for tester in names:
            for case in range(2):
                rows.append(Row(*head, 3, site, "dice", level, "union", f"{tester}/{case:03d}", "prostate"))
    add_rows(folder, rows)


def artefact_of(paper, name):
    """A paper's artefact of that name."""
    (found,) = (artefact for artefact in paper.artefacts if artefact.name == name)
    return found
