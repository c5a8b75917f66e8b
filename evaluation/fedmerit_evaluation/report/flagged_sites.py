"""Sites that the method, the server or its guard flags, with the evidence: rounds, effects, reasons, amounts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedmerit.schema.configuration.settings import COUNT_FACTOR, NORM_FACTOR, STATISTICS_FACTOR
from fedmerit_evaluation.figures.tables import DASH, Table
from fedmerit_evaluation.report.phrases import describe_simulated_attacks, describe_verdict
from fedmerit_evaluation.results.runs import Run, read_rounds

VERDICT_EFFECTS = {"show": "detected", "withhold": "withheld", "exclude": "excluded"}  # by option on_verdict


@dataclass(frozen=True)
class GuardVerdict:
    """One verdict of the guard against one site."""

    site: str
    what: str  # of `VERDICT_EFFECTS`
    since: int  # round
    lifted: int | None  # the first round without it; None: it is in force in the last round

    @property
    def rounds(self) -> str:
        """In which it was in force, in words."""
        return f"since round {self.since}" if self.lifted is None else f"from round {self.since} to {self.lifted - 1}"


def is_guarded(run: Run) -> bool:
    """Whether the guard checked the replies of a run; with local training it does nothing."""
    asked = run.info.get("plan", {}).get("guard", {}).get("guard") == "on"
    return asked and bool((run.results.rows["quantity"] == "verdict").any())


def list_verdicts(run: Run) -> list[GuardVerdict]:
    """All verdicts of a run, in the order of sites and rounds; none if it was not guarded."""
    if not is_guarded(run):
        return []
    what = VERDICT_EFFECTS[run.info["plan"]["guard"].get("on_verdict", "withhold")]
    rows = run.results.rows
    rows = rows[rows["quantity"] == "verdict"].sort_values(["site", "round"])
    found = []
    for site, own in rows.groupby("site", sort=True):
        since: int | None = None
        for round, in_force in zip([*own["round"], None], [*(own["value"] > 0), False], strict=True):
            if in_force and since is None:
                since = int(round)
            elif not in_force and since is not None:
                lifted = None if round is None else int(round)
                found.append(GuardVerdict(str(site), what, since, lifted))
                since = None
    return found


def describe_by_site(runs: Sequence[Run]) -> dict[str, list[str]]:
    """By site, every verdict of guarded runs in words; with the seed if there are several."""
    several = len({run.seed for run in runs}) > 1
    found: dict[str, list[str]] = {}
    for run in runs:
        for one in list_verdicts(run):
            words = describe_verdict(one.what, one.rounds, one.lifted)
            found.setdefault(one.site, []).append(f"seed {run.seed}: {words}" if several else words)
    return found


def sites_with_standing_verdict(runs: Sequence[Run]) -> set[str]:
    """The sites with a verdict in force in the last round of any of the runs."""
    return {one.site for run in runs for one in list_verdicts(run) if one.lifted is None}


FLAGS = ("flagged", "rejected", "expelled")


def list_flags(runs: Sequence[Run]) -> pd.DataFrame:
    """Flags of the method, the server and its guard: ``Method, Seed, Site, What, Rounds, Reason``, rounds joined."""
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
            (run.label, run.seed, one.site, one.what, number, "the guard's verdict")
            for one in list_verdicts(run)
            for number in range(one.since, run.rounds_done if one.lifted is None else one.lifted)
        ]
    table = pd.DataFrame(rows, columns=["Method", "Seed", "Site", "What", "Rounds", "Reason"])
    keys = ["Method", "Seed", "Site", "What", "Reason"]
    grouped = table.groupby(keys, sort=False)["Rounds"].agg(format_ranges).reset_index()
    return pd.DataFrame(grouped[["Method", "Seed", "Site", "What", "Rounds", "Reason"]])


def describe_attacked_runs(runs: Sequence[Run]) -> list[str]:
    """For every method with simulated attacks, a sentence on which attackers were flagged."""
    said = []
    for label in dict.fromkeys(run.label for run in runs if run.attacks):
        attacks = {
            site: kind.removesuffix(":from=0")
            for run in runs
            if run.label == label
            for site, kind in run.attacks.items()
        }
        flagged: dict[str, list[str]] = {}
        for row in list_flags([run for run in runs if run.label == label]).to_dict("records"):
            by = "the guard" if row["What"] in VERDICT_EFFECTS.values() else "the server"
            if (words := f"{by} ({row['What']})") not in flagged.setdefault(row["Site"], []):
                flagged[row["Site"]].append(words)
        said.append(describe_simulated_attacks(label, attacks, flagged))
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


def _reason(run: Run, site: str, what: str, number: int, split: str, reasons: Mapping[tuple[int, str], str]) -> str:
    if split:
        return "no usable reply to the final test"
    if what == "rejected":
        return reasons.get((number, site), "the ledger gives no reason")
    if what == "expelled":  # at ``coef`` / |R|: Xu and Lyu 2021, Lyu et al. 2020
        coef = run.info["parameters"].get("coef")
        share = (
            "the method's threshold" if coef is None else f"{float(coef):.3g} of an equal share of the remaining sites'"
        )
        return f"its reputation fell below {share}"
    from fedmerit.methods.fedce import CLAIM_TOLERANCE, FedCE  # it takes a second to import torch
    from fedmerit.methods.registry import METHODS

    method = run.info["method"]
    if method in METHODS and issubclass(METHODS[method], FedCE):
        return f"the cosine it reported differs from the server's by more than {CLAIM_TOLERANCE:g}"
    return "the method's own rule"


def rejection_reasons(run: Run) -> dict[tuple[int, str], str]:
    """The ledger's reasons for rejected replies, by round and site."""

    def read(record: Mapping[str, Any]) -> list[tuple[tuple[int, str], str]]:
        return [((record["round"], site), str(why)) for site, why in record.get("rejected", {}).items()]

    return read_rounds(run.path, read)


