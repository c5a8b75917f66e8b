"""Evidence of a dossier: from runs and site folders that hold only what each function needs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from dossier_files import made_run, made_sites, made_tested
from made_results import made_results, made_row
from run_factory import add_rows, make_run, write_ledger

from fedmerit.errors import BadInput
from fedmerit.evidence.verification.findings import Finding, Movement
from fedmerit.evidence.verification.run import Verification
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.results import Row
from fedmerit_dossier import evidence
from fedmerit_dossier.evidence import (
    EVIDENCE,
    DossierSources,
    checks,
    cost,
    external,
    failures,
    fairness,
    flags,
    ledger,
    left_out,
    licences,
    measures,
    open_sources,
    performance,
    robustness,
    site_logs,
    sources,
    uncertainty,
)
from fedmerit_evaluation.results.runs import open_runs


def test_a_run_that_recorded_nothing_claims_nothing_of_what_it_came_to(tmp_path: Path) -> None:
    file = DossierSources([made_run(tmp_path, task="other", labels=["liver"])], [])
    said = {name: text for name, one in EVIDENCE.items() if (text := one(file))}
    assert said.keys() == {"task", "centres", "training", "method", "seeds", "limits"}
    assert "0 of 6 rounds" in said["limits"]
    assert "no test Dice yet" in said["limits"]


def test_sites_that_say_alike_stand_together_and_who_is_not_here_is_named(tmp_path: Path) -> None:
    (run,) = open_runs([make_run(tmp_path / "run", rounds=1)])
    sites = made_sites(
        tmp_path / "sites",
        Alder={"licence": "CC BY 4.0", "left_out": [{"reason": "no mask"}] * 2 + [{"reason": "not 3D"}]},
        Birch={"licence": "CC BY 4.0", "left_out": [], "unreadable_cases": 1},
        Cedar={"licence": None},
    )
    file = open_sources([run], sites)
    assert licences(file) == "Alder, Birch: CC BY 4.0; not known of Cedar and Dogwood."
    assert left_out(file) == (
        "Alder: 2 files: no mask; 1 file: not 3D, 0 unreadable cases; Birch: no file left out, 1 unreadable case; "
        "not known of Cedar and Dogwood."
    )
    assert sources(file) == ""


def test_what_a_run_cost(tmp_path: Path) -> None:
    """Two rounds of 60 and 120 seconds at the sites: 6 minutes; 3 and 1 MB a round: 8 MB."""
    rows = [
        made_row("fedce", 0, number, site, quantity, value)
        for number in (0, 1)
        for site, of_site in (("Alder", (60.0, 3e6)), ("Birch", (120.0, 1e6)))
        for quantity, value in zip(("seconds", "bytes_sent"), of_site, strict=True)
    ]
    file = DossierSources([made_run(tmp_path, made_results(rows, ["fedce"]))], [])
    assert cost(file) == "6 minutes of sites' time in the run, 8 MB sent. Energy was not measured."


def test_runs_with_attackers_are_reported_and_judged_by_no_one(tmp_path: Path) -> None:
    attacked = made_run(tmp_path / "a", label="fedce (attacked)", attacks={"Birch": "zero"})
    honest = made_run(tmp_path / "b")
    file = DossierSources([attacked, honest], [])
    assert file.honest == [honest]
    assert file.run is honest
    assert robustness(file) == "Runs with simulated attacks: fedce (attacked): Birch (zero); see report.html."
    assert DossierSources([attacked], []).honest == [attacked]
    assert robustness(DossierSources([honest], [])) == ""


def test_results_are_those_of_the_method_that_is_judged(tmp_path: Path) -> None:
    file = made_tested(tmp_path)
    assert (file.method, file.run.path.name) == ("fedce", "fedce-0")
    assert performance(file) == (
        "Mean test Dice 76.7 % [76.7 %, 76.7 %]; by site: Alder 70.0 % [70.0 %, 70.0 %], "
        "Birch 70.0 % [70.0 %, 70.0 %], Cedar 90.0 % [90.0 %, 90.0 %]."
    )
    assert fairness(file) == (
        "Dice by site from 70.0 % (Alder) to 90.0 % (Cedar); gain over local training from +0.0 (Birch) to +10.0 "
        "points. Groups of patients by age, sex or the like were not compared."
    )
    assert failures(file) == (
        "Patients with a Dice below 50 % [95 % confidence interval of their part]: Alder 0 of 6 [0, 46 %], Birch 0 of "
        "6 [0, 46 %], Cedar 0 of 6 [0, 46 %]. Lowest Dice of a test case: Alder 70.0 %, Birch 70.0 %, Cedar 90.0 %."
    )
    assert uncertainty(file).endswith("Fewest test cases of a site: 6; seeds: 2.")


def test_a_method_that_was_not_tested_yet_has_no_results_beside_one_that_was(tmp_path: Path) -> None:
    single = [run for run in made_tested(tmp_path).runs if run.label == "standalone"]
    file = DossierSources([*single, made_run(tmp_path / "begun")], [])
    assert file.method == "fedce"
    assert [performance(file), fairness(file), failures(file)] == ["", "", ""]


def test_of_tests_elsewhere_only_tests_are_reported_and_of_which_table(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=1)
    (run / "evaluation").mkdir()
    for split, ending, dice in (("testing", "", 0.8), ("testing", "-estimated", 0.9), ("training", "", 0.99)):
        rows = [Row("run", "fedce", 0, 0, site, "dice", dice, split, "000", "prostate") for site in ("Alder", "Elm")]
        file = run / "evaluation" / f"{split}-others{ending}.csv"
        pd.DataFrame([vars(row) for row in rows]).to_csv(file, index=False)
    (run / "evaluation" / "testing-losses.csv").write_text("site,loss\nElm,0.5\n")
    assert external(open_sources(open_runs([run]), None)) == (
        "Mean test Dice at sites that took no part: Elm 90.0 % (testing-others-estimated.csv, with BatchNorm "
        "statistics of their own training images); Elm 80.0 % (testing-others.csv)."
    )


def test_a_site_that_took_no_part_may_be_called_by_a_word_for_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=1)
    rows = [Row("run", "fedce", 0, 0, site, "dice", dice, "testing", case, "prostate")
            for site in ("NA", "null") for case, dice in (("000", 0.8), ("001", None))]  # fmt: skip
    (run / "evaluation").mkdir()
    pd.DataFrame([vars(row) for row in rows]).to_csv(run / "evaluation" / "testing-others.csv", index=False)
    assert external(open_sources(open_runs([run]), None)) == (
        "Mean test Dice at sites that took no part: NA 80.0 %, null 80.0 % (testing-others.csv)."
    )


def test_what_is_encrypted_is_not_said_to_be_checked(tmp_path: Path) -> None:
    for filters, checked in (([], "every reply"), (["he"], "the unencrypted part of every reply")):
        run = make_run(tmp_path / checked, method="fedce", rounds=2, privacy=filters)
        write_ledger(run, [{"round": 1, "rejected": {"Cedar": "late"}}])
        assert checks(open_sources(open_runs([run]), None)).startswith(f"The server checked {checked} before use")


@pytest.mark.parametrize(("left", "said"), [((), ""), (("a", "b"), " Not shown by them: a; b.")])
def test_what_sites_logs_leave_open_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: tuple[str, ...], said: str
) -> None:
    run = make_run(tmp_path / "run", method="fedce", rounds=2)
    write_ledger(run, [{"round": 1}])
    (run / "sites" / "Cedar").mkdir(parents=True)
    (run / "sites" / "Cedar" / "site_log.jsonl").touch()
    monkeypatch.setattr(evidence, "verify_run", lambda path, logs: Verification(2, None, {"Cedar": 2}, unproven=left))
    reported = site_logs(open_sources(open_runs([run]), None))
    assert reported == f"Sites' own logs agree with the ledger: Cedar 2 updates.{said}"


def test_a_reply_that_never_came_is_none_that_was_rejected(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", method="fedce", rounds=3)
    reasons = ("update with NaN", "no reply", "evaluation: no reply")
    write_ledger(run, [{"round": round, "rejected": {"Cedar": why}} for round, why in enumerate(reasons)])
    file = open_sources(open_runs([run]), None)
    assert checks(file) == "The server checked every reply before use and rejected 1; 2 did not arrive."
    add_rows(run, [Row("run", "fedce", 0, round, "Cedar", "rejected", 1.0) for round in (0, 1)])
    reported = "Cedar rejected in round 0 (update with NaN); Cedar rejected in round 1 (no reply)."
    assert flags(open_sources(open_runs([run]), None)) == reported


def test_what_the_ledgers_leave_open_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [make_run(tmp_path / name, method="fedce", seed=seed, rounds=2) for seed, name in enumerate("ab")]
    for run in runs:
        write_ledger(run, [{"round": 1}])
    unproven = (Finding("not closed", moved=Movement(0.25)),)
    monkeypatch.setattr(evidence, "verify_run", lambda path: Verification(2, "CN=server", unproven=unproven))
    assert ledger(open_sources(open_runs(runs), None)) == (
        "a: 2 rounds, hash chain complete, signed by CN=server; b: 2 rounds, hash chain complete, signed by "
        "CN=server. Each round has participants, digests of updates and model, weights. Not shown by that: that "
        "results and models are those of the run: it is not closed yet. What is not shown could have moved a weight by "
        "up to 0.250."
    )


@pytest.mark.parametrize("text", ["{}\n", "[]\n", '{"round": 0, "rejected": 5}\n', "not JSON\n"])
def test_what_is_no_ledger_is_named(tmp_path: Path, text: str) -> None:
    run = make_run(tmp_path / "run", method="fedce", rounds=2)
    (run / "ledger.jsonl").write_text(text)
    file = open_sources(open_runs([run]), None)
    with pytest.raises(BadInput, match=r"ledger\.jsonl"):
        [tell(file) for tell in EVIDENCE.values()]


@pytest.mark.parametrize(
    ("changes", "privacy", "engine", "said", "unsaid"),
    [
        (
            {},
            [],
            "prod",
            ["update (what training changed", "no update", "TLS in both", "no model of a single"],
            ["study"],
        ),
        (
            {"study": "x-1", "keep_updates": True},
            ["percentile"],
            "local",
            ["study x-1", "every update", "percentile"],
            ["TLS"],
        ),
        ({}, ["he"], "poc", ["ciphertexts (the update, encrypted)", "homomorphic encryption"], ["privacy filters"]),
    ],
)
def test_what_was_processed_follows_from_the_plan(
    tmp_path: Path, changes: dict[str, Any], privacy: list[str], engine: str, said: list[str], unsaid: list[str]
) -> None:
    network = {"in_channels": 1, "labels": ["prostate"]}
    config = make_configuration("fedavg", "prostate", 2, 0, network, {"guard": "on"})
    plan = replace(config, **changes).to_dict()
    file = DossierSources([made_run(tmp_path, plan=plan, privacy=privacy, engine=engine)], [])
    text = " ".join(EVIDENCE[name](file) for name in ("study", "leaving", "receiving", "retention", "safeguards"))
    assert [words for words in said if words not in text] == []
    assert [words for words in unsaid if words in text] == []


def test_measures_name_the_unit_of_the_tolerance(tmp_path: Path) -> None:
    file = DossierSources(open_runs([make_run(tmp_path / "run", rounds=1, surfaces=True)]), [])
    assert measures(file).endswith("; also HD95 and NSD at 2 mm.")
