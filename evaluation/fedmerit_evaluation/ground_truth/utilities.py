"""The game that trained coalitions of sites play: the utility of each is the test Dice of its model."""

import numpy as np

from fedmerit.errors import BadInput
from fedmerit_evaluation.ground_truth.semivalues import EMPTY_COALITION, Coalition, FloatArray, parse_coalition
from fedmerit_evaluation.results.views import Results


def coalition_utilities(results: Results, *, per_label: bool = False) -> dict[int, dict[Coalition, FloatArray]]:
    """The game of each seed: utility of a coalition = its model's test Dice, a fraction, mean over sites.

    A site's Dice is the mean over its cases of the mean over labels, as in every table, so that the utility is the
    table's Avg.; with ``per_label`` it is (k,), for each label the mean over sites of the mean over cases. NaN where
    a site has no Dice, all its cases being empty in reference and prediction. The utility of nobody is stated as 0.

    Args:
        results: of a folder of ground truth, ``coalition`` naming who trained.
        per_label: whether labels stay apart.

    Raises:
        BadInput: a coalition was not tested on some site that another was tested on, or holds a site never tested.
    """
    cases = results.coalition_results.dice
    dice = (cases.label_cases if per_label else cases.cases.to_frame()).groupby(level=["seed", "method", "site"]).mean()
    games: dict[int, dict[Coalition, FloatArray]] = {}
    tested = set(dice.index.get_level_values("site"))
    for (seed, text), rows in dice.groupby(level=["seed", "method"]):
        there = set(rows.index.get_level_values("site"))
        members = parse_coalition(str(text))
        if lacking := sorted((tested | members) - there):
            raise BadInput(
                f"coalition {text}, seed {seed}: not tested on the cases of {', '.join(lacking)}; "
                "test it on all sites, with the command that trained it"
            )
        utility: FloatArray = rows.to_numpy(dtype=np.float64).mean(axis=0)
        utility = utility if per_label else utility.reshape(())
        games.setdefault(int(str(seed)), {EMPTY_COALITION: np.zeros_like(utility)})[members] = utility
    return games
