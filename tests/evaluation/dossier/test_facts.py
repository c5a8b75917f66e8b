"""What the evidence of a dossier says, each from a run or a site folder that holds no more than it takes."""

import hashlib
from dataclasses import replace
from inspect import isfunction
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_results import SITES, made_dice, made_results, made_row
from run_factory import make_run, write_ledger

from evaluation.dossier import facts
from evaluation.dossier.facts import EVIDENCE, File, checks, external, open_file
from evaluation.results.run_folders import Run, open_runs
from evaluation.results.views import Results
from fedmerit.errors import BadInput
from fedmerit.files import write_json
from fedmerit.records.results import Row
from fedmerit.training.data import open_sites

INFO = {"method": "fedce", "seed": 0, "sites": list(SITES), "rounds": 6, "parameters": {}, "training": {}}


def _run(path: Path, results: Results | None = None, label: str = "fedce", **info: Any) -> Run:
    return Run(path, INFO | info, results or made_results([], []), label)


def _sites(root: Path, **infos: dict[str, Any]) -> Path:
    """Site folders without a case, what site.json says by name."""
    for name, info in infos.items():
        fields = {"name": name, "task": "prostate", "labels": ["prostate"], "channels": 1, "image_size": [64, 64]}
        write_json(root / name / "site.json", fields | info)
        write_json(root / name / "datalist.json", {"training": [], "validation": [], "testing": []})
    return root


def _tested(folder: Path) -> File:
    """Two methods and two seeds, tested on six cases of every site."""
    levels = {"standalone": (0.6, 0.7, 0.8), "fedce": (0.7, 0.7, 0.9)}
    rows = made_dice(levels, noise=0.0, seeds=2).rows
    return File(
        [
            _run(folder / f"{method}-{seed}", Results(rows[(rows["method"] == method) & (rows["seed"] == seed)]),
                 str(method), method=method, seed=seed)
            for method in ("standalone", "fedce") for seed in (0, 1)
        ],
        [],
    )  # fmt: skip


def test_every_function_of_a_file_is_evidence() -> None:
    ours = {name for name, one in vars(facts).items() if isfunction(one) and one.__module__ == facts.__name__}
    assert {name for name in ours if not name.startswith("_")} - {"open_file"} == set(EVIDENCE)


def test_a_run_that_recorded_nothing_claims_nothing_of_what_it_came_to(tmp_path: Path) -> None:
    file = File([_run(tmp_path, task="other", labels=["liver"])], [])
    said = {name: text for name, one in EVIDENCE.items() if (text := one(file))}
    assert said.keys() == {"task", "centres", "training", "method", "seeds", "limits"}
    assert "0 of 6 rounds" in said["limits"]
    assert "no test Dice yet" in said["limits"]


def test_versions_that_nobody_recorded_are_no_evidence(tmp_path: Path) -> None:
    run = _run(tmp_path)
    assert facts.software(File([replace(run, info={**run.info, "fedmerit_version": "0.1.0", "packages": {}})], [])) == (
        "FedMerit 0.1.0, Apache-2.0."
    )
    bare = {name: value for name, value in run.info.items() if name not in ("fedmerit_version", "packages")}
    assert facts.software(File([replace(run, info=bare)], [])) == ""


def test_sites_that_say_alike_stand_together_and_who_is_not_here_is_named(tmp_path: Path) -> None:
    (run,) = open_runs([make_run(tmp_path / "run", rounds=1)])
    sites = _sites(
        tmp_path / "sites",
        Alder={"licence": "CC BY 4.0", "left_out": [{"reason": "no mask"}] * 2 + [{"reason": "not 3D"}]},
        Birch={"licence": "CC BY 4.0", "left_out": [], "unreadable_cases": 1},
        Cedar={"licence": None},
    )
    file = open_file([run], sites)
    assert facts.licences(file) == "Alder, Birch: CC BY 4.0; not known of Cedar and Dogwood."
    assert facts.left_out(file) == (
        "Alder: 2 files: no mask; 1 file: not 3D, 0 unreadable cases; Birch: no file left out, 1 unreadable case; "
        "not known of Cedar and Dogwood."
    )
    assert facts.sources(file) == ""


def test_site_folders_are_those_of_the_runs_where_none_are_named(tmp_path: Path) -> None:
    sites = _sites(tmp_path / "sites", Alder={}, Yew={})
    assert [site.name for site in open_file([_run(tmp_path, sites_folder=str(sites))], None).folders] == ["Alder"]
    assert open_file([_run(tmp_path, sites_folder=str(tmp_path / "gone"))], None).folders == []
    assert open_file([_run(tmp_path)], None).folders == []
    with pytest.raises(BadInput, match=r"--sites .*: holds none of Alder, Birch, Cedar"):
        open_file([_run(tmp_path)], _sites(tmp_path / "others", Yew={}))


def test_the_size_of_slices_is_that_of_the_run_the_plan_or_the_folders(tmp_path: Path) -> None:
    folders = open_sites(_sites(tmp_path, Alder={"spacing": [0.5, 0.5], "crop": "whole", "field_of_view": 32}))
    plan = {"preprocessing": {"size": [48, 48]}}
    assert facts.preparation(File([_run(tmp_path)], [])) == ""
    assert facts.preparation(File([_run(tmp_path, plan=plan)], [])) == "Slices of 48 x 48 pixels."
    assert facts.preparation(File([_run(tmp_path, plan=plan, image_size=[40, 56])], [])) == "Slices of 40 x 56 pixels."
    assert facts.preparation(File([_run(tmp_path)], folders)) == (
        "Slices of 64 x 64 pixels of 0.5 x 0.5 mm; field of view 32, crop whole."
    )


