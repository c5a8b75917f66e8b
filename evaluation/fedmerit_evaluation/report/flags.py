"""Findings about sites: flags with rounds, effects, reasons and amounts; repeated steps; spent privacy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from fedmerit.evidence.repeated_work import AUDITS
from fedmerit.evidence.signatures import parse_certificates, subject
from fedmerit.evidence.verification.work import read_statement
from fedmerit.schema.configuration.settings import COUNT_FACTOR, NORM_FACTOR, STATISTICS_FACTOR, GuardSettings
from fedmerit_evaluation.figures.tables import DASH
from fedmerit_evaluation.results.runs import Run

VERDICT_EFFECTS = {"show": "detected", "withhold": "withheld", "exclude": "excluded"}  # by option on_verdict


@dataclass(frozen=True)
class GuardVerdict:
    """A verdict of the guard against a site."""

    site: str
    what: str  # a value of `VERDICT_EFFECTS`
    since: int  # the first round in which it was in force
    lifted: int | None  # the first round without it; None if it is in force in the last round
    method: str = ""  # the label of the run
    seed: int | None = None  # the seed of the run, if the method has runs of several seeds

    @property
    def rounds(self) -> str:
        """The rounds in which it was in force, in words."""
        if self.lifted is None:
            return f"since round {self.since}"
        last = self.lifted - 1
        return f"in round {last}" if self.since == last else f"from round {self.since} to {last}"


@dataclass(frozen=True)
class Flag:
    """A finding of the method or the server about a site, and the rounds in which it was made."""

    what: str
    rounds: str


@dataclass(frozen=True)
class Attacked:
    """The runs of a method with simulated attacks."""

    method: str
    attacks: Mapping[str, str]  # by site
    flagged: Mapping[str, list[str]]  # by site, honest ones too: who flagged it


@dataclass(frozen=True)
class GuardEvidence:
    """The highest evidence in any round of any run that a site did not train."""

    site: str
    percent: float  # of the bound at which a verdict begins
    is_flagged: bool  # whether there was a verdict against it
    is_simulated: bool  # whether it is a simulated attacker


def is_guarded(run: Run) -> bool:
    """Return whether the guard checked the replies of a run. With local training it does nothing."""
    setting = run.info.get("plan", {}).get("guard", {}).get("guard") == "on"
    return setting and bool((run.results.rows["quantity"] == "verdict").any())


def list_verdicts(run: Run) -> list[GuardVerdict]:
    """Return all verdicts of a run, in the order of sites and rounds; none if it was not guarded."""
    if not is_guarded(run):
        return []
    what = VERDICT_EFFECTS[run.info["plan"]["guard"].get("on_verdict", "withhold")]
    rows = run.results.rows
    rows = rows[rows["quantity"] == "verdict"].sort_values(["site", "round"])
    verdicts = []
    for site, of_site in rows.groupby("site", sort=True):
        since: int | None = None
        for round, in_force in zip([*of_site["round"], None], [*(of_site["value"] > 0), False], strict=True):
            if in_force and since is None:
                since = int(round)
            elif not in_force and since is not None:
                lifted = None if round is None else int(round)
                verdicts.append(GuardVerdict(str(site), what, since, lifted, run.label))
                since = None
    return verdicts


@dataclass(frozen=True)
class Flags:
    """The findings about the sites: of the method, the server, the guard and auditors, and the privacy they spent."""

    table: pd.DataFrame  # a row per flag: Method, Seed, Site, What, Rounds, Reason
    bounds: pd.DataFrame  # a row per bound by the guard: Method, Seed, Site, What, Rounds, Least [%]
    attacked: Sequence[Attacked]
    verdicts: Sequence[GuardVerdict] | None  # in runs without simulated attacks; None: none of them was guarded
    evidence: Sequence[GuardEvidence] = ()  # of the sites of runs without attacks, then of simulated attackers
    failures: pd.DataFrame = field(default_factory=pd.DataFrame)  # as the table: sites that sent no answer, and why
    repeated_steps: pd.DataFrame = field(default_factory=pd.DataFrame)  # as of `list_repeated_steps`
    spent_privacy: pd.DataFrame = field(default_factory=pd.DataFrame)  # as of `list_spent_privacy`

    def of(self, method: str, site: str) -> tuple[tuple[Flag, ...], tuple[GuardVerdict, ...]]:
        """Return the flags of the method and the server, and the verdicts of the guard, for a site with a method."""
        rows = self.table[(self.table["Method"] == method) & (self.table["Site"] == site)]
        rows = rows[~rows["What"].isin(list(VERDICT_EFFECTS.values()))]
        verdicts = (one for one in self.verdicts or () if (one.method, one.site) == (method, site))
        return tuple(Flag(*map(str, row)) for row in rows[["What", "Rounds"]].to_numpy()), tuple(verdicts)

    def simulated(self, *, flagged: bool) -> list[str]:
        """Return the simulated attackers that were flagged in a run, or those that were not."""
        sites = (site for run in self.attacked for site in run.attacks if (site in run.flagged) == flagged)
        return list(dict.fromkeys(sites))


def collect_flags(runs: Sequence[Run]) -> Flags:
    """Return what was found of the sites in runs with labels."""
    guarded = [run for run in runs if is_guarded(run) and not (run.attacks and any(not one.attacks for one in runs))]
    seeds: dict[str, set[int]] = {}
    for run in guarded:
        seeds.setdefault(run.label, set()).add(run.seed)
    verdicts = [
        replace(verdict, seed=run.seed if len(seeds[run.label]) > 1 else None)
        for run in guarded
        for verdict in list_verdicts(run)
    ]
    found = list_findings(runs)
    is_failure = found["What"] == NO_ANSWER
    return Flags(
        table=found[~is_failure],
        bounds=list_bounds(runs),
        attacked=list_attacked(runs),
        verdicts=verdicts if guarded else None,
        evidence=list_evidence(runs),
        failures=found[is_failure],
        repeated_steps=list_repeated_steps(runs),
        spent_privacy=list_spent_privacy(runs),
    )


def list_evidence(runs: Sequence[Run]) -> list[GuardEvidence]:
    """Return the highest evidence against each site in guarded runs, and against simulated attackers."""
    highest: dict[tuple[bool, str], GuardEvidence] = {}
    for run in filter(is_guarded, runs):
        rows = run.results.rows
        recorded = rows[rows["quantity"] == "evidence"].groupby("site")["value"].max()
        rate = float(run.info["plan"]["guard"].get("false_alarms", GuardSettings().false_alarms))
        bound = math.log(len(run.sites) * run.rounds / rate)  # `fedmerit.guard.work.Evidence`
        flagged = {one.site for one in list_verdicts(run)}
        for site in run.attacks or run.sites:
            percent = 100 * max(0.0, float(recorded.get(site, 0.0))) / bound
            key = (bool(run.attacks), site)
            before = highest.get(key, GuardEvidence(site, 0.0, False, bool(run.attacks)))
            is_flagged = before.is_flagged or site in flagged
            highest[key] = replace(before, percent=max(percent, before.percent), is_flagged=is_flagged)
    return [one for _, one in sorted(highest.items())]


FLAGS = ("flagged", "rejected", "expelled")
NO_ANSWER = "no answer"  # instead of "rejected": something failed at the site, which shows nothing of its updates


def list_flags(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the flags of the method, the server and the guard, a row each, rounds joined; no failures."""
    found = list_findings(runs)
    return found[found["What"] != NO_ANSWER]


