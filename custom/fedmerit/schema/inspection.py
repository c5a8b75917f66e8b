"""Checks of answers from sites: the server uses only what passes them."""

import math
import re
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.flat import Buffers
from fedmerit.contract.method import Method
from fedmerit.contract.vectors import extremes
from fedmerit.schema.messages import (
    ClosingReceipt,
    Enrolment,
    Evaluated,
    Evaluation,
    Failure,
    Importance,
    ImportanceTask,
    Purpose,
    Reply,
)
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS, UNITS, Overlap, Surface

T = TypeVar("T")
P = ParamSpec("P")
LARGEST = 1e6  # magnitude of an entry of an update: more is no training, and its sums may overflow
LARGEST_STATISTIC = 1e12  # of BatchNorm statistics and counters, likewise
NOT_NEGATIVE = ("running_var", "num_batches_tracked")  # ends of names of buffers; a script has others, too
LONGEST = 1e9  # seconds, some 30 years
FARTHEST = 1e6  # mm or pixels between two surfaces
ROUNDING = 1e-5  # by how much a loss in float32 may leave its range
MOST_CHOICES = 1000  # of a site in its final model selection
MOST_IMAGES, MOST_VOXELS = 10**9, 2**53
MOST_TRAINING_CASES = 100_000  # of one site
MOST_CASES = 5_000  # of one split
CASE = re.compile(r"[0-9]{1,6}")  # a position in it
LOG_HEAD = re.compile(r"([0-9a-f]{64}( [0-9a-f]{256,2048})?)?")  # SHA-256 and perhaps a signature, or nothing


Check = Callable[Concatenate[T, P], str | None]


def _check_of(kind: type[T], what: str) -> Callable[[Check[T, P]], Check[object, P]]:
    """A check of answers of this kind, whose parts may be of any; of others, and of these parts, it says so."""

    def decorate(check: Check[T, P]) -> Check[object, P]:
        @wraps(check)
        def checked(answer: object, /, *args: P.args, **settings: P.kwargs) -> str | None:
            if not isinstance(answer, kind):
                return _no_answer(answer)
            try:
                return check(answer, *args, **settings)
            except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
                return f"{what} cannot be checked ({type(error).__name__})"

        return checked

    return decorate


@_check_of(Reply, "reply")
def check_reply(
    answer: Reply,
    round: int,
    model: Tensor,
    buffers: Buffers,
    labels: tuple[str, ...],
    method: Method,
    others: Collection[str] = (),
    scored: bool = False,
) -> str | None:
    """Why the answer to a training task cannot be used, or None.

    Args:
        answer: what came, or a `Failure`.
        model: (d,) that the update has to be like.
        buffers: that its BatchNorm statistics have to be like.
        method: of the run; it knows what it asked for.
        others: the names of the sites but this one.
        scored: whether the sites give scores, instead of counts of voxels.
    """
    if answer.round != round:
        return f"reply of round {answer.round} in round {round}"
    if fault := check_model(answer.update, answer.buffers, model, buffers, "update"):
        return fault
    if fault := _check_vectors(answer.vectors, model, method):
        return fault
    if not is_count(answer.num_samples, MOST_IMAGES) or not answer.num_samples:
        return f"num_samples {answer.num_samples!s:.20}, expected a whole number from 1 to {MOST_IMAGES}"
    if fault := _check_overlaps(answer.overlaps, labels, scored) or _check_trained(answer, labels, scored):
        return fault
    for name, value in answer.values.items():
        if name not in method.asks:
            return f"value {name!r}, which the method does not ask for"
        low, high = method.asks[name]
        if not low <= value <= high:
            return f"{name} {value}, expected {low:g} to {high:g}"
    if not (math.isnan(answer.train_loss) or abs(answer.train_loss) <= LARGEST):
        return f"train_loss {answer.train_loss}, expected a number up to {LARGEST:g}"
    return _check_pairs(answer.pairs, others, method) or _check_common(answer)


def _check_vectors(vectors: Mapping[str, Tensor], model: Tensor, method: Method) -> str | None:
    """What is wrong with what a site sends beside its update."""
    expected = capabilities(method).vectors
    if set(vectors) != set(expected):
        return f"vectors {', '.join(sorted(vectors)) or '(none)'!s:.100}, expected {', '.join(expected) or '(none)'}"
    faults = (check_model(vector, {}, model, {}, name) for name, vector in vectors.items())
    return next((fault for fault in faults if fault), None)


def _check_common(answer: Reply | Evaluated) -> str | None:
    """What is wrong with what every answer has."""
    if not LOG_HEAD.fullmatch(answer.log):
        return "a word of the site's log that is no SHA-256 with a signature"
    return _check_seconds(answer.seconds)


def _check_seconds(seconds: float) -> str | None:
    return None if 0 <= seconds <= LONGEST else f"seconds {seconds}, expected 0 to {LONGEST:g}"