def test_runs_with_attackers_are_told_and_judged_by_no_one(tmp_path: Path) -> None:
    attacked = _run(tmp_path / "a", label="fedce (attacked)", behaviours={"Birch": "zero"})
    honest = _run(tmp_path / "b")
    file = File([attacked, honest], [])
    assert file.honest == [honest]
    assert file.run is honest
    assert facts.robustness(file) == "Runs with attackers in them: fedce (attacked): Birch (zero); see report.html."
    assert File([attacked], []).honest == [attacked]
    assert facts.robustness(File([honest], [])) == ""


def test_results_are_those_of_the_method_that_is_judged(tmp_path: Path) -> None:
    file = _tested(tmp_path)
    assert (file.method, file.run.path.name) == ("fedce", "fedce-0")
    assert facts.performance(file) == (
        "Mean test Dice 76.7 % [76.7 %, 76.7 %]; by site: Alder 70.0 % [70.0 %, 70.0 %], "
        "Birch 70.0 % [70.0 %, 70.0 %], Cedar 90.0 % [90.0 %, 90.0 %]."
    )
    assert facts.fairness(file) == (
        "Dice by site from 70.0 % (Alder) to 90.0 % (Cedar); gain over training alone from +0.0 (Birch) to +10.0 "
        "points. Groups of patients by age, sex or the like were not compared."
    )
    assert facts.failures(file) == "Lowest Dice of a test case: Alder 70.0 %, Birch 70.0 %, Cedar 90.0 %."
    assert facts.uncertainty(file).endswith("Fewest test cases of a site: 6; seeds: 2.")
    assert facts.seeds(file) == "Parameters begin at random by seed: 0, 1."
    assert facts.selection(file) == "The model after the last round, 5 counted from 0."


def test_a_method_that_was_not_tested_yet_has_no_results_beside_one_that_was(tmp_path: Path) -> None:
    alone = [run for run in _tested(tmp_path).runs if run.label == "standalone"]
    file = File([*alone, _run(tmp_path / "begun")], [])
    assert file.method == "fedce"
    assert [facts.performance(file), facts.fairness(file), facts.failures(file)] == ["", "", ""]


def test_a_method_of_others_is_told_by_its_name(tmp_path: Path) -> None:
    file = File([_run(tmp_path, label="mine", method="mine", parameters={"strength": 2})], [])
    assert facts.method(file) == "Method mine (strength 2)."


def test_what_a_run_cost(tmp_path: Path) -> None:
    """Two rounds of 60 and 120 seconds at the sites: 6 minutes; 3 and 1 MB a round: 8 MB."""
    rows = [
        made_row("fedce", 0, number, site, quantity, value)
        for number in (0, 1)
        for site, of_site in (("Alder", (60.0, 3e6)), ("Birch", (120.0, 1e6)))
        for quantity, value in zip(("seconds", "bytes_sent"), of_site, strict=True)
    ]
    file = File([_run(tmp_path, made_results(rows, ["fedce"]))], [])
    assert facts.cost(file) == "6 minutes of sites' time in the run, 8 MB sent. Energy was not measured."


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        (None, ""),
        ([], "Updates left the sites without a privacy filter. No claim of anonymity is made."),
        (["he", "gaussian"], "Updates passed he, gaussian. No claim of anonymity is made."),
    ],
)
def test_which_filters_updates_passed(tmp_path: Path, filters: list[str] | None, said: str) -> None:
    assert facts.privacy(File([_run(tmp_path, privacy=filters)], [])) == said


def test_models_are_named_with_their_digests(tmp_path: Path) -> None:
    (tmp_path / "run" / "models").mkdir(parents=True)
    (tmp_path / "run" / "models" / "global.pt").write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    assert facts.access(File([_run(tmp_path / "run")], [])) == f"Models in run/models: global.pt (SHA-256 {digest})."


def test_what_is_encrypted_is_not_said_to_be_checked(tmp_path: Path) -> None:
    for privacy, checked in (([], "every reply"), (["he"], "of every reply what is not encrypted")):
        run = make_run(tmp_path / checked, method="fedce", rounds=2, privacy=privacy)
        write_ledger(run, [{"round": 1, "rejected": {"Cedar": "late"}}])
        assert checks(open_file(open_runs([run]), None)).startswith(f"The server checked {checked} before use")


def test_of_tests_elsewhere_only_tests_are_told_and_of_which_table(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=1)
    (run / "evaluation").mkdir()
    for split, ending, dice in (("testing", "", 0.8), ("testing", "-estimated", 0.9), ("training", "", 0.99)):
        rows = [Row("run", "fedce", 0, 0, site, "dice", dice, split, "000", "prostate") for site in ("Alder", "Elm")]
        file = run / "evaluation" / f"{split}-others{ending}.csv"
        pd.DataFrame([vars(row) for row in rows]).to_csv(file, index=False)
    (run / "evaluation" / "testing-losses.csv").write_text("site,loss\nElm,0.5\n")
    assert external(open_file(open_runs([run]), None)) == (
        "Mean test Dice at sites that took no part: Elm 90.0 % (testing-others-estimated.csv, with BatchNorm "
        "statistics of their own training images); Elm 80.0 % (testing-others.csv)."
    )
