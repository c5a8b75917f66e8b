"""What a study of free riders found: functions of its results and of who rode in which run, no files."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedmerit_evaluation.figures.tables import HEADINGS, UNITS, Table
from fedmerit_evaluation.freeriders import detectors
from fedmerit_evaluation.freeriders.detectors import DETECTORS
from fedmerit_evaluation.results.dice import SURFACES
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.attacked_runs import HONEST, Attack

WITHIN = 10  # rounds after the first in which a site attacks: until then it is to be told (Jiang et al. 2023)
DETECTION_TABLES = [detector.name for detector in DETECTORS]
KEY = ["Method", "Behaviour"]  # columns of files: an attack has been called so


def tables(attacks: Sequence[Attack], results: Results) -> list[Table]:
    """What riding paid, what it cost the others, who was told by what; empty without a finished control.

    Of every method and attack the means over sites in turn and seeds:

    - ``freeriders``: the rider's weight in the last round (of sites that stand twice or as two, the sum) and the
      part of the aggregate it earned, beside the same site's in the honest run of that seed; by how much the Dice of
      the others and its own differ from that run's; in how many runs any detector flags it within `WITHIN` rounds, and
      in how many the free-rider value is highest for it after these; the detectors that flag it within these in most
      runs, and after how many rounds of the attack (median).
    - ``flagged``: in how many of the runs each detector flags it within these rounds.
    - ``auroc``: of each detector's suspicion in the last of these rounds, riders against honest sites of those runs.
    - ``false-flags``: how many honest sites each detector flags in any round of the honest runs.
    """
    told = outcomes(attacks, results)
    if told.empty:
        return []
    rates = 100 * told[DETECTION_TABLES].notna().groupby([told[name] for name in KEY], sort=False).mean()
    text = f"within {WITHIN} rounds"
    return [
        Table("freeriders", "What riding for free gives, against the honest run", _summary(told)),
        Table("flagged", f"Runs in which the rider is flagged {text} [%]", _percent(rates)),
        Table("auroc", f"AUROC of riders against honest sites, after {WITHIN} rounds", aurocs(attacks, results)),
        Table("false-flags", "Honest sites flagged in honest runs, in any round [%]", false_flags(attacks, results)),
    ]


def outcomes(attacks: Sequence[Attack], results: Results) -> pd.DataFrame:
    """One row per finished attacked run whose honest run is finished: its key, what changed, who was told.

    Columns are those of `tables`, fractions; per detector the number of rounds after which the rider is flagged, from
    1, NaN where it is not within `WITHIN`; ``Named`` 1 where the free-rider value is highest for it then.
    """
    there = set(results.rows["run"])
    controls = {(one.label, one.seed): one for one in attacks if one.kind == HONEST and one.folder.name in there}
    pairs = [
        (attack, controls[attack.label, attack.seed])
        for attack in attacks
        if attack.kind != HONEST and attack.folder.name in there and (attack.label, attack.seed) in controls
    ]
    if not pairs:
        return pd.DataFrame()
    dice = results.read_folders.dice.sites["dice"].droplevel("seed")
    last = {name: _last(detectors.of_rounds(results, name)) for name in ("weight", "quota")}
    values = detectors.accumulated(detectors.free_rider_values(results))
    flags = detectors.first_flags(results, {attack.folder.name: attack.first for attack, _ in pairs})
    until = horizons(attacks, results)
    rows = []
    for attack, control in pairs:
        run, honest = attack.folder.name, control.folder.name
        riders, others = list(attack.riders), [site for site in dice[honest].index if site != attack.site]
        row = {
            "Method": attack.label,
            "Behaviour": attack.kind,
            "Site": attack.site,
            "Seed": attack.seed,
            "Weight": _sum(last["weight"], run, riders),
            "Weight, honest": _sum(last["weight"], honest, [attack.site]),
            "Reward": _sum(last["quota"], run, riders) / len(riders),
            "Reward, honest": _sum(last["quota"], honest, [attack.site]),
            "Others": (dice[run] - dice[honest]).reindex(others).mean(),  # over the same sites
            "Own": dice[run][riders].mean() - dice[honest][attack.site],
        }
        own = flags[(flags["run"] == run) & flags["site"].isin(riders) & (flags["round"] <= until[run])]
        after = own.groupby("detector")["round"].min() - attack.first + 1
        name = detectors.is_detected(values.loc[[(run, until[run])]]).iloc[0]
        rows.append(
            row | {"Named": float(name in riders)} | {detector: after.get(detector) for detector in DETECTION_TABLES}
        )
    return pd.DataFrame(rows).astype(dict.fromkeys(DETECTION_TABLES, float))


def horizons(attacks: Sequence[Attack], results: Results) -> dict[str, int]:
    """By run, the last of the `WITHIN` rounds in which a rider is to be told, or the last there is."""
    last = results.rows.loc[results.rows["split"] == ""].groupby("run")["round"].max()
    first = {attack.folder.name: attack.first for attack in attacks}
    return {str(run): min(first[str(run)] + WITHIN - 1, int(round)) for run, round in last.items()}


def aurocs(attacks: Sequence[Attack], results: Results) -> pd.DataFrame:
    """Method, attack x detectors; NaN where a method has nothing for a detector to see."""
    rows = [
        dict(zip(KEY, key, strict=True)) | {name: detectors.auroc(*both[name]) for name in DETECTION_TABLES}
        for key, both in _suspicions(attacks, results).items()
    ]
    return pd.DataFrame(rows, columns=[*KEY, *DETECTION_TABLES])


def rocs(attacks: Sequence[Attack], results: Results) -> pd.DataFrame:
    """The curves: ``Method, Behaviour, Detector`` and the columns of `detection.roc`."""
    curves = [
        detectors.roc(*both[name]).assign(**dict(zip(KEY, key, strict=True)), Detector=name)
        for key, both in _suspicions(attacks, results).items()
        for name in DETECTION_TABLES
    ]
    return pd.concat(curves, ignore_index=True) if curves else pd.DataFrame()


def _suspicions(
    attacks: Sequence[Attack], results: Results
) -> dict[tuple[str, str], dict[str, tuple[pd.Series, pd.Series]]]:
    """By method and attack and by detector, the suspicions of riders and of honest sites in the same runs."""
    there = [attack for attack in attacks if attack.kind != HONEST and attack.folder.name in set(results.rows["run"])]
    if not there:
        return {}
    found = detectors.suspicions(results, horizons(attacks, results))
    result = {}
    for label, kind in dict.fromkeys((attack.label, attack.kind) for attack in there):
        own = [attack for attack in there if (attack.label, attack.kind) == (label, kind)]
        rows = found[found.index.get_level_values("run").isin([attack.folder.name for attack in own])]
        riders = rows.index.isin([(attack.folder.name, site) for attack in own for site in attack.riders])
        result[label, kind] = {name: (rows.loc[riders, name], rows.loc[~riders, name]) for name in DETECTION_TABLES}
    return result


def false_flags(attacks: Sequence[Attack], results: Results) -> pd.DataFrame:
    """Method x detectors: percent of the honest runs' sites that are flagged in any round; ``Sites``: how many."""
    rows = []
    for label in dict.fromkeys(attack.label for attack in attacks):
        names = [attack.folder.name for attack in attacks if (attack.label, attack.kind) == (label, HONEST)]
        own = results.rows[results.rows["run"].isin(names)]
        if own.empty:
            continue
        sites = len(own[["run", "site"]].drop_duplicates())
        flagged = detectors.first_flags(Results(own))["detector"].value_counts()
        rows.append(
            {"Method": label, "Sites": sites} | {name: 100 * flagged.get(name, 0) / sites for name in DETECTION_TABLES}
        )
    return pd.DataFrame(rows).rename(columns={name: f"{name} [%]" for name in DETECTION_TABLES})


