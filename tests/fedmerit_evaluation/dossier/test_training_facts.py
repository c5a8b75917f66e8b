"""What is said of the training, each from a run that holds no more than it takes."""

from dataclasses import replace
from pathlib import Path

from dossier_files import made_run, made_tested
from made_results import made_results, made_row

from fedmerit_evaluation.dossier.model_evidence import cost, method, seeds, selection, software
from fedmerit_evaluation.dossier.sources import DossierSources


def test_versions_that_nobody_recorded_are_no_evidence(tmp_path: Path) -> None:
    run = made_run(tmp_path)
    assert software(
        DossierSources([replace(run, info={**run.info, "fedmerit_version": "0.1.0", "packages": {}})], [])
    ) == ("FedMerit 0.1.0, Apache-2.0.")
    bare = {name: value for name, value in run.info.items() if name not in ("fedmerit_version", "packages")}
    assert software(DossierSources([replace(run, info=bare)], [])) == ""


def test_a_method_of_others_is_told_by_its_name(tmp_path: Path) -> None:
    file = DossierSources([made_run(tmp_path, label="mine", method="mine", parameters={"strength": 2})], [])
    assert method(file) == "Method mine (strength 2)."


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


def test_which_seeds_and_the_model_of_which_round(tmp_path: Path) -> None:
    file = made_tested(tmp_path)
    assert seeds(file) == "Initial parameters are random, by seed: 0, 1."
    assert selection(file) == "The model after the last round, 5 counted from 0."
