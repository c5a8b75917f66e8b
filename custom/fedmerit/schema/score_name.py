"""The name of what runs measure. Texts for people are written for Dice; a script may measure something else."""

import re
from collections.abc import Mapping
from typing import Any

DICE = "Dice"
AUTO = "auto"  # instead of a metric's name: each site takes it from the first answer of its script
METRIC = re.compile(r"\w[\w .:/@%()+\-]{0,59}")  # a metric's name: nothing that a page or a table could read as markup
ONLY_ONE = "another"  # what leaves a site of a metric of another name, which its script's author chose
NAMES = (  # of metrics that leave a site
    *(
        f"{head}{name}{unit}"
        for name in ("dice", "accuracy", "acc")
        for head in ("", "val_", "eval_")
        for unit in ("", " %")
    ),
    *("auc", "auroc", "balanced_accuracy", "f1", "iou", "jaccard", "kappa", "mcc", "precision", "r2", "recall"),
    *("sensitivity", "specificity"),
)
_WRITTEN = re.compile(r"data:[a-z]+/[^\"]*|(?<!surface )\bDice\b")  # not in the bytes of data addresses
_shown = [DICE]  # of this process, whose threads show what one command opened


def name_score(info: Mapping[str, Any]) -> str:
    """Return Dice, or the metric of the sites' script of a run.json; with "score" if it was scaled to 0 to 1."""
    script = info.get("plan", {}).get("script")
    metric = script.get("metric") if isinstance(script, Mapping) else DICE.lower()
    if metric == AUTO:
        metric = str(info.get("metric", "")).removesuffix(" %")
        return DICE if metric == DICE.lower() else metric if metric in NAMES else "score"
    if metric == DICE.lower():
        return DICE
    if not (isinstance(metric, str) and METRIC.fullmatch(metric)):
        return "score"
    is_plain = (script.get("lowest"), script.get("highest"), script.get("better")) == (0, 1, "higher")
    return metric if is_plain else f"{metric} score"


def show_score_of(info: Mapping[str, Any]) -> None:
    """Set the name that is shown from now on to the score of this run.json, and of others with the same task."""
    _shown[:] = [name_score(info)]


def shown_score() -> str:
    """Return the name that is shown."""
    return _shown[0]


def with_score_name(text: str) -> str:
    """Return ``text`` with the name that is shown, instead of Dice."""
    name = shown_score()
    return text if name == DICE else _WRITTEN.sub(lambda found: name if found[0] == DICE else found[0], text)
