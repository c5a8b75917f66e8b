"""The guard's verdicts in a run: when each stood, by which signs, what it did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evaluation.report.accusations import of_verdict
from evaluation.results.ledger_rounds import of_rounds
from evaluation.results.run_folders import Run

DOES = {"show": "accused", "withhold": "withheld", "exclude": "excluded"}  # by what a verdict does


@dataclass(frozen=True)
class Standing:
    """One verdict against one site, from a round on."""

    site: str
    what: str  # of `DOES`
    since: int  # round
    lifted: int | None  # the first round without it; None: it stood in the last one there is
    kinds: tuple[str, ...]  # of signs, when it was found; (): the ledger does not say

    @property
    def rounds(self) -> str:
        """In which it stood, in words."""
        return f"since round {self.since}" if self.lifted is None else f"from round {self.since} to {self.lifted - 1}"


def is_guarded(run: Run) -> bool:
    """Whether a guard stood between the answers and the method of a run; it idles where nobody gets of another's."""
    asked = run.info.get("plan", {}).get("guard", {}).get("guard") == "on"
    return asked and bool((run.results.rows["quantity"] == "verdict").any())


def standings(run: Run) -> list[Standing]:
    """All verdicts of a run, in the order of sites and rounds; none where it was not guarded."""
    if not is_guarded(run):
        return []
    what = DOES[run.info["plan"]["guard"].get("on_verdict", "withhold")]
    rows = run.results.rows
    rows = rows[rows["quantity"] == "verdict"].sort_values(["site", "round"])
    signs = _signs(run)
    found = []
    for site, own in rows.groupby("site", sort=True):
        since: int | None = None
        for round, stands in zip([*own["round"], None], [*(own["value"] > 0), False], strict=True):
            if stands and since is None:
                since = int(round)
            elif not stands and since is not None:
                lifted = None if round is None else int(round)
                found.append(Standing(str(site), what, since, lifted, signs.get((since, str(site)), ())))
                since = None
    return found


def told(runs: Sequence[Run]) -> dict[str, list[str]]:
    """By site, every verdict of some guarded runs in words; the seed is named where there are several."""
    several = len({run.seed for run in runs}) > 1
    found: dict[str, list[str]] = {}
    for run in runs:
        for one in standings(run):
            words = of_verdict(one.what, one.rounds, one.kinds, one.lifted)
            found.setdefault(one.site, []).append(f"seed {run.seed}: {words}" if several else words)
    return found


def stand(runs: Sequence[Run]) -> set[str]:
    """The sites against whom a verdict stood in the last round of any of the runs."""
    return {one.site for run in runs for one in standings(run) if one.lifted is None}


def _signs(run: Run) -> Mapping[tuple[int, str], tuple[str, ...]]:
    """The kinds of signs that stood, by round and site, as the ledger has them."""
    return of_rounds(
        run.path,
        lambda record: [
            ((int(record["round"]), str(site)), tuple(kinds))
            for site, kinds in record.get("guard", {}).get("signs", {}).items()
        ],
    )