def check_model(vector: Tensor, buffers: Buffers, like: Tensor, like_buffers: Buffers, what: str) -> str | None:
    """Why parameters or an update (d,), ``what`` names it, and BatchNorm statistics are none of the model's, or None.

    ``like`` (d,) and ``like_buffers`` are what they have to be like.
    """
    if vector.shape != like.shape or vector.dtype != like.dtype:
        return (
            f"{what} of shape {tuple(vector.shape)} and {vector.dtype}, expected {tuple(like.shape)} and {like.dtype}"
        )
    low, high = extremes(vector)
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"{what} with NaN or infinite entries"
    if max(-low, high) > LARGEST:
        return f"{what} with entries beyond {LARGEST:g}"
    kinds = [{name: (value.shape, value.dtype) for name, value in some.items()} for some in (buffers, like_buffers)]
    if kinds[0] != kinds[1]:
        return "buffers of other names, shapes or types than the model's"
    if not all(value.isfinite().all() for value in buffers.values()):
        return "buffers with NaN or infinite entries"
    if any((value.abs() > LARGEST_STATISTIC).any() for value in buffers.values()):
        return f"buffers with entries beyond {LARGEST_STATISTIC:g}"
    if any((value < 0).any() for name, value in buffers.items() if name.endswith(NOT_NEGATIVE)):
        return "buffers with a negative variance or count"
    return None


def _check_pairs(pairs: Mapping[str, Mapping[str, float]], others: Collection[str], method: Method) -> str | None:
    """What is wrong with what a site says of the others."""
    quantities = capabilities(method).peer_quantities
    for name, values in pairs.items():
        if name not in quantities:
            return f"{name!r} of other sites, which the method does not ask for"
        low, high = quantities[name]
        for site, value in values.items():
            if site not in others:
                return f"{name} of {site!r:.40}, which is none of the other sites"
            if not low <= value <= high:
                return f"{name} {value} of {site}, expected {low:g} to {high:g}"
    return None


def _check_trained(answer: Reply, labels: tuple[str, ...], scored: bool) -> str | None:
    """What is wrong with the overlaps of the trained model, if there are any: they are of the same references."""
    if not answer.trained_overlaps:
        return None
    if fault := _check_overlaps(answer.trained_overlaps, labels, scored):
        return fault
    if _references(answer.trained_overlaps) != _references(answer.overlaps):
        return "overlaps of the trained model on other cases, or with another reference, than those of the received one"
    return None


def _references(overlaps: tuple[Overlap, ...]) -> list[tuple[str, str, int, str]]:
    """Case, label, voxels of the reference, and unit of the surfaces' distance, of each overlap."""
    return [
        (one.case, one.label, one.true_positives + one.false_negatives, one.surface.unit if one.surface else "")
        for one in overlaps
    ]


@_check_of(Evaluated, "evaluation")
def check_evaluated(answer: Evaluated, task: Evaluation, labels: tuple[str, ...], scored: bool = False) -> str | None:
    """Why the answer to ``task`` cannot be used, or None; ``scored`` as in `check_reply`."""
    if answer.round != task.round:
        return f"evaluation of round {answer.round} in round {task.round}"
    if len(answer.overlaps) != task.count:
        return f"evaluation of {len(answer.overlaps)} models, expected {task.count}"
    like = task.buffers[0] if task.purpose is Purpose.ESTIMATE else {}
    if fault := check_model(task.models, answer.buffers, task.models, like, "model"):
        return fault
    most = MOST_CHOICES if task.purpose is Purpose.FINISH else 0
    if not is_count(answer.choice, most):
        return f"choice {answer.choice!s:.20}, expected a whole number from 0 to {most}"
    cases = [[(overlap.case, overlap.label) for overlap in overlaps] for overlaps in answer.overlaps]
    surfaces = task.purpose in (Purpose.FINAL, Purpose.FINISH)
    if any(fault := _check_overlaps(overlaps, labels, scored, surfaces) for overlaps in answer.overlaps):
        return fault
    if task.purpose is Purpose.ESTIMATE:
        return _check_common(answer)
    if any(of_model != cases[0] for of_model in cases):
        return "evaluation of other cases for one model than for another"
    references = [_references(overlaps) for overlaps in answer.overlaps]
    if any(of_model != references[0] for of_model in references):
        return "evaluation with another reference for one model than for another"
    if answer.losses.shape != (task.count, task.bins):
        return f"losses of shape {tuple(answer.losses.shape)}, expected {(task.count, task.bins)}"
    if not all(0 <= count <= MOST_IMAGES for count in answer.losses.flatten().tolist()):
        return "counts of losses that are no counts"
    if len(set(answer.losses.sum(dim=1).tolist())) > 1:
        return "losses of more images for one model than for another"
    return _check_common(answer)


