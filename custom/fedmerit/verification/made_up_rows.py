"""Rows in the results.csv of a run that is over which no such run writes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.federation.recorder import FINISHED
from fedmerit.records.results import OF_A_ROUND, read_run
from fedmerit.training.overlaps import COUNTS
from fedmerit.verification.result_tables import BEST, UNION, Table
from fedmerit.verification.site_chains import Record

SCORES = ("dice", "hd95", "nsd", "hd95_px", "nsd_px")
MEASURED = (*SCORES, *COUNTS)
AT_THE_END: Mapping[str, Sequence[str]] = {  # by split, the quantities written once all rounds are over
    "validation": MEASURED,
    "testing": (*MEASURED, "bytes_received", "rejected"),
    BEST: MEASURED,
    UNION: SCORES,
    **{f"{split}_{name}": (*MEASURED, "choice") for split in ("validation", "testing") for name in FINISHED},
}
PUT_IN = "it was put in: take the file from whom it was sent to when the run ended"


def require_none_made_up(table: Table, records: Sequence[Record], sites: Sequence[str]) -> None:
    """`BadInput` where a run of these rounds, which is over, has rows of another round, site, split or quantity.

    What its rounds hold is compared with their records; all else was measured at its end.

    Args:
        table: of the run.
        records: of its ledger; under what was rejected they may name others than sites, who have no rows.
        sites: of the run, beside those that took part.
    """
    rounds = len(records)
    known = {*sites, *(site for record in records for site in record["participants"])}
    cells = table.rows[["round", "split", "site", "coalition", "quantity"]].drop_duplicates()
    best = min(cells["round"][cells["split"] == BEST], default=-1)
    for round, split, site, coalition, quantity in cells.itertuples(index=False):
        what = f"{table.path}: has {quantity} of {site} in round {round}{split and f', {split}'}"
        if site not in known:
            raise BadInput(f"{what}; the run has no such site: {PUT_IN}")
        if 0 <= round < rounds and split in OF_A_ROUND:
            continue
        written = {"validation": rounds, BEST: best if best < rounds else -1}.get(split, rounds - 1)
        if round != written or round < 0 or coalition or quantity not in AT_THE_END.get(split, ()):
            raise BadInput(f"{what}, which no run of {rounds} rounds writes; {PUT_IN}")


def require_of_the_plan(table: Table, run: Path) -> None:
    """`BadInput` where all rows are of another method or seed than run.json has."""
    info = read_run(run) if (run / "run.json").exists() else {}
    for name in ("method", "seed"):
        said = sorted(set(table.rows[name]))
        if name in info and said not in ([], [info[name]]):
            raise BadInput(f"{table.path}: is of {name} {said[0]}, {run / 'run.json'} of {info[name]}")
