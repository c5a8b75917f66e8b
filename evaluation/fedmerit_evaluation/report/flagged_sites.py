"""The guard's verdicts in a run: when each stood, by which signs, what it did.

Flagged, expelled, rejected and judged sites, with the evidence: rounds, values, thresholds, the server's reasons.

Where the guard bounded what a site said or sent, or what it earns: rounds, and by how much.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedmerit.errors import BadInput
from fedmerit.guard import bounds
from fedmerit.methods.fedce import CLAIM_TOLERANCE, FedCE
from fedmerit.methods.registry import METHODS
from fedmerit_evaluation.figures.tables import DASH, Table
from fedmerit_evaluation.freeriders.detectors import DETECTORS, Detector, flags
from fedmerit_evaluation.report.phrases import describe_indicators, describe_simulated_attacks, describe_verdict
from fedmerit_evaluation.results.dice import POOLED
from fedmerit_evaluation.results.run_folders import Run, read_rounds

VERDICT_EFFECTS = {"show": "accused", "withhold": "withheld", "exclude": "excluded"}  # by what a verdict does


@dataclass(frozen=True)
class GuardVerdict:
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


def list_verdicts(run: Run) -> list[GuardVerdict]:
    """All verdicts of a run, in the order of sites and rounds; none where it was not guarded."""
    if not is_guarded(run):
        return []
    what = VERDICT_EFFECTS[run.info["plan"]["guard"].get("on_verdict", "withhold")]
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
                found.append(GuardVerdict(str(site), what, since, lifted, signs.get((since, str(site)), ())))
                since = None
    return found


def describe_by_site(runs: Sequence[Run]) -> dict[str, list[str]]:
    """By site, every verdict of some guarded runs in words; the seed is named where there are several."""
    several = len({run.seed for run in runs}) > 1
    found: dict[str, list[str]] = {}
    for run in runs:
        for one in list_verdicts(run):
            words = describe_verdict(one.what, one.rounds, one.kinds, one.lifted)
            found.setdefault(one.site, []).append(f"seed {run.seed}: {words}" if several else words)
    return found


def sites_with_standing_verdict(runs: Sequence[Run]) -> set[str]:
    """The sites against whom a verdict stood in the last round of any of the runs."""
    return {one.site for run in runs for one in list_verdicts(run) if one.lifted is None}


def _signs(run: Run) -> Mapping[tuple[int, str], tuple[str, ...]]:
    """The kinds of signs that stood, by round and site, as the ledger has them."""
    return read_rounds(
        run.path,
        lambda record: [
            ((int(record["round"]), str(site)), tuple(kinds))
            for site, kinds in record.get("guard", {}).get("indicators", {}).items()
        ],
    )


FLAGS = ("flagged", "rejected", "expelled")
BY_SERVER = "server"  # the detector that repeats what stands in the table of marks


def list_flags(runs: Sequence[Run]) -> pd.DataFrame:
    """What the method, the server and its guard found: ``Method, Seed, Site, What, Rounds, Reason``, rounds joined."""
    columns = ["site", "quantity", "split", "round"]
    rows = []
    for run in runs:
        found = run.results.rows
        found = found[found["quantity"].isin(FLAGS) & (found["value"] > 0)]
        reasons = rejection_reasons(run)
        rows += [
            (run.label, run.seed, site, what, number, _reason(run, str(site), str(what), int(number), split, reasons))
            for site, what, split, number in found[columns].itertuples(index=False)
        ]
        rows += [
            (run.label, run.seed, one.site, one.what, number, f"the guard's verdict{describe_indicators(one.kinds)}")
            for one in list_verdicts(run)
            for number in range(one.since, run.rounds_done if one.lifted is None else one.lifted)
        ]
    table = pd.DataFrame(rows, columns=["Method", "Seed", "Site", "What", "Rounds", "Reason"])
    keys = ["Method", "Seed", "Site", "What", "Reason"]
    grouped = table.groupby(keys, sort=False)["Rounds"].agg(format_ranges).reset_index()
    return pd.DataFrame(grouped[["Method", "Seed", "Site", "What", "Rounds", "Reason"]])


def list_suspicions(runs: Sequence[Run]) -> tuple[Table, list[str]]:
    """What the detectors of free riders flag, site by site, and which of them had nothing to go by.

    Returns:
        One row per method, site and detector: in how many seeds, the first round, the highest suspicion of the
        flagged rounds and the threshold; and the names of detectors whose evidence no run records.
    """
    runs = [run for run in runs if run.info["method"] != POOLED]  # whose sites all bear one update
    rows, silent = [], []
    for detector in (one for one in DETECTORS if one.name != BY_SERVER):
        seen = False
        for run in runs:
            known, found = _by(detector, run)
            seen |= known
            rows += [(run.label, site, detector.name, run.seed, *numbers) for site, *numbers in found]
        if not seen:
            silent.append(detector.name)
    table = pd.DataFrame(rows, columns=["Method", "Site", "Detector", "Seed", "first", "count", "highest"])
    seeds = {label: len({run.seed for run in runs if run.label == label}) for label in {run.label for run in runs}}
    thresholds = {detector.name: detector for detector in DETECTORS}
    lines = [
        {
            "Method": method,
            "Site": site,
            "Detector": name,
            "Seeds": f"{len(part)} of {seeds[str(method)]}",
            "First round": int(part["first"].min()),
            "Flagged rounds": int(part["count"].sum()),
            "Suspicion, highest": float(part["highest"].max()),
            "Threshold": thresholds[str(name)].threshold,
            "Meaning": thresholds[str(name)].what,
        }
        for (method, site, name), part in table.groupby(["Method", "Site", "Detector"], sort=False)
    ]
    caption = "Sites that a detector flags: its suspicion is above its threshold in at least one round"
    return Table("suspicions", caption, pd.DataFrame(lines), decimals=2), silent


def group_by_detector(suspicions: pd.DataFrame) -> dict[str, list[str]]:
    """The sites that each detector suspects, under any method, of what `suspected` found."""
    if suspicions.empty:
        return {}
    return {str(name): sorted(set(rows["Site"])) for name, rows in suspicions.groupby("Detector", sort=False)}


def describe_attacked_runs(runs: Sequence[Run], suspicions: pd.DataFrame) -> list[str]:
    """Of every method whose runs were given attackers, a sentence on who was told."""
    said = []
    for label in dict.fromkeys(run.label for run in runs if run.attacks):
        attacks = {
            site: kind.removesuffix(":from=0")
            for run in runs
            if run.label == label
            for site, kind in run.attacks.items()
        }
        own = suspicions[suspicions["Method"] == label] if not suspicions.empty else suspicions
        told = {} if own.empty else {str(site): list(rows["Detector"]) for site, rows in own.groupby("Site")}
        for row in list_flags([run for run in runs if run.label == label]).to_dict("records"):
            by = "the guard" if row["What"] in VERDICT_EFFECTS.values() else "the server"
            if (words := f"{by} ({row['What']})") not in told.setdefault(row["Site"], []):
                told[row["Site"]].append(words)
        honest = sorted(site for site in told if site not in attacks)
        said.append(describe_simulated_attacks(label, attacks, told, honest))
    return said


def format_ranges(numbers: Iterable[int]) -> str:
    """``0-2, 5`` of 0, 1, 2, 5."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}{DASH}{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def _by(detector: Detector, run: Run) -> tuple[bool, list[tuple[str, int, int, float]]]:
    """Whether a detector had anything to go by, and (site, first round, rounds, highest suspicion) of whom it flags."""
    try:
        suspicion = detector.suspicion(run.results)
    except BadInput:  # the run did not record its evidence
        return False, []
    if suspicion.isna().all(axis=None):
        return False, []
    found = flags(detector, suspicion)
    rounds = found.index.get_level_values("round")
    return True, [
        (str(site), int(rounds[mask].min()), int(mask.sum()), float(suspicion[str(site)][mask].max()))
        for site, mask in found.items()
        if mask.any()
    ]


