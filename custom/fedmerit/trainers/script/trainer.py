"""The trainer of a script of the site's own, such as an unchanged one of NVFlare's Client API.

The script gets a state_dict and gives one, or what it changed in it, with metrics. Of the metrics only the one that the
run names leaves this file, as a score from 0 to 1.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedmerit.client import ENROL, EVALUATED_CASES, LAMBDA, LOSSES, OWN
from fedmerit.contract import flat
from fedmerit.contract.capabilities import OwnUpdate, capabilities
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import DECIMALS, SiteView
from fedmerit.contract.vectors import histogram
from fedmerit.errors import BadInput, RunFailed
from fedmerit.evidence.digests import digest, tensors_digest
from fedmerit.evidence.ledger import texts_digest
from fedmerit.files import read_json, write_json
from fedmerit.reasons import ScriptAnswer, reason_of
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.script import Script
from fedmerit.schema.messages import MOST_CASES, MOST_IMAGES, Evaluated, Evaluation, Importance, ImportanceTask, Task
from fedmerit.schema.records import EVALUATE, TRAIN
from fedmerit.schema.rules import FLOAT32_SLACK
from fedmerit.schema.score_name import AUTO, METRIC, NAMES, ONLY_ONE
from fedmerit.schema.scores import EVALUATED, Overlap
from fedmerit.trainers.memory import Learned, Memory, MemoryFolder, Trained
from fedmerit.trainers.saved_networks import save_network
from fedmerit.trainers.script.named_tensors import NamedTensors, SentTensors
from fedmerit.trainers.trainer import Holdings, Model

# of NVFlare's Client API, its helpers and recipes
STEPS = "NUM_STEPS_CURRENT_ROUND"  # in the script's meta: of its optimiser
FEDCE_WEIGHTS, FEDCE_ERROR, FEDPROX_MU = "fedce_coef", "fedce_minus_val", "fedprox_mu"
SCAFFOLD_ALL, SCAFFOLD_CHANGE = "scaffold_c_global", "scaffold_c_diff"
SPLIT = "split"  # in the meta that the script receives: what is evaluated
CHOICE = "metric.json"  # in the site's memory: the metric, if the run names none
BY_CASE = "_by_case"  # ending of the metric's name: a list of its values, one for each case
# among several metrics; accuracy is the default of NVFlare's recipes, val_ and eval_ are heads of Lightning's and
# Hugging Face's
PREFERRED = tuple(head + name for name in ("dice", "accuracy", "acc") for head in ("", "val_", "eval_"))
PERCENT = 100.0  # highest value of a preferred metric that the script gives in percent
LOWER_IS_BETTER = re.compile(r"loss|err|mse|mae|nll|entropy|perplexity|distance|hausdorff|hd95|cost", re.IGNORECASE)
NAME_IT = 'name another as key_metric, with key_metric_range and key_metric_mode, or key_metric="" for none'
COUNT = "count.json"  # in the site's memory: the first number of steps, which counts for the whole run
T = TypeVar("T")


@dataclass(frozen=True)
class Question:
    """A question to a script."""

    work: str  # `TRAIN` or `EVALUATE`
    state: Mapping[str, Any]  # of the received model, tensors or arrays in the script's kinds of numbers
    round: int
    rounds: int
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class Said:
    """A script's answer."""

    params: Mapping[str, Any] = field(default_factory=dict)  # tensors or arrays by name
    is_difference: bool = False  # whether they are what training changed
    metrics: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    restarts: int = 0  # how often the script was started again since the answer before


Ask = Callable[[Question], Said]