def compare_with_honest(attack: Attack, control: Attack, results: Results) -> Table:
    """One attacked run, site by site, beside its honest run: scores, weight, contribution, what flagged it when."""
    run, honest = attack.folder.name, control.folder.name
    tested = {of: results.read_folders.dice.sites.droplevel("seed").xs(of) for of in (run, honest)}
    columns = {}
    for name, of in (("", run), (", honest run", honest)):
        for quantity in ("dice", *(surface for surface in SURFACES if surface in tested[of])):
            heading = HEADINGS[quantity].replace(" [", f"{name} [")
            columns[heading] = tested[of][quantity] * UNITS.get(quantity, 1.0)
        for quantity in ("weight", "contribution"):
            found = _last(detectors.of_rounds(results, quantity))
            if of in found.index:
                weight = quantity == "weight"
                heading = f"{quantity.capitalize()}{name} [{'%' if weight else 'own unit'}]"
                columns[heading] = (100 if weight else 1) * found.loc[of]
    flags = detectors.first_flags(results, dict.fromkeys((run, honest), attack.first))
    sites = sorted({*tested[run].index, *tested[honest].index})
    table = pd.DataFrame(columns).reindex(sites).rename_axis("Site")
    for name, of in (("Flagged by (after rounds)", run), ("In the honest run by (after rounds)", honest)):
        own = flags[flags["run"] == of].sort_values("round")
        after = own["round"] - attack.first + 1  # from 1, as `outcomes` counts
        texts = (own["detector"] + " (" + after.astype(str) + ")").groupby(own["site"]).agg(", ".join)
        table[name] = texts.reindex(table.index, fill_value="")
    table.insert(0, "Behaviour", [attack.kind if site in attack.riders else HONEST for site in table.index])
    caption = (
        f"{attack.label}, seed {attack.seed}: site {attack.site} beside the run in which all are honest; rounds are "
        "counted from the first of the attack, that is 1"
    )
    return Table("attack", caption, table.reset_index())