@_check_of(Importance, "importance of neurons")
def check_importance(answer: Importance, task: ImportanceTask, neurons: int) -> str | None:
    """Why the answer to ``task`` cannot be used, or None; ``neurons`` is how many there are."""
    if answer.round != task.round:
        return f"importance of neurons of round {answer.round} in round {task.round}"
    if not is_count(answer.images, task.images) or not answer.images:
        return f"importance of neurons on {answer.images!s:.20} images, expected 1 to {task.images}"
    if answer.increases.shape != (neurons,) or answer.increases.dtype != torch.float64:
        return f"importance of neurons of shape {tuple(answer.increases.shape)}, expected {(neurons,)} in float64"
    if not answer.increases.isfinite().all() or answer.increases.abs().max() > LARGEST * answer.images:
        return f"importance of neurons that is not finite, or beyond {LARGEST:g}"
    if task.order == "exact" and answer.increases.abs().max() > answer.images * (1 + ROUNDING):
        return "importance of neurons beyond 1: losses lie in [0, 1]"
    return _check_seconds(answer.seconds)


@_check_of(Enrolment, "enrolment")
def check_enrolment(answer: Enrolment, round: int) -> str | None:
    """Why an enrolment before ``round`` cannot be used, or None."""
    if answer.round != round:
        return f"enrolment of round {answer.round} in round {round}"
    for counts in (answer.cases, answer.slices):
        if set(counts) != {*SPLITS, SERVER_SPLIT} or not all(is_count(one, MOST_IMAGES) for one in counts.values()):
            return "enrolment with counts that are no counts, or of other splits"
    if not answer.cases["training"] or answer.slices["training"] < answer.cases["training"]:
        return "enrolment without training cases, or with fewer slices than cases"
    if len(answer.fingerprint) != answer.cases["training"] or len(answer.fingerprint) > MOST_TRAINING_CASES:
        return f"enrolment of {len(answer.fingerprint)!s:.20} digests for {answer.cases['training']!s:.20} cases"
    if not all(isinstance(one, str) and re.fullmatch(r"[0-9a-f]{32}", one) for one in answer.fingerprint):
        return "enrolment with digests that are none"
    if not isinstance(answer.certificate, str) or len(answer.certificate) > 10_000:
        return "enrolment with a certificate that is none"
    if not re.fullmatch(r"[0-9a-f]{32}", answer.seal):
        return "enrolment without a seal, 32 hexadecimal digits"
    if not isinstance(answer.preparation, str) or not re.fullmatch(r"([0-9a-f]{64})?", answer.preparation):
        return "enrolment with a preparation that is no digest"
    return _check_seconds(answer.seconds)


def check_countersigned(answer: object, round: int) -> str | None:
    """Why the answer to how the run was closed, after ``round`` rounds, cannot be used, or None."""
    if not isinstance(answer, ClosingReceipt):
        return _no_answer(answer)
    return None if answer.round == round else f"countersignature of round {answer.round!s:.20} in round {round}"


def _no_answer(answer: object) -> str:
    return answer.reason if isinstance(answer, Failure) else f"no answer to what was asked ({type(answer).__name__})"


def _check_overlaps(
    overlaps: tuple[Overlap, ...], labels: tuple[str, ...], scored: bool, surfaces: bool = False
) -> str | None:
    """What is wrong with overlaps; ``surfaces``: whether they may tell how far those lie apart."""
    if len(overlaps) > MOST_CASES * len(labels):
        return f"overlaps of {len(overlaps)} cases and labels, expected at most {MOST_CASES} cases"
    for overlap in overlaps:
        counts = (overlap.true_positives, overlap.false_positives, overlap.false_negatives)
        if scored and (any(counts) or overlap.surface or not _is_number(overlap.score, 1)):
            return "a score that is no number from 0 to 1, or one beside counts of voxels"
        if overlap.score is not None and not scored:
            return "a score, expected counts of voxels, from which the server computes Dice"
        if overlap.label not in labels or not all(is_count(count, MOST_VOXELS) for count in counts):
            return "overlaps of another label, or with counts that are no counts"
        if not (isinstance(overlap.case, str) and CASE.fullmatch(overlap.case)):
            return "overlaps whose case is no position in the split"
        if not (isinstance(overlap.patient, str) and (overlap.patient == "" or CASE.fullmatch(overlap.patient))):
            return "overlaps whose patient is no number"
        if overlap.surface is not None and not (surfaces and _is_surface(overlap.surface, overlap)):
            return "distances of surfaces that are none, that nobody asked for, or that are not of the counts"
    pairs = {(int(overlap.case), overlap.label) for overlap in overlaps}
    cases = {case for case, _ in pairs}
    if len(pairs) < len(overlaps) or len(pairs) < len(cases) * len(labels):
        return "overlaps of a case twice, or of some of its labels only"
    return None


def is_count(value: object, most: int) -> bool:
    """Whether a value is a whole number from 0 to ``most``."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _is_surface(surface: object, of: Overlap) -> bool:
    """Whether these are distances, and there where the counts say that there is a surface."""
    if not isinstance(surface, Surface) or surface.unit not in UNITS:
        return False
    masks = (of.true_positives + of.false_positives > 0, of.true_positives + of.false_negatives > 0)
    if not all(masks):
        return surface.hd95 is None and (surface.nsd == 0 if any(masks) else surface.nsd is None)
    return _is_number(surface.hd95, FARTHEST) and _is_number(surface.nsd, 1)


def _is_number(value: object, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most
