"""The metric of a script: which entry of its answers is the score of a model, if the run does not name one."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.script import Script
from fedmerit.schema.rules import FLOAT32_SLACK
from fedmerit.schema.score_name import AUTO, METRIC

BY_CASE = "_by_case"  # ending of the metric's name: a list of its values, one for each case
# among several metrics; accuracy is the default of NVFlare's recipes, val_ and eval_ are heads of Lightning's and
# Hugging Face's
PREFERRED = tuple(head + name for name in ("dice", "accuracy", "acc") for head in ("", "val_", "eval_"))
PERCENT = 100.0  # highest value of a preferred metric that the script gives in percent
LOWER_IS_BETTER = re.compile(r"loss|err|mse|mae|nll|entropy|perplexity|distance|hausdorff|hd95|cost", re.IGNORECASE)
NAME_IT = 'name another as key_metric, with key_metric_range and key_metric_mode, or key_metric="" for none'


def choose_metric(script: Script, metrics: Mapping[str, Any]) -> Script:
    """Return ``script`` with the metric that the run takes from a script's first ``metrics``.

    Of several metrics it is dice, else accuracy or acc, each also with val_ or eval_, and in percent; else the only
    one, if it lies in the run's range and its name does not say that less is better. If there is none, and nothing of
    the run needs one, it is "".

    Args:
        script: description of the script; its metric is `AUTO`.
        metrics: of the first answer that has any.

    Raises:
        BadInput: dice or accuracy is out of range or no number, or there is no such metric and the run needs one.
    """
    numbers = {str(name): number for name, value in metrics.items() if (number := as_number(value)) is not None}
    numbers |= {name[: -len(BY_CASE)]: math.nan for name in map(str, metrics) if name.endswith(BY_CASE)} | numbers
    known = next((name for name in PREFERRED if name in numbers), None)
    if known:
        is_percent = (script.lowest, script.highest) == (0, 1) and 1 + FLOAT32_SLACK < numbers[known] <= PERCENT
        chosen = replace(script, metric=known, highest=PERCENT if is_percent else script.highest)
        require_in_range(chosen, numbers[known])
        return chosen
    if unusable := next((name for name in PREFERRED if name in metrics), None):
        raise BadInput(describe_unusable(unusable, metrics[unusable]))
    others = ", ".join(f"{name} {value!r:.20}" for name, value in metrics.items() if str(name) not in numbers)
    name, fault = (*numbers, "")[0], f"no metric that is a number ({others})" if others else "no metrics"
    if len(numbers) == 1 and METRIC.fullmatch(name):
        is_inside = math.isnan(numbers[name]) or script.lowest <= numbers[name] <= script.highest
        lower = script.better == "higher" and LOWER_IS_BETTER.search(name)
        if is_inside and not lower:
            return replace(script, metric=name)
        fault = f"only {name}, " + ("of which less is better" if lower else f"which is {numbers[name]:.6g}")
    elif numbers:
        fault = ", ".join(numbers)
    if script.evaluates:
        raise BadInput(f"the script reports {fault:.300}; {NAME_IT}, or evaluates=False")
    return replace(script, metric="")


def require_metric(script: Script, metrics: Mapping[str, Any]) -> None:
    """Raise `BadInput` if the first answer to a training task lacks the metric that the run names, or is out of range.

    A script that answers evaluations may send no metrics with what it trained.
    """
    names = [str(name) for name in metrics]
    if {script.metric, script.metric + BY_CASE} & {*names}:
        number = as_number(metrics.get(script.metric))
        if number is None and script.metric + BY_CASE not in names:
            raise BadInput(describe_unusable(script.metric, metrics[script.metric]))
        if number is not None:
            require_in_range(script, number)
    elif names or not script.evaluates:
        there = ", ".join(names) or "no metrics"
        raise BadInput(f"the script's answer has no {script.metric!r}; it has {there:.200}; name one as key_metric")


def describe_unusable(name: str, value: Any) -> str:
    """Return a sentence on a metric that is no number."""
    return f"{name} is {value!r:.30}; expected a number, or as {name}{BY_CASE} a list of numbers"


def require_in_range(script: Script, value: float) -> None:
    """Raise `BadInput` if a value of the metric is outside of the range that the run names; NaN is inside."""
    if math.isnan(value):
        return
    try:
        script.score(value)
    except ValueError as error:
        bounds = "(0, 100)" if 0 <= value <= PERCENT else "(LOWEST, HIGHEST)"
        raise BadInput(
            f"{error}; give key_metric_range={bounds} (`fedmerit run`: --set lowest=..., --set highest=...), and "
            'key_metric_mode="min" (--set better=lower) if less is better'
        ) from None


def describe_metric(script: Script) -> str:
    """Return the metric that a site took, with % if its values are in percent; "" if there is none."""
    return f"{script.metric} %" if script.metric in PREFERRED and script.highest == PERCENT else script.metric


def read_metric(script: Script, text: str) -> Script:
    """Return ``script`` with the metric that `describe_metric` described."""
    name = text.removesuffix(" %")
    return replace(script, metric=name, highest=script.highest if name == text else PERCENT)


def as_number(value: Any) -> float | None:
    """Return a number as a float; None for what is none, such as a text or a list."""
    if isinstance(value, str | bytes | bool | np.bool_):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def is_taken_at_sites(script: Script) -> bool:
    """Return whether the run names no metric, so each site takes it from its script's first answer."""
    return script.metric == AUTO