ROUNDING = 1e-6  # counts are float64 products of whole numbers
BOUNDS = {  # by quantity: what was bounded, and how
    "clipped": ("update", f"clipped to {NORM_FACTOR:g} times the others' median norm"),
    "statistics_bound": ("BatchNorm statistics", f"change clipped to {STATISTICS_FACTOR:g} times the others' median"),
    "counted_images": ("number of images", f"capped at {COUNT_FACTOR:g} times the others' median"),
    "reward_group_share": (
        "reward",
        "shared within a reward group: one organisation, shared cases, or near copies of updates",
    ),
    "rater_outlier": ("ratings of other sites", "outliers among the raters, left out"),
}


def bounds_table(runs: Sequence[Run]) -> Table:
    """A row per method, seed, site and bound: ``Rounds`` in which it applied, ``Least``, the smallest fraction kept."""
    found = [part for run in runs if is_guarded(run) for part in _list_bounds(run)]
    frame = pd.DataFrame(found, columns=["Method", "Seed", "Site", "What", "Rounds", "Least [%]"])
    caption = f"What the guard clipped or capped, with the smallest fraction kept{explain_bounds(frame['What'])}"
    return Table("bounds", caption, frame, decimals=0)


def explain_bounds(names: Iterable[str]) -> str:
    """How each was bounded, to end a caption."""
    shown = set(names)
    return "".join(f"; {name}: {how}" for name, how in BOUNDS.values() if name in shown)


def _list_bounds(run: Run) -> list[tuple[str, int, str, str, str, float]]:
    rows = run.results.rows
    rows = rows[rows["split"] == ""]
    counts = rows[rows["quantity"] == "num_samples"].set_index(["site", "round"])["value"]
    found = []
    for quantity, (name, _) in BOUNDS.items():
        values = rows[rows["quantity"] == quantity].set_index(["site", "round"])["value"]
        if quantity == "counted_images":
            left = values / counts.reindex(values.index)
        else:
            left = 1 - values if quantity == "rater_outlier" else values
        for site, own in left[left < 1 - ROUNDING].groupby("site", sort=True):
            rounds = own.index.get_level_values("round")
            found.append(
                (run.label, run.seed, str(site), name, format_ranges(map(int, rounds)), 100 * float(own.min()))
            )
    return found