def _reason(run: Run, site: str, what: str, number: int, split: str, reasons: Mapping[tuple[int, str], str]) -> str:
    if split:
        return "no usable reply to the final test"
    if what == "rejected":
        return reasons.get((number, site), "the ledger gives no reason")
    if what == "expelled":
        return _threshold(run)
    method = run.info["method"]
    if method in METHODS and issubclass(METHODS[method], FedCE):
        return f"its claimed cosine differs from what the server computed by more than {CLAIM_TOLERANCE:g}"
    return "the method's own rule"


def _threshold(run: Run) -> str:
    """Of expulsion, ``coef`` / |R|: Xu and Lyu 2021, Lyu et al. 2020."""
    coef = run.info["parameters"].get("coef")
    share = "the method's threshold" if coef is None else f"{float(coef):.3g} of an equal share of the remaining sites'"
    return f"its reputation fell below {share}"


def rejection_reasons(run: Run) -> dict[tuple[int, str], str]:
    """What the ledger says of rejected replies, by round and site."""

    def told(record: Mapping[str, Any]) -> list[tuple[tuple[int, str], str]]:
        return [((record["round"], site), str(why)) for site, why in record.get("rejected", {}).items()]

    return read_rounds(run.path, told)


ROUNDING = 1e-6  # counts are float64 products of whole numbers
BOUNDS = {  # by the quantity that says it: in a word, and what was done
    "clipped": ("update", f"longer than {bounds.NORM_FACTOR:g} times the others' median, and shortened to that"),
    "statistics_bound": (
        "BatchNorm statistics",
        f"moved over {bounds.STATISTICS_FACTOR:g} times as far as the others' median, and brought back to that",
    ),
    "counted_images": ("number of images", f"counted as {bounds.COUNT_FACTOR:g} times the others' median at most"),
    "reward_group_share": (
        "earnings",
        "shared with other sites: of one organisation, of shared cases, or with near copies of updates",
    ),
    "rater_outlier": ("ratings of others", "apart from those of the other raters, and without a voice"),
}