class ScriptTrainer:
    """A trainer that has a site's script train and evaluate.

    Args:
        name: of the site.
        config: the run.
        memory: the site's folder of memories.
        ask: has the script answer; what it raises names the reason.
        report: called with an error of the script's that is no error of the task at hand.
    """

    def __init__(
        self,
        name: str,
        config: RunConfiguration,
        memory: Path,
        ask: Ask,
        report: Callable[[Exception], object] = lambda error: None,
    ):
        assert config.script
        self.name, self.config, self.memory, self.ask, self.script = name, config, memory, ask, config.script
        self._report = report
        self.method = config.build_guarded_method()
        self.can = capabilities(self.method)
        self.network = NamedTensors(config.network.arguments)
        self.sent = SentTensors(name, self.network)
        self._label, self._is_checked, self._has_trained = self.script.label, False, False
        self._takes_metric = self._awaits_metric
        if self._awaits_metric and (file := memory / CHOICE).exists():
            self.script = read_metric(self.script, read_json(file)["metric"])

    @property
    def _awaits_metric(self) -> bool:
        """Whether the run names no metric, and no answer of the script had one yet."""
        return self.script.metric == AUTO

    def train(self, task: Task, received: Tensor, memory: Memory | None, question: str) -> Trained:
        """Have the script train from ``received`` (d,), and score that if it says how good it is.

        Raises:
            BadInput: its answer has no tensors, or other ones than the model.
        """
        said = self._ask(TRAIN, (received, task.buffers), task.round, self._news(task))
        trained, buffers = self.sent.read(said.params, said.is_difference, received, task.buffers, not self._is_checked)
        self._check_metric(said)
        controls = self._controls(said, task)
        learned = Learned(
            trained - received,
            trained,
            buffers,
            math.nan,
            vectors=controls,
            kept=controls,
            own=self._own_model(said, received, task.buffers) if self.can.keeps_own_model else None,
        )
        values = self._values(said, task, received, memory)
        is_continued = not self._has_trained and any(self.memory.glob("round_*.pt"))  # by another process of the site
        is_new = not (self._has_trained or is_continued)
        fault = self._try_evaluation((received, task.buffers), task.round) if is_new else ""
        metric = describe_metric(self.script) if self._takes_metric and not self._awaits_metric else ""
        metric = metric if metric in ("", *NAMES) else ONLY_ONE  # no other text of the script's leaves the site
        scores, restarts, self._has_trained = self._scores(said), said.restarts + is_continued, True
        unsent = len({*self.network.state_dict()} - {*said.params})
        return Trained(learned, self._count(said), scores, (), values, metric, restarts, unsent, fault)

    def _try_evaluation(self, model: Model, round: int) -> str:
        """Have the script evaluate once, so that a fault is known long before the final test.

        Return the reason why it cannot; "" if it can, or is not going to be asked.
        """
        if not self.script.evaluates:
            return ""
        try:
            self.score(model, round, "validation")
        except (BadInput, RunFailed) as error:
            self._report(error)
            return reason_of(error)
        return ""

    def evaluate(self, task: Evaluation) -> Evaluated:
        """Return scores of every model of ``task``, equal ones once.

        Raises:
            BadInput: the script answers with parameters, or without the metric.
        """
        found: dict[tuple[str, str], Said] = {}
        losses = torch.zeros(len(task.mixtures), task.bins, dtype=torch.float64)
        scores = []
        for row, (mixture, shares) in enumerate(zip(task.mixtures, task.shares, strict=True)):
            model = flat.mix(task.models, mixture), flat.average_buffers(task.buffers, shares)
            key = digest(model[0]), tensors_digest(model[1].items())
            if key not in found:
                found[key] = self._evaluated(model, task.round, task.split)
            scores.append(self._scores(found[key]))
            if task.bins:
                losses[row] = histogram(self._losses(found[key]), task.bins)
        return Evaluated(task.round, tuple(scores), losses)

    def score(self, model: Model, round: int, split: str) -> tuple[Overlap, ...]:
        """Return the scores of one model; raises what `evaluate` raises."""
        return self._scores(self._evaluated(model, round, split))

    def _evaluated(self, model: Model, round: int, split: str) -> Said:
        said = self._ask(EVALUATE, model, round, {SPLIT: split})
        if said.params:
            raise ScriptAnswer(
                f"site {self.name}: the script trained when it was asked to evaluate; have its loop branch on "
                "flare.is_evaluate(), or set evaluates=False"
            )
        self._take_metric(said)
        if not self._scores(said):
            metric, found = self.script.metric or "metric", ", ".join(map(str, said.metrics))
            if {metric, metric + BY_CASE} & {*said.metrics}:
                raise ScriptAnswer(f"site {self.name}: the script evaluates no case, or {metric!r} of each is NaN")
            advice = f"it has {found:.200}; name one of them as key_metric" if found else "send FLModel(metrics=...)"
            raise ScriptAnswer(f"site {self.name}: the script's evaluation has no {metric!r}; {advice}")
        return said

    def _ask(self, work: str, model: Model, round: int, meta: Mapping[str, Any]) -> Said:
        flat.load(self.network, *model)
        state: Mapping[str, Any] = self.network.to_script()
        if self.script.arrays:
            state = {name: value.numpy() for name, value in state.items()}
        return self.ask(Question(work, state, round, self.config.rounds, meta))

    def _news(self, task: Task) -> dict[str, Any]:
        """Return what NVFlare's helpers of some methods read."""
        news: dict[str, Any] = {SPLIT: "training"}
        if self.can.leave_one_out:
            news[FEDCE_WEIGHTS] = {} if task.weight is None else {self.name: task.weight}
        if mu := getattr(self.method, "mu", None):
            news[FEDPROX_MU] = mu
        if self.can.keeps_own_model:
            news[LAMBDA] = getattr(self.method, "lambda_", 0.0)
        for control in task.vectors.values():
            named = flat.named(self.network, control)
            news[SCAFFOLD_ALL] = {name: value.numpy() for name, value in named.items()}
        return news

    def _controls(self, said: Said, task: Task) -> dict[str, Tensor]:
        """Return SCAFFOLD's c_i⁺ (d,): what the site had, and what the script's helper added to it."""
        if not self.can.vectors:
            return {}
        changes = said.meta.get(SCAFFOLD_CHANGE)
        if not isinstance(changes, Mapping):
            raise ScriptAnswer(f"site {self.name}: the script sent no {SCAFFOLD_CHANGE}; expected get_delta_controls()")
        model = flat.trainable(self.network)
        added = {
            name: self.sent.tensor(
                f"{SCAFFOLD_CHANGE} of {name}", changes.get(name, torch.zeros_like(value)), value.detach()
            )
            for name, value in model.items()
        }
        memory, change = MemoryFolder(self.memory).latest(task.round), flat.flatten(added, list(model))
        return {
            name: change + (memory.kept.get(name, torch.zeros_like(change)) if memory else 0)
            for name in self.can.vectors
        }

    def _losses(self, said: Said) -> Tensor:
        """Return (images,) of the received model, as the script sent them."""
        losses = _listed(said.meta.get(LOSSES))
        if not isinstance(losses, Sequence) or not 0 < len(losses) <= MOST_CASES:
            raise ScriptAnswer(f"site {self.name}: the script sent no losses; call fedmerit.client.with_losses")
        numbers = [as_number(loss) for loss in losses]
        if odd := [loss for loss, number in zip(losses, numbers, strict=True) if not _is_share(number)]:
            raise ScriptAnswer(f"site {self.name}: the script sent a loss of {odd[0]!r:.30}; expected 0 to 1")
        return torch.tensor(numbers, dtype=torch.float64).clamp(0, 1)

    def _own_model(self, said: Said, received: Tensor, buffers: Buffers) -> Model:
        """Return Ditto's own model, which the site keeps."""
        if not isinstance(own := said.meta.get(OWN), Mapping):
            raise ScriptAnswer(f"site {self.name}: the script sent no own model; call fedmerit.client.with_own_model")
        return self.sent.read(own, False, received, buffers, not self._is_checked)

    def _scores(self, said: Said) -> tuple[Overlap, ...]:
        """Return the run's metric by case, or the one mean; none if the script has none, or of a case that is NaN."""
        metric = self.script.metric
        if not metric or self._awaits_metric:
            return ()
        by_case = _listed(said.metrics.get(metric + BY_CASE))
        values = [said.metrics[metric]] if by_case is None and metric in said.metrics else by_case or ()
        if not isinstance(values, Sequence) or len(values) > MOST_CASES:
            raise ScriptAnswer(f"site {self.name}: {metric + BY_CASE} is no list of at most {MOST_CASES} numbers")
        try:
            known = {place: float(value) for place, value in enumerate(values) if not math.isnan(float(value))}
        except (TypeError, ValueError, RuntimeError):
            raise ScriptAnswer(f"site {self.name}: {metric} is {values!s:.80}; expected numbers") from None
        for value in known.values():
            self._named(require_in_range, self.script, value)
        scores = {place: round(self.script.score(value), DECIMALS) for place, value in known.items()}
        return tuple(Overlap.of_score(f"{place:03d}", self._label, score) for place, score in scores.items())

    def _check_metric(self, said: Said) -> None:
        """Check the first answer to a training task; raise `BadInput` if it lacks the metric, or is out of range."""
        if not self._is_checked and self.script.metric and not self._awaits_metric:
            self._named(require_metric, self.script, said.metrics)
        self._take_metric(said)
        self._is_checked = True

    def _take_metric(self, said: Said) -> None:
        """Take the metric from the first answer that has any, if the run names none; it counts for the whole run."""
        if self._awaits_metric and said.metrics:
            self.script = self._named(choose_metric, self.script, said.metrics)
            self.memory.mkdir(parents=True, exist_ok=True)
            write_json(self.memory / CHOICE, {"metric": describe_metric(self.script)})

    def _named(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what ``function`` returns; its `BadInput` names the site."""
        try:
            return function(*arguments)
        except BadInput as error:
            raise ScriptAnswer(f"site {self.name}: {error}") from None

    def _values(self, said: Said, task: Task, received: Tensor, memory: Memory | None) -> dict[str, float]:
        """Return what a method with leave-one-outs asks for.

        The error by the script's helper, the cosine by the updates.
        """
        measures, error = self.can.leave_one_out, said.meta.get(FEDCE_ERROR)
        if self.method.asks and not measures:
            return self.method.report(SiteView(received, lambda: self._losses(said)))
        if not measures or error is None or memory is None or task.weight is None or task.weight >= 1:
            return {}
        if not _is_share(number := as_number(error)):
            raise ScriptAnswer(f"site {self.name}: {FEDCE_ERROR} is {error!r:.30}; expected 0 to 1")
        dice = 1 - min(max(number, 0.0), 1.0)
        own = OwnUpdate(memory.received, memory.trained, task.weight, lambda parameters: dice)
        scores = [one.dice for one in self._scores(said) if one.dice is not None]
        view = SiteView(received, lambda: torch.empty(0), sum(scores) / len(scores) if scores else None)
        return dict(measures.measure(view, own))

    def _count(self, said: Said) -> int:
        """Return cases if they are enrolled, else steps of the optimiser in the first round, 1 if the script does not
        say.
        """
        file = self.memory / COUNT
        if file.exists():
            return int(read_json(file)["steps"])
        steps = said.meta.get(STEPS, 1)
        try:
            count = int(steps)
        except (TypeError, ValueError, OverflowError):
            count = 0
        if not 1 <= count <= MOST_IMAGES or count != steps:  # 6.0, and NumPy's 6, are whole
            raise ScriptAnswer(
                f"site {self.name}: {STEPS} is {steps!r:.30}; expected a whole number from 1 to {MOST_IMAGES}"
            )
        self._write_count(count)
        return count

    def _write_count(self, count: int) -> None:
        self.memory.mkdir(parents=True, exist_ok=True)
        write_json(self.memory / COUNT, {"steps": count})

    def holdings(self, round: int) -> Holdings:
        """Return the cases that the script named; their number is then the site's count.

        Raises:
            BadInput: it names none.
        """
        model = flat.get_parameters(self.network), flat.get_buffers(self.network)
        said = self._ask(EVALUATE, model, round, {ENROL: 1})
        held, evaluated = said.meta.get(ENROL), said.meta.get(EVALUATED_CASES, 0)
        if not isinstance(held, Sequence) or isinstance(held, str) or not held:
            raise ScriptAnswer(
                f"site {self.name}: the script named no cases; call fedmerit.client.enrol_cases and receive"
            )
        if type(evaluated) is not int or evaluated < 0:
            raise ScriptAnswer(
                f"site {self.name}: the script evaluates {evaluated!r:.30} cases; expected a whole number, 0 or more"
            )
        identities = [str(one).encode() for one in held]
        cases = dict.fromkeys(EVALUATED, evaluated) | {"training": len(identities)}
        self._write_count(len(identities))
        return Holdings(cases, cases, identities, secret=texts_digest(sorted(map(str, held))))

    def estimate(self, task: Evaluation) -> Evaluated:
        """Raise `BadInput`: a script cannot do this."""
        raise self._unable("estimate BatchNorm statistics")

    def finish(self, task: Evaluation, given: Model, below: Path) -> Evaluated:
        """Raise `BadInput`: a script cannot do this."""
        raise self._unable("select a final model")

    def measure_importance(self, task: ImportanceTask) -> Importance:
        """Raise `BadInput`: a script cannot do this."""
        raise self._unable("measure the importance of neurons")

    def save(self, folder: Path, name: str, model: Model) -> None:
        """Save a model that only the site has."""
        flat.load(self.network, *model)
        save_network(folder, name, self.network, self.config.network, None)

    def _unable(self, what: str) -> BadInput:
        return ScriptAnswer(f"site {self.name}: a script cannot {what}")


def _is_share(number: float | None) -> TypeGuard[float]:
    """Return whether a number is from 0 to 1, or differs from that by rounding in float32."""
    return number is not None and -FLOAT32_SLACK <= number <= 1 + FLOAT32_SLACK


def _listed(values: Any) -> Any:
    """Return an array or tensor as a list."""
    return values.tolist() if hasattr(values, "tolist") else values


# The metric


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
