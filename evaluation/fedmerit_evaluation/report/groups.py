"""Dice by group of patients, such as sex, age band or scanner, with gaps: descriptive, and no group of few patients.

Intervals are those of all Dice (`fedmerit_evaluation.statistics.resampling`): seeds and patients, or folds, vary
together in a group and in the others. They are no verdicts of the report's family.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit.trust import allowed_place
from fedmerit_evaluation.results.runs import Run, combine_results
from fedmerit_evaluation.results.views import Dice, name_patients
from fedmerit_evaluation.statistics.resampling import CrossedEffects

FLOOR = 5  # patients of a hospital behind every group that is shown, and behind what it leaves of the hospital
REST, EVERYWHERE = "", "all"
NONE = pd.DataFrame()
Patient = tuple[str, str]  # site and number


def dice_by_group(runs: Sequence[Run], method: str | None, sites: Path | None, only: str = "") -> pd.DataFrame:
    """Return the test Dice of groups of patients, if the site folders on this machine state any.

    Args:
        runs: finished runs.
        method: the label of the training that is shown.
        sites: the prepared site folders; None: those of the first run, if they are on this machine.
        only: the site to show; "": all.

    Returns:
        As `compare_groups`; empty if no folder of the runs' sites states groups of `FLOOR` patients.
    """
    place = sites or allowed_place(runs[0].info.get("sites_folder"))
    if method is None or place is None or not place.is_dir():
        return NONE
    folders = [folder for folder in open_sites(place) if only in ("", folder.name) and _is_of(folder, runs)]
    return compare_groups(combine_results(runs).dice, method, read_groups(folders))


def _is_of(folder: SiteFolder, runs: Sequence[Run]) -> bool:
    """Return whether a site folder is one that all runs were trained on: only then numbers are of its patients."""
    return folder.name in runs[0].sites and all(
        run.site_digests.get(folder.name, folder.digest) == folder.digest for run in runs
    )


def read_groups(folders: Sequence[SiteFolder]) -> dict[str, dict[Patient, str]]:
    """Return by column the group of each patient, by site and number; without what cases state unlike."""
    stated: dict[str, dict[Patient, set[str]]] = defaultdict(lambda: defaultdict(set))
    for folder in folders:
        for case in (case for split in folder.splits for case in folder.splits[split]):
            for column, group in case.groups:
                stated[column][folder.name, case.number].add(group)
    return {
        column: {patient: next(iter(groups)) for patient, groups in patients.items() if len(groups) == 1}
        for column, patients in stated.items()
    }


def compare_groups(dice: Dice, method: str, groups: Mapping[str, Mapping[Patient, str]]) -> pd.DataFrame:
    """Return the test Dice [fraction] of each group of patients, and its gap from the other groups of its column.

    Args:
        dice: of all runs.
        method: the label of a training.
        groups: by column, the group of each patient.

    Returns:
        ``(column, group)`` x ``patients, mean, low, high, gap, gap_low, gap_high``: 95 % confidence intervals of the
        mean over cases and of the gap, the group's mean less that of the other shown groups. Groups that
        `shown_groups` leaves out are missing, also a column of which fewer than two are left.
    """
    rows = dice.rows[dice.rows["method"].astype(str) == method]
    if rows.empty or not groups:
        return NONE
    keys = ["seed", "site", "case"]
    named = rows.assign(patient=name_patients(rows)).drop_duplicates(keys)
    patient_of = {
        (int(seed), str(site), str(case)): (str(site), str(patient))
        for seed, site, case, patient in named[[*keys, "patient"]].itertuples(index=False)
    }
    cases = dice.cases.xs(method, level="method")
    patients = [patient_of[int(seed), str(site), str(case)] for seed, site, case in cases.index]
    known = {patient for column in groups.values() for patient in column}
    tested = {patient for patient in patients if patient[0] in {site for site, _ in known}}
    table: dict[tuple[str, str], dict[str, float]] = {}
    for column, group_of in groups.items():
        shown = shown_groups({patient: group_of.get(patient, "") for patient in tested})
        of_case = pd.Series([shown.get(patient, "") for patient in patients], index=cases.index)
        names = sorted(set(shown.values()))
        for name in names if len(names) > 1 else ():
            table[column, name] = _compare(cases, of_case, name, dice)
            table[column, name]["patients"] = sum(group == name for group in shown.values())
    if not table:
        return NONE
    frame = pd.DataFrame(table).T.rename_axis(["column", "group"])
    return frame[["patients", "mean", "low", "high", "gap", "gap_low", "gap_high"]].astype({"patients": int})


def shown_groups(groups: Mapping[Patient, str]) -> dict[Patient, str]:
    """Return the patients whose group can be shown, with it.

    A hospital's patients of a group count if they are `FLOOR` or more, and if what remains of the hospital is nobody or
    `FLOOR` or more: else its mean Dice less that of the groups would be of a few. Without that, its smallest groups go.

    Args:
        groups: of all tested patients; "" of those whose group is not known.
    """
    shown = dict[Patient, str]()
    for site in sorted({site for site, _ in groups}):
        counts = Counter(group for patient, group in groups.items() if patient[0] == site)
        kept = {group: count for group, count in counts.items() if group and count >= FLOOR}
        while kept and 0 < counts.total() - sum(kept.values()) < FLOOR:
            kept.pop(min(kept, key=lambda group: (kept[group], group)))
        shown |= {patient: group for patient, group in groups.items() if patient[0] == site and group in kept}
    return shown


def _compare(cases: "pd.Series[float]", of_case: "pd.Series[str]", group: str, dice: Dice) -> dict[str, float]:
    """Return mean and gap of a group of cases, with their intervals.

    The group and the others count as two models at one place, tested on the cases of all hospitals.
    """
    frame = cases.rename("dice").reset_index()
    shown = of_case.to_numpy() != ""
    frame["method"] = ["group" if name == group else REST for name in of_case]
    frame["case"] = frame["site"].astype(str) + "/" + frame["case"].astype(str)
    frame["site"] = EVERYWHERE
    placed = frame[shown].set_index(["method", "seed", "site", "case"])["dice"]
    effects = CrossedEffects.from_cases(placed, dice.clusters)
    mean = effects.interval("group", site=EVERYWHERE, bounds=(0, 1))
    gap = effects.interval("group", REST, EVERYWHERE, bounds=(-1, 1))
    return {
        **{name: mean[name] for name in ("mean", "low", "high")},
        **{name: gap[of] for name, of in (("gap", "mean"), ("gap_low", "low"), ("gap_high", "high"))},
    }
