"""What a site committed to, beside what the ledger says that it did."""

from pathlib import Path

import pytest

from fedmerit.errors import BadInput
from fedmerit.verification.site_logs import compare_enrolments

LEDGER = Path("ledger.jsonl")
COMMITTED = {"cases": {"training": 2}, "slices": {"training": 9}, "fingerprint": "f"}


def enrolled(round, **changes):
    return {"work": "enrol", "round": round, "ledger": "h", **COMMITTED, **changes}


def record(round, **of_sites):
    return {"round": round, "guard": {"enrolled": of_sites}}


def test_what_counts_is_what_the_site_committed_to(own_log):
    of_ledger = COMMITTED | {"shares_with": [], "organisation": "site A"}
    others = {"B": COMMITTED | {"fingerprint": "of B"}}
    own = own_log("A", enrolled(0, fingerprint="before a crash"), enrolled(0), {"work": "train", "round": 0})
    compare_enrolments(LEDGER, [record(0, A=of_ledger, **others), {"round": 1}, record(2, **others)], own)
    late = own_log("A", enrolled(0), enrolled(2))
    compare_enrolments(LEDGER, [record(0, **others), record(1), record(2, A=of_ledger)], late)


@pytest.mark.parametrize(
    "change", [{"cases": {"training": 3}}, {"slices": {"training": 900}}, {"fingerprint": "of another hospital"}]
)
def test_another_commitment_is_found(own_log, change):
    words = "ledger.jsonl, line 2: A enrolled other cases, or another number of them, than A.jsonl has in round 1"
    for own in (own_log("A", enrolled(1, **change)), own_log("A", enrolled(0)), own_log("A")):
        with pytest.raises(BadInput) as found:
            compare_enrolments(LEDGER, [{"round": 0}, record(1, A=COMMITTED)], own)
        assert str(found.value) == words