def _summary(told: pd.DataFrame) -> pd.DataFrame:
    groups = told.groupby(KEY, sort=False)
    mean = (100 * groups[["Weight", "Weight, honest", "Reward", "Reward, honest"]].mean()).add_suffix(" [%]")
    for name, column in {
        "Others": "Others' Dice, change [points]",
        "Own": "Own Dice, change [points]",
        "Named": "Highest free-rider value [%]",
    }.items():
        mean[column] = 100 * groups[name].mean()
    flagged = told[DETECTION_TABLES].notna().any(axis=1).groupby([told[name] for name in KEY], sort=False)
    mean["Flagged by any detector [%]"] = 100 * flagged.mean()
    mean.insert(0, "Runs", groups.size())
    mean["Flagged by (after rounds)"] = [_flagged_by(rows) for _, rows in groups]
    return mean.dropna(axis=1, how="all").reset_index()


def _flagged_by(rows: pd.DataFrame) -> str:
    """The detectors that flag the rider in more than half of the runs, the earliest first."""
    usual = [name for name in DETECTION_TABLES if rows[name].notna().mean() > 0.5]
    medians = {name: float(rows[name].median()) for name in usual}
    return ", ".join(f"{name} ({medians[name]:g})" for name in sorted(usual, key=lambda name: medians[name]))


def _percent(table: pd.DataFrame) -> pd.DataFrame:
    return table.rename(columns={name: f"{name} [%]" for name in DETECTION_TABLES}).reset_index()


def _last(rounds: pd.DataFrame) -> pd.DataFrame:
    """The last round of each run: runs x sites."""
    return rounds.groupby(level="run").tail(1).droplevel("round") if len(rounds) else rounds


def _sum(table: pd.DataFrame, run: str, sites: Sequence[str]) -> float:
    if run not in table.index:
        return float("nan")
    return float(np.sum(table.loc[run].reindex(list(sites)).to_numpy()))
