"""Fairness from run folders: the runs and ground truth, what is missing, and the files written."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.files import write_text
from fedmerit.schema.results import read_results
from fedmerit_data.tables import escape_formulas
from fedmerit_evaluation.fairness.measurement import Fairness, measure
from fedmerit_evaluation.fairness.measures import CONSTANT
from fedmerit_evaluation.figures.tables import write_tables
from fedmerit_evaluation.ground_truth.ground_truths import Reference, list_preparation_differences, open_ground_truths
from fedmerit_evaluation.results.dice import OWN, STANDALONE, Dice
from fedmerit_evaluation.results.run_folders import Run, combine_results, open_runs
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.statistics.bootstrap import DRAWS

ONE_MODEL = f"Dice {CONSTANT}"
ONE_MODEL_NOTE = (
    "all sites have one model; the papers let each train once more at the end: run it with --set last_round=own, or "
    "METHOD:last_round=own among the methods of compare"
)


def measure_runs(
    paths: Sequence[Path],
    standalone: Sequence[str] = (),
    ground_truth: Path | None = None,
    *,
    split: str = OWN,
    label: str | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> tuple[Fairness, list[str]]:
    """Every measure of fairness that the folders allow, and notes: what is missing and which command makes it.

    Args:
        paths: run folders, or folders of run folders. Unfinished runs are left out.
        standalone: the label of local training, or its run folders; none: the runs of the method standalone.
        ground_truth: a folder of trained coalitions (`fedmerit value leave-one-out`, `fedmerit value
            shapley`).
        split: ``testing``, each site's own test cases, or ``union``, those of all sites.
        label: one label; None: the mean over all.

    Raises:
        BadInput: no run is finished, runs do not belong together, ``standalone`` or ``label`` names none, or the
            ground truth is not of these sites or incomplete.
    """
    folders = _folders(paths)
    beside = _folders([Path(name) for name in standalone if Path(name).is_dir()])
    known = {folder.resolve() for folder in folders}
    tested, notes = _tested([*folders, *(folder for folder in beside if folder.resolve() not in known)])
    runs = open_runs(tested)
    base = _choose_standalone(runs, [name for name in standalone if not Path(name).is_dir()], beside)
    notes += _untested_sites(runs) + _missing_local_only(runs, base)
    labels = sorted({name for run in runs for name in run.info["labels"]})
    if label is not None and label not in labels:
        raise BadInput(f"--label {label}: unknown; the runs have {', '.join(labels)}")
    results = _select_label(combine_results(runs), label)
    if Dice(results.rows, split).rows.empty:
        raise BadInput(f"--split {split}: no run was tested on it; run again to test on it")
    if results.dice.mismatched_seeds():
        notes.append(
            "runs of one seed were tested on different cases: their Dice cannot be compared, and without the cases of "
            "local training there is no performance fairness and no gain"
        )
    ground = None
    if ground_truth is None:
        notes.append(
            "collaboration fairness needs a ground truth: give --ground-truth DIR, which `fedmerit value leave-one-out "
            f"--sites {runs[0].info.get('sites_folder')} --out DIR` or `fedmerit value shapley` writes"
        )
    else:
        ground = open_ground_truths(ground_truth, runs[0].sites, sorted({run.seed for run in runs}))
        ground = replace(ground, trained=_select_label(ground.trained, label))
        differences = list_preparation_differences(ground_truth, [run.site_digests for run in runs])
        notes += [f"--ground-truth {ground_truth}: {note}" for note in [*ground.notes, *differences]]
        notes += [
            f"--ground-truth {ground_truth}: {text}"
            for one in ground.references
            for text in _sampled(one, runs[0].sites, label)
        ]
    methods = {run.label: str(run.info["method"]) for run in runs}
    found = measure(results, methods, standalone=base, ground_truth=ground, split=split, draws=draws, seed=seed)
    return found, [*notes, *_undefined(found)]


def write_fairness(found: Fairness, notes: Sequence[str], out: Path) -> None:
    """Write ``fairness.csv`` (every measure, with what it lacks), each table as CSV and LaTeX, and ``notes.txt``."""
    write_text(out / "fairness.csv", escape_formulas(found.measured).to_csv(index=False, lineterminator="\n"))
    write_tables(found.tables, out)
    write_text(out / "notes.txt", "".join(f"{note}\n" for note in notes))


def _folders(paths: Sequence[Path]) -> list[Path]:
    """Run folders; of a folder that is none itself, those inside."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(file.parent for file in path.glob("*/run.json"))
        found += inside if inside and not (path / "run.json").exists() else [path]
    return found


