"""Flagged, expelled, rejected and judged sites, with the evidence: rounds, values, thresholds, the server's reasons."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from evaluation.display.table import DASH, Table
from evaluation.freeriders.detection import flags
from evaluation.freeriders.detectors import DETECTORS, Detector
from evaluation.report.accusations import by_signs, of_planted
from evaluation.report.guard_verdicts import DOES, standings
from evaluation.results.dice import POOLED
from evaluation.results.ledger_rounds import of_rounds
from evaluation.results.run_folders import Run
from fedmerit.errors import BadInput
from fedmerit.methods.fedce import CLAIM_TOLERANCE, FedCE
from fedmerit.methods.registry import METHODS

MARKS = ("flagged", "rejected", "removed")
BY_SERVER = "server"  # the detector that repeats what stands in the table of marks


def marked(runs: Sequence[Run]) -> pd.DataFrame:
    """What the method, the server and its guard found: ``Method, Seed, Site, What, Rounds, Reason``, rounds joined."""
    columns = ["site", "quantity", "split", "round"]
    rows = []
    for run in runs:
        found = run.results.rows
        found = found[found["quantity"].isin(MARKS) & (found["value"] > 0)]
        reasons = rejections(run)
        rows += [
            (run.label, run.seed, site, what, number, _reason(run, str(site), str(what), int(number), split, reasons))
            for site, what, split, number in found[columns].itertuples(index=False)
        ]
        rows += [
            (run.label, run.seed, one.site, one.what, number, f"the guard's verdict{by_signs(one.kinds)}")
            for one in standings(run)
            for number in range(one.since, run.rounds_done if one.lifted is None else one.lifted)
        ]
    table = pd.DataFrame(rows, columns=["Method", "Seed", "Site", "What", "Rounds", "Reason"])
    table["What"] = table["What"].replace("removed", "expelled")
    keys = ["Method", "Seed", "Site", "What", "Reason"]
    grouped = table.groupby(keys, sort=False)["Rounds"].agg(ranges).reset_index()
    return pd.DataFrame(grouped[["Method", "Seed", "Site", "What", "Rounds", "Reason"]])


def suspected(runs: Sequence[Run]) -> tuple[Table, list[str]]:
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


def by_detector(suspicions: pd.DataFrame) -> dict[str, list[str]]:
    """The sites that each detector suspects, under any method, of what `suspected` found."""
    if suspicions.empty:
        return {}
    return {str(name): sorted(set(rows["Site"])) for name, rows in suspicions.groupby("Detector", sort=False)}


def planted(runs: Sequence[Run], suspicions: pd.DataFrame) -> list[str]:
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
        for row in marked([run for run in runs if run.label == label]).to_dict("records"):
            by = "the guard" if row["What"] in DOES.values() else "the server"
            if (words := f"{by} ({row['What']})") not in told.setdefault(row["Site"], []):
                told[row["Site"]].append(words)
        honest = sorted(site for site in told if site not in attacks)
        said.append(of_planted(label, attacks, told, honest))
    return said


def ranges(numbers: Iterable[int]) -> str:
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
    if what == "removed":
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


def rejections(run: Run) -> dict[tuple[int, str], str]:
    """What the ledger says of rejected replies, by round and site."""

    def told(record: Mapping[str, Any]) -> list[tuple[tuple[int, str], str]]:
        return [((record["round"], site), str(why)) for site, why in record.get("rejected", {}).items()]

    return of_rounds(run.path, told)
