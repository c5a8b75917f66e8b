"""The trainer of a script of the site's own, such as an unchanged one of NVFlare's Client API.

The script gets a state_dict and gives one, or what it changed in it, with metrics. Of the metrics only the one that the
run names leaves this file, as a score from 0 to 1.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedmerit.client import ENROL, EVALUATED_CASES, LAMBDA, LOSSES, OWN
from fedmerit.contract import flat
from fedmerit.contract.capabilities import OwnUpdate, capabilities
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import DECIMALS, SiteView
from fedmerit.contract.vectors import histogram
from fedmerit.errors import BadInput, RunFailed, suggest
from fedmerit.evidence.digests import digest, tensors_digest
from fedmerit.evidence.ledger import texts_digest
from fedmerit.files import read_json, write_json
from fedmerit.reasons import ScriptAnswer, reason_of
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import (
    EVALUATE,
    MOST_IMAGES,
    TRAIN,
    Evaluated,
    Evaluation,
    Importance,
    ImportanceTask,
    Task,
)
from fedmerit.schema.score_name import NAMES, ONLY_ONE
from fedmerit.schema.scores import EVALUATED, Overlap
from fedmerit.trainers.memory import Learned, Memory, MemoryFolder, Trained
from fedmerit.trainers.saved_networks import save_network
from fedmerit.trainers.script.metric import (
    BY_CASE,
    choose_metric,
    describe_metric,
    is_taken_at_sites,
    read_metric,
    require_in_range,
    require_metric,
)
from fedmerit.trainers.script.named_tensors import NamedTensors
from fedmerit.trainers.trainer import Holdings, Model

# of NVFlare's Client API, its helpers and recipes
STEPS = "NUM_STEPS_CURRENT_ROUND"  # in the script's meta: of its optimiser
FEDCE_WEIGHTS, FEDCE_ERROR, FEDPROX_MU = "fedce_coef", "fedce_minus_val", "fedprox_mu"
SCAFFOLD_ALL, SCAFFOLD_CHANGE = "scaffold_c_global", "scaffold_c_diff"
SPLIT = "split"  # in the meta that the script receives: what is evaluated
CHOICE = "metric.json"  # in the site's memory: the metric, if the run names none
COUNT = "count.json"  # in the site's memory: the first number of steps, which counts for the whole run
MOST_CASES = 5_000
LEAST_JUDGED, KIND_SHARE = 32, 0.1  # numbers from which on, and share of the model's norm below which, it is judged
# whether a script sent a model or differences to it
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
        self._label, self._is_checked, self._has_trained = self.script.label, False, False
        self._takes_metric = is_taken_at_sites(self.script)
        if is_taken_at_sites(self.script) and (file := memory / CHOICE).exists():
            self.script = read_metric(self.script, read_json(file)["metric"])

    def train(self, task: Task, received: Tensor, memory: Memory | None, question: str) -> Trained:
        """Have the script train from ``received`` (d,), and score that if it says how good it is.

        Raises:
            BadInput: its answer has no tensors, or other ones than the model.
        """
        said = self._ask(TRAIN, (received, task.buffers), task.round, self._news(task))
        trained, buffers = self._model(said, received, task.buffers)
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
        metric = describe_metric(self.script) if self._takes_metric and not is_taken_at_sites(self.script) else ""
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
            metric, found = self.script.metric or "metric", ", ".join(map(str, said.metrics)) or "no metrics"
            if {metric, metric + BY_CASE} & {*said.metrics}:
                raise ScriptAnswer(f"site {self.name}: the script evaluates no case, or {metric!r} of each is NaN")
            raise ScriptAnswer(
                f"site {self.name}: the script's evaluation has no {metric!r}; it has {found:.200}; name one of "
                "them as key_metric"
            )
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
        added, like = {}, flat.trainable(self.network)
        for name, value in like.items():
            added[name] = torch.as_tensor(changes.get(name, torch.zeros_like(value))).float()
            if added[name].shape != value.shape:
                found, expected = tuple(added[name].shape), tuple(value.shape)
                raise ScriptAnswer(
                    f"site {self.name}: {SCAFFOLD_CHANGE} of {name} has shape {found}; expected {expected}"
                )
        memory, change = MemoryFolder(self.memory).latest(task.round), flat.flatten(added, list(like))
        return {
            name: change + (memory.kept.get(name, torch.zeros_like(change)) if memory else 0)
            for name in self.can.vectors
        }

    def _losses(self, said: Said) -> Tensor:
        """Return (images,) of the received model, as the script sent them."""
        losses = _listed(said.meta.get(LOSSES))
        if not isinstance(losses, Sequence) or not 0 < len(losses) <= MOST_CASES:
            raise ScriptAnswer(f"site {self.name}: the script sent no losses; call fedmerit.client.with_losses")
        found = torch.tensor(losses, dtype=torch.float64)
        if not ((found >= 0) & (found <= 1)).all():
            raise ScriptAnswer(f"site {self.name}: the script sent a loss of {found.max():.4g}; expected 0 to 1")
        return found

    def _model(self, said: Said, received: Tensor, buffers: Buffers) -> Model:
        """Return the trained model: what the script leaves out stays as it was received."""
        own: dict[str, Tensor] = {**flat.named(self.network, received), **buffers}
        if not said.params:
            raise ScriptAnswer(f"site {self.name}: the script sent no parameters; expected those that it trained")
        if not isinstance(said.params, Mapping):
            kind = type(said.params).__name__
            raise ScriptAnswer(f"site {self.name}: the script sent parameters as {kind}; expected tensors by name")
        sent = {}
        for name, value in said.params.items():
            if name not in own:
                instead = suggest(str(name), own)
                raise ScriptAnswer(
                    f"site {self.name}: the script sent {name!r:.140}, which the model does not have{instead}"
                )
            sent[name] = self._tensor(name, value, own[name])
        if not self._is_checked:
            self._require_kind(said.is_difference, sent, own)
        own |= {name: own[name] + tensor if said.is_difference else tensor for name, tensor in sent.items()}
        return flat.flatten(own, list(flat.trainable(self.network))), {name: own[name].clone() for name in buffers}

    def _tensor(self, name: str, value: Any, model: Tensor) -> Tensor:
        """Return what the script sent for a tensor of the ``model``, in the same kind of numbers."""
        try:
            tensor = torch.as_tensor(value).detach().cpu()
        except (TypeError, ValueError, RuntimeError):
            kind = type(value).__name__
            raise ScriptAnswer(f"site {self.name}: the script sent {name} as {kind}; expected a tensor") from None
        if tensor.shape != model.shape:
            found, expected = tuple(tensor.shape), tuple(model.shape)
            raise ScriptAnswer(f"site {self.name}: the script sent {name} of shape {found}; the model's is {expected}")
        kind = str(tensor.dtype).removeprefix("torch.")
        if tensor.is_complex() or (model.is_floating_point() and not tensor.is_floating_point()):
            raise ScriptAnswer(f"site {self.name}: the script sent {name} as {kind}; expected numbers with fractions")
        tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
        if not tensor.isfinite().all():
            raise ScriptAnswer(
                f"site {self.name}: the script sent {name} with NaN or infinite entries; take a smaller learning rate, "
                "or clip gradients"
            )
        return tensor.to(model.dtype)

    def _require_kind(self, is_difference: bool, sent: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> None:
        """Raise `ScriptAnswer` if a first answer looks like differences that are sent as a model, or the reverse.

        Differences are much smaller than the model, and a model is near the received one.
        """
        names = [name for name in flat.trainable(self.network) if name in sent]
        received = torch.cat([torch.zeros(0), *(model[name].flatten().float() for name in names)]).double()
        answer = torch.cat([torch.zeros(0), *(sent[name].flatten().float() for name in names)]).double()
        if len(received) < LEAST_JUDGED:
            return
        distance = (answer - received if is_difference else answer).norm()
        if distance < KIND_SHARE * received.norm():
            found, expected = ("DIFF", "FULL") if is_difference else ("FULL", "DIFF")
            what = "a model" if is_difference else "differences to the model"
            raise ScriptAnswer(
                f"site {self.name}: the script sent {what} as params_type {found}, by the size of the numbers; send "
                f"FLModel(params_type=ParamsType.{expected}, ...)"
            )

    def _own_model(self, said: Said, received: Tensor, buffers: Buffers) -> Model:
        """Return Ditto's own model, which the site keeps."""
        if not isinstance(own := said.meta.get(OWN), Mapping):
            raise ScriptAnswer(f"site {self.name}: the script sent no own model; call fedmerit.client.with_own_model")
        return self._model(Said(own), received, buffers)

    def _scores(self, said: Said) -> tuple[Overlap, ...]:
        """Return the run's metric by case, or the one mean; none if the script has none, or of a case that is NaN."""
        metric = self.script.metric
        if not metric or is_taken_at_sites(self.script):
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
        if not self._is_checked and self.script.metric and not is_taken_at_sites(self.script):
            self._named(require_metric, self.script, said.metrics)
        self._take_metric(said)
        self._is_checked = True

    def _take_metric(self, said: Said) -> None:
        """Take the metric from the first answer that has any, if the run names none; it counts for the whole run."""
        if is_taken_at_sites(self.script) and said.metrics:
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
        if not 0 <= float(error) <= 1:
            raise ScriptAnswer(f"site {self.name}: {FEDCE_ERROR} is {error!s:.30}; expected 0 to 1")
        own = OwnUpdate(memory.received, memory.trained, task.weight, lambda parameters: 1 - float(error))
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
                f"site {self.name}: {STEPS} is {steps!s:.30}; expected a whole number from 1 to {MOST_IMAGES}"
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
        if not isinstance(held, Sequence) or not held:
            raise ScriptAnswer(
                f"site {self.name}: the script named no cases; call fedmerit.client.enrol_cases and receive"
            )
        identities = [str(one).encode() for one in held]
        cases = dict.fromkeys(EVALUATED, int(evaluated)) | {"training": len(identities)}
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


def _listed(values: Any) -> Any:
    """Return an array or tensor as a list."""
    return values.tolist() if hasattr(values, "tolist") else values