def _tested(folders: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """The runs with test Dice, and notes on the others; `BadInput` if there is none."""
    tested, notes = [], []
    for folder in folders:
        is_run, has_results = ((folder / name).exists() for name in ("run.json", "results.csv"))
        if is_run and (not has_results or Dice(read_results(folder)).rows.empty):
            notes.append(f"{folder}: not finished, left out; `fedmerit run --resume --out {folder}` resumes it")
        else:
            tested.append(folder)  # `open_runs` rejects what is no run folder
    if folders and not tested:
        raise BadInput("; ".join(notes))
    return tested, notes


def _choose_standalone(runs: Sequence[Run], names: Sequence[str], folders: Sequence[Path]) -> str | None:
    """The label of local training; None if there is none and none was asked for."""
    labels = dict.fromkeys(run.label for run in runs)
    if unknown := [name for name in names if name not in labels]:
        raise BadInput(f"--standalone {unknown[0]}: neither a run folder nor a label; the runs are {', '.join(labels)}")
    if names or folders:
        places = {folder.resolve() for folder in folders}
        chosen = dict.fromkeys([*names, *(run.label for run in runs if run.path.resolve() in places)])
        if not chosen:
            raise BadInput("--standalone: none of its runs is finished; `fedmerit run --resume --out RUN` resumes one")
    else:
        chosen = dict.fromkeys(run.label for run in runs if run.info["method"] == STANDALONE)
    if len(chosen) > 1:
        raise BadInput(f"{', '.join(chosen)}: local training with different settings; name one with --standalone")
    return next(iter(chosen), None)


def _untested_sites(runs: Sequence[Run]) -> list[str]:
    return [
        f"{run.path}: no test Dice from {', '.join(sorted(set(run.sites) - run.tested_sites))}, so its measures "
        f"over sites are undefined; `fedmerit evaluate {run.path} --sites SITES` tests its models, a new run makes both"
        for run in runs
        if set(run.sites) - run.tested_sites
    ]


def _missing_local_only(runs: Sequence[Run], standalone: str | None) -> list[str]:
    lacking = {run.seed for run in runs} - {run.seed for run in runs if run.label == standalone}
    info = runs[0].info
    return [
        f"seed {seed}: no run of local training, so neither performance fairness nor gains; `fedmerit run --method "
        f"{STANDALONE} --sites {info.get('sites_folder')} --rounds {info['rounds']} --seed {seed} --out RUN` makes one"
        for seed in sorted(lacking)
    ]


def _select_label(results: Results, label: str | None) -> Results:
    """The results with the Dice of only one label."""
    return results if label is None else Results(results.rows[results.rows["label"].isin([label, ""])])


def _sampled(reference: Reference, sites: Sequence[str], label: str | None) -> Iterator[str]:
    """Sampled values with their standard errors, by seed."""
    dice = "Dice" if label is None else "the mean Dice of all labels, by which permutations were drawn"
    for seed, estimate in reference.estimates.items():
        pairs = zip(sites, 100 * estimate.values, 100 * estimate.standard_errors, strict=True)
        values = ", ".join(f"{site} {value:.2f} (standard error {error:.2f})" for site, value, error in pairs)
        yield (
            f"{reference.name}, seed {seed}: estimates from {estimate.permutations} sampled permutations, in points of "
            f"{dice}: {values}"
        )


def _undefined(found: Fairness) -> list[str]:
    """Why measures are undefined, those with the same reason together."""
    reasons: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for row in found.measured[found.measured["note"] != ""].to_dict("records"):
        names, methods = reasons.setdefault((row["table"], row["note"]), ({}, {}))
        names[row["measure"]] = methods[row["method"]] = None
    one_model = {method for (_, note), (_, methods) in reasons.items() if ONE_MODEL in note for method in methods}
    return [
        *(
            f"fairness-{table}: {', '.join(names)} undefined for {', '.join(methods)}: {note}"
            for (table, note), (names, methods) in reasons.items()
        ),
        *([f"{', '.join(sorted(one_model))}: {ONE_MODEL_NOTE}"] if one_model else []),
    ]