def bounds_table(runs: Sequence[Run]) -> Table:
    """A row per method, seed, site and bound: ``Rounds`` in which it applied, ``Least``, the smallest part left."""
    found = [part for run in runs if is_guarded(run) for part in _of_run(run)]
    frame = pd.DataFrame(found, columns=["Method", "Seed", "Site", "What", "Rounds", "Least [%]"])
    caption = f"What the guard bounded, and what was left of it where least was{explain_bounds(frame['What'])}"
    return Table("bounds", caption, frame, decimals=0)


def explain_bounds(names: Iterable[str]) -> str:
    """What was done about those that were bounded, to end a caption."""
    there = set(names)
    return "".join(f"; {name}: {done}" for name, done in BOUNDS.values() if name in there)


def _of_run(run: Run) -> list[tuple[str, int, str, str, str, float]]:
    rows = run.results.rows
    rows = rows[rows["split"] == ""]
    said = rows[rows["quantity"] == "num_samples"].set_index(["site", "round"])["value"]
    found = []
    for quantity, (name, _) in BOUNDS.items():
        values = rows[rows["quantity"] == quantity].set_index(["site", "round"])["value"]
        if quantity == "counted_images":
            left = values / said.reindex(values.index)
        else:
            left = 1 - values if quantity == "rater_outlier" else values
        for site, own in left[left < 1 - ROUNDING].groupby("site", sort=True):
            rounds = own.index.get_level_values("round")
            found.append(
                (run.label, run.seed, str(site), name, format_ranges(map(int, rounds)), 100 * float(own.min()))
            )
    return found
