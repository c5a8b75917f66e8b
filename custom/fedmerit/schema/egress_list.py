"""What may leave a site: this list, and nothing else. `fedmerit.engines.nvflare.egress` holds every message against it.

docs/privacy.md says what each part is. The wire form of an answer (`fedmerit.engines.nvflare.translation`) is a table
of arrays, the update, and a table of named parts.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from fedmerit.ciphertexts import Ciphertexts
from fedmerit.contract.method import DECIMALS
from fedmerit.methods.registry import asked_quantities
from fedmerit.schema.inspection import CASE, LOG_HEAD, MOST_VOXELS, is_count
from fedmerit.schema.messages import REASONS
from fedmerit.schema.scores import COUNTS, UNITS, Overlap, Surface
from fedmerit.schema.survey import AREA, LEAST, TOO_FEW, VOLUME, Surveyed

OTHER_REASON = "the site has no answer; its own log says why"
# as `fedmerit.schema.messages.describe_failure` writes it
FAILED = re.compile(r"failed with [A-Za-z]{1,60}; the site's own log says more")
NAME = re.compile(r"[\w.\-]{1,120}")  # of parameters, statistics, labels, and sites that name each other
LARGEST_MB = 512  # of arrays in a message; the default network's update has 6
MOST_ENTRIES = 100_000  # in any list
MOST_VECTORS = 4  # beside an update
Parts = dict[str, Any]


class Withheld(ValueError):
    """A message that must not leave; says which part is not as listed, and nothing of what is in it."""


def clear_answer(
    update: Mapping[str, Any],
    parts: Mapping[str, Any],
    decimals: int = DECIMALS,
    encrypted: bool = False,
    least: int = LEAST,
) -> tuple[Parts, Parts]:
    """What of an answer may leave: its update, and its other parts with numbers rounded to ``decimals``.

    Parts that are not listed are left out; with ``encrypted``, no update or statistics pass in the clear;
    no survey passes with a number of fewer than ``least`` patients.

    Raises:
        Withheld: a listed part is of another kind than listed, or the arrays are beyond `LARGEST_MB`.
    """
    passed = {name: _part(name, value, decimals) for name, value in parts.items() if name in _CHECKS}
    arrays = _arrays(update, "update")
    if "survey" in passed and Surveyed.from_dict(passed["survey"]).below(least):
        raise Withheld(f"survey: a number of fewer than {least} patients; ask for a survey with a higher floor")
    if encrypted and (arrays or passed.get("buffers") or passed.get("vectors")):
        raise Withheld("update: in the clear, and this site sends it only encrypted")
    ciphertexts = sum(len(piece) for pieces in passed.get("ciphertexts", {}).values() for piece in pieces)
    beside = passed.get("vectors", {}).values()
    _require_size(arrays, passed.get("buffers", {}), *beside, more=ciphertexts)
    return arrays, passed


def require_model(parameters: Mapping[str, Any], buffers: Mapping[str, Any]) -> None:
    """Let a model, and its BatchNorm statistics, leave for a peer: arrays by name.

    Raises:
        Withheld: something else than arrays of float32 or int64 by name, or more than `LARGEST_MB`.
    """
    _require_size(_arrays(parameters, "model"), _arrays(buffers, "buffers"))


def _require_size(*tables: Mapping[str, Any], more: int = 0) -> None:
    size = more + sum(array.nbytes for table in tables for array in table.values())
    if size > LARGEST_MB * 2**20:
        raise Withheld(f"arrays of {size >> 20} MB: at most {LARGEST_MB} leave")


def _part(name: str, value: Any, decimals: int) -> Any:
    try:
        return _CHECKS[name](value, decimals)
    except Withheld:
        raise
    except (TypeError, ValueError, AttributeError, KeyError, OverflowError):
        raise Withheld(f"{name}: not of the kind listed") from None


def _arrays(value: Mapping[str, Any], what: str) -> Parts:
    for name, array in _bounded(value, what).items():
        kinds = (np.float32, np.int64)
        if not (isinstance(name, str) and NAME.fullmatch(name) and isinstance(array, np.ndarray)):
            raise Withheld(f"{what}: holds something else than arrays by name")
        if array.dtype not in kinds:
            raise Withheld(f"{what}: an array of {array.dtype}, expected float32 or int64")
    return dict(value)


def _vectors(value: Mapping[str, Any], decimals: int) -> dict[str, Parts]:
    if len(value) > MOST_VECTORS or not all(isinstance(name, str) and NAME.fullmatch(name) for name in value):
        raise Withheld("vectors: something else than a few by name")
    return {name: _arrays(arrays, "vectors") for name, arrays in value.items()}


def _ciphertexts(value: Mapping[str, Any], decimals: int) -> dict[str, tuple[bytes, ...]]:
    if set(value) != {part.name for part in fields(Ciphertexts)}:
        raise Withheld("ciphertexts: something else than an update and statistics")
    for pieces in value.values():
        if not all(isinstance(piece, bytes) for piece in _bounded(pieces, "ciphertexts")):
            raise Withheld("ciphertexts: something else than ciphertexts")
    return {name: tuple(pieces) for name, pieces in value.items()}


def _values(value: Mapping[str, Any], decimals: int) -> dict[str, float]:
    asked = asked_quantities()
    for name in _bounded(value, "values"):
        if name not in asked:
            raise Withheld("values: a name that no method asks for")
    return {name: _number(one, decimals) for name, one in value.items()}


def _pairs(value: Mapping[str, Any], decimals: int) -> dict[str, dict[str, float]]:
    if any(not NAME.fullmatch(site) for of_sites in value.values() for site in _bounded(of_sites, "pairs")):
        raise Withheld("pairs: something else than names of sites")
    numbers = {name: [_number(one, decimals) for one in of_sites.values()] for name, of_sites in value.items()}
    _values(dict.fromkeys(value, 0.0), decimals)
    return {name: dict(zip(value[name], numbers[name], strict=True)) for name in value}


def _number(value: Any, decimals: int) -> float:
    if isinstance(value, str | bytes):
        raise Withheld("text instead of a number")
    return round(float(value), decimals)


def _count(value: Any, decimals: int = 0) -> int:
    if not is_count(value, MOST_VOXELS):
        raise Withheld("something else instead of a count")
    return int(value)


def _overlaps(value: Any, decimals: int) -> list[Any]:
    """Of one model, or one such list per model."""
    return [
        _overlaps(one, decimals) if isinstance(one, list | tuple) else _overlap(one, decimals)
        for one in _bounded(value, "overlaps")
    ]


def _overlap(one: Mapping[str, Any], decimals: int) -> Parts:
    surface, score = one.get("surface"), one.get("score")
    parts = {part.name: one[part.name] for part in fields(Overlap) if part.name not in ("surface", "score", "patient")}
    seen, scored = surface and _surface(surface, decimals), None if score is None else _number(score, decimals)
    overlap = Overlap(**parts, surface=seen, score=scored, patient=one.get("patient", ""))
    if not (isinstance(overlap.case, str) and CASE.fullmatch(overlap.case)):
        raise Withheld("overlaps: a case that is no position in the split")
    if not (isinstance(overlap.patient, str) and (overlap.patient == "" or CASE.fullmatch(overlap.patient))):
        raise Withheld("overlaps: a patient that is no number")
    if not (isinstance(overlap.label, str) and NAME.fullmatch(overlap.label)):
        raise Withheld("overlaps: a label that is no name")
    for name in COUNTS:
        _count(parts[name])
    return asdict(overlap)


def _surface(value: Mapping[str, Any], decimals: int) -> Surface:
    if value["unit"] not in UNITS:
        raise Withheld("overlaps: distances in another unit")
    hd95, nsd = (None if value[name] is None else _number(value[name], decimals) for name in ("hd95", "nsd"))
    return Surface(value["unit"], hd95, nsd)


def _losses(value: Any, decimals: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    counts = np.array(value, dtype=np.float64)
    if counts.size > MOST_ENTRIES or not (counts == counts.round()).all() or (counts < 0).any():
        raise Withheld("losses: something else instead of counts")
    return counts


def _enrolment(value: Mapping[str, Any], decimals: int) -> Parts:
    if set(value) != {"cases", "slices", "fingerprint", "certificate", "seal", "preparation"}:
        raise Withheld("enrolment: something else than counts, digests, a certificate and a seal")
    counts = {name: {str(split): _count(one) for split, one in value[name].items()} for name in ("cases", "slices")}
    if not all(re.fullmatch(r"[a-z_]{1,30}", split) for of_splits in counts.values() for split in of_splits):
        raise Withheld("enrolment: a split that is no name")
    digests, seal = _bounded(value["fingerprint"], "enrolment"), value["seal"]
    if not all(isinstance(one, str) and re.fullmatch(r"[0-9a-f]{32}", one) for one in (*digests, seal)):
        raise Withheld("enrolment: something else than digests")
    prepared = value["preparation"]
    if not isinstance(prepared, str) or not re.fullmatch(r"([0-9a-f]{64})?", prepared):
        raise Withheld("enrolment: a preparation that is no digest")
    certificate = value["certificate"]
    pem = r"(-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE-----\n?)?"
    if not isinstance(certificate, str) or len(certificate) > 10_000 or not re.fullmatch(pem, certificate):
        raise Withheld("enrolment: a certificate that is none")
    prints = {"fingerprint": list(digests), "preparation": prepared}
    return counts | prints | {"certificate": certificate, "seal": seal}


def _true(value: Any, decimals: int) -> bool:
    if value is not True:
        raise Withheld("something else instead of a yes")
    return True


def _survey(value: Mapping[str, Any], decimals: int) -> Parts:
    surveyed = Surveyed.from_dict(value)
    labels = [name.partition(" ")[2] for name in surveyed.tallies if name.startswith((f"{VOLUME} ", f"{AREA} "))]
    if not all(map(NAME.fullmatch, labels)):
        raise Withheld("survey: a label that is no name")
    return surveyed.to_dict()


def _reason(value: Any, decimals: int) -> str:
    return value if value in (*REASONS, TOO_FEW) or FAILED.fullmatch(str(value)) else OTHER_REASON


def _log(value: Any, decimals: int) -> str:
    if not (isinstance(value, str) and LOG_HEAD.fullmatch(value)):
        raise Withheld("log: something else than a SHA-256 with a signature")
    return value


def _bounded(value: Any, what: str) -> Any:
    if len(value) > MOST_ENTRIES:
        raise Withheld(f"{what}: more than {MOST_ENTRIES} entries")
    return value


_CHECKS: Mapping[str, Callable[[Any, int], Any]] = {
    "buffers": lambda value, decimals: _arrays(value, "buffers"),
    "vectors": _vectors,
    "ciphertexts": _ciphertexts,
    "num_samples": _count,
    "overlaps": _overlaps,
    "trained_overlaps": _overlaps,
    "values": _values,
    "pairs": _pairs,
    "increases": lambda value, decimals: _bounded(np.array(value, dtype=np.float64), "increases"),
    "images": _count,
    "choice": _count,
    "losses": _losses,
    "enrolment": _enrolment,
    "countersigned": _true,
    "survey": _survey,
    "train_loss": _number,
    "seconds": _number,
    "log": _log,
    "failure": _reason,
}
LISTED = ("update", *_CHECKS, "model")  # docs/privacy.md says what each part is
