"""Synthetic trainings of all coalitions, whose noise is known."""

import numpy as np
import pandas as pd
from games_reference import subsets

from fedmerit.contract.semivalues import format_spec
from fedmerit.schema.results import COLUMNS, Row
from fedmerit_evaluation.results.views import Results

SITES = ["A", "B", "C", "D", "E"]


def trained(worth, *, seed_sd=0.0, patient_sd=0.0, seeds=3, patients=10, draw=0, leave_out=(), hd95=False):
    """An additive game: the Dice of a coalition's model is its worth on every case, each value off as seeds and cases
    are: what a site adds differs by seed with ``seed_sd``, and by case with ``patient_sd``. ``patients`` is how many
    cases each site tests on, or a sequence of that, site by site.
    """
    random = np.random.default_rng(draw)
    names = sorted(worth)
    tested = [patients] * len(names) if isinstance(patients, int) else patients
    of_cases = random.normal(0, patient_sd, (len(names), len(names), max(tested)))  # of a site, where tested, case
    rows = []
    for seed in range(seeds):
        of_seed = random.normal(0, seed_sd, len(names))
        for one in subsets(names):
            if not one or one in leave_out:
                continue
            chosen = [names.index(name) for name in one]
            for tester, name in enumerate(names):
                for case in range(tested[tester]):
                    dice = sum(worth[names[site]] + of_seed[site] + of_cases[site, tester, case] for site in chosen)
                    head = ("x", "fedavg", seed, 1, name)
                    columns = {
                        "split": "testing",
                        "case": f"{case:03d}",
                        "label": "organ",
                        "coalition": format_spec(one),
                    }
                    rows.append(Row(*head, "dice", dice, **columns))
                    if hd95:
                        rows.append(Row(*head, "hd95", 30 - 20 * dice, **columns))
    return Results(pd.DataFrame([vars(row) for row in rows])[COLUMNS])


WORTH = dict(zip(SITES, (0.05, 0.10, 0.15, 0.20, 0.25), strict=True))
