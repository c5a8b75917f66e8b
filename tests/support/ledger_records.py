"""Records of a ledger with the fields that a test names; the others are empty."""

from collections.abc import Iterable, Mapping
from typing import Any

from fedmerit.evidence.verification.run import Verification
from fedmerit.schema.records import RoundRecord

EMPTY: Mapping[str, Any] = {
    "round": 0, "of": 9, "participants": [], "rejected": {}, "flagged": [], "began": {}, "updates": {}, "model": "",
    "weights": {}, "contributions": {}, "reputations": {}, "validation_dice": {},
    "inputs": {"size": 0, "counts": {}}, "rows": "", "evaluated": {}, "logs": {}
}  # fmt: skip
ENROLMENT: Mapping[str, Any] = {"shares_with": [], "organisation": "", "images": 0.0}


def round_record(**fields: Any) -> RoundRecord:
    """A record of a round; its enrolments need only the fields that a test names, too."""
    guard = dict(fields.get("guard", {}))
    if "enrolled" in guard:
        guard["enrolled"] = {site: {**ENROLMENT, **enrolment} for site, enrolment in guard["enrolled"].items()}
    return RoundRecord.model_validate({**EMPTY, **fields, **({"guard": guard} if guard else {})})


def round_records(contents: Iterable[Mapping[str, Any]]) -> list[RoundRecord]:
    """The records with these fields."""
    return [round_record(**content) for content in contents]


ONLY_SERVER = (  # kinds of open questions about what nobody but the server has
    *("sharing unproven", "scores unproven", "products unproven", "parts unproven", "importance unproven"),
    *("server ratings", "rated models unproven", "rests unproven", "values unproven"),
    "statistics unproven",
)


def beside_the_servers_word(verification: Verification) -> tuple[str, ...]:
    """What is not shown, beside inputs of the outcome that nobody but the server has."""
    return tuple(str(one) for one in verification.unproven if one.kind not in ONLY_SERVER)


def sentences(verification: Verification) -> tuple[str, ...]:
    """What a verification leaves open, in words, beside statistics of BatchNorm, which the tests' networks have."""
    return tuple(str(one) for one in verification.unproven if one.kind != "statistics unproven")