def list_findings(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the flags, and the failures: rounds in which a site sent no answer, so nobody checked anything there."""
    columns = ["site", "quantity", "split", "round"]
    rows = []
    for run in runs:
        found = run.results.rows
        found = found[found["quantity"].isin(FLAGS) & (found["value"] > 0)]
        reasons, failed = run.events["rejected"], run.events["failed"]
        for site, what, split, number in found[columns].itertuples(index=False):
            is_failure = what == "rejected" and not split and (int(number), str(site)) in failed
            reason = _reason(run, str(site), str(what), int(number), split, reasons)
            rows.append((run.label, run.seed, site, NO_ANSWER if is_failure else what, number, reason))
        rows += [
            (run.label, run.seed, one.site, one.what, number, "the guard's verdict")
            for one in list_verdicts(run)
            for number in range(one.since, run.rounds_done if one.lifted is None else one.lifted)
        ]
    table = pd.DataFrame(rows, columns=["Method", "Seed", "Site", "What", "Rounds", "Reason"])
    keys = ["Method", "Seed", "Site", "What", "Reason"]
    grouped = table.groupby(keys, sort=False)["Rounds"].agg(format_ranges).reset_index()
    return pd.DataFrame(grouped[["Method", "Seed", "Site", "What", "Rounds", "Reason"]])


def list_attacked(runs: Sequence[Run]) -> list[Attacked]:
    """Return, for each method with simulated attacks, the attackers and the sites that were flagged."""
    labels = dict.fromkeys(run.label for run in runs if run.attacks)
    return [_attacked(label, [run for run in runs if run.label == label]) for label in labels]


def _attacked(label: str, runs: Sequence[Run]) -> Attacked:
    attacks = {site: kind.removesuffix(":from=0") for run in runs for site, kind in run.attacks.items()}
    flagged: dict[str, list[str]] = {}
    for row in list_flags(runs).to_dict("records"):
        by = "the guard" if row["What"] in VERDICT_EFFECTS.values() else "the server"
        if (words := f"{by} ({row['What']})") not in flagged.setdefault(row["Site"], []):
            flagged[row["Site"]].append(words)
    return Attacked(label, attacks, flagged)


def format_ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers as ranges: ``0-2, 5`` for 0, 1, 2 and 5."""
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


ROUNDING = 1e-6  # counts are float64 products of whole numbers
BOUNDS = {  # by quantity: what was bounded, and how
    "clipped": ("update", f"clipped to {NORM_FACTOR:g} times the others' median norm"),
    "statistics_bound": ("BatchNorm statistics", f"change clipped to {STATISTICS_FACTOR:g} times the others' median"),
    "counted_images": ("number of images", f"capped at {COUNT_FACTOR:g} times the others' median"),
    "reward_group_share": (
        "reward",
        "shared within a reward group: one organisation, shared cases, or near copies of updates",
    ),
    "work_test": ("test of work", "suspended, as the site declares a privacy filter of its updates"),
    "rater_outlier": ("ratings of other sites", "outliers among the raters, left out"),
}


def list_bounds(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a row per method, seed, site and bound: the rounds in which it applied, the smallest fraction kept."""
    rows = [row for run in runs if is_guarded(run) for row in _list_bounds(run)]
    return pd.DataFrame(rows, columns=["Method", "Seed", "Site", "What", "Rounds", "Least [%]"])


def explain_bounds(names: Iterable[str]) -> str:
    """Return how the named things were bounded, as the end of a caption."""
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


def list_repeated_steps(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a row for each auditor's statement in the run folders: Method, Seed, Site, Drawn steps repeated, Auditor.

    Raises:
        BadInput: a file in the folder of statements is none.
    """
    rows = []
    for run in runs:
        for path in sorted((run.path / AUDITS).glob("*.json")):
            statement = read_statement(path)
            agreed = sum(not repeated.fault for repeated in statement.rounds.values())
            pem, where = statement.certificate.encode(), f"{path}: certificate"
            rows.append(
                {
                    "Method": run.label,
                    "Seed": run.seed,
                    "Site": statement.site,
                    "Drawn steps repeated": f"{agreed} of {len(statement.rounds)}",
                    "Auditor": subject(parse_certificates(pem, where)[0]) if pem else "not signed",
                }
            )
    return pd.DataFrame(rows)


def list_spent_privacy(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a row for each site of the runs by DP-SGD, as it accounts for ε: Method, Seed, Site, ε, δ and Rounds."""
    tables = []
    for run in runs:
        rows = run.results.rows
        spent = rows[(rows["quantity"] == "epsilon") & rows["value"].notna()].sort_values("round", kind="stable")
        if spent.empty:
            continue
        last = spent.groupby("site", as_index=False).last()
        delta = run.info.get("plan", {}).get("privacy", {}).get("dp_delta")
        columns = {"Method": run.label, "Seed": run.seed, "Site": last["site"], "ε": last["value"], "δ": delta}
        tables.append(pd.DataFrame(columns | {"Rounds": last["site"].map(spent["site"].value_counts())}))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
