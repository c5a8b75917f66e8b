"""Every fact stands among the evidence, and none claims what was not recorded."""

from inspect import isfunction
from pathlib import Path

from dossier_files import made_run

from fedmerit_evaluation.dossier import data_evidence, model_evidence
from fedmerit_evaluation.dossier.dossier import EVIDENCE
from fedmerit_evaluation.dossier.sources import DossierSources


def test_every_function_of_a_file_is_evidence() -> None:
    parts = (data_evidence, model_evidence, model_evidence, data_evidence)
    functions = [one for part in parts for one in vars(part).values() if isfunction(one)]
    ours = {one.__name__ for one in functions if one.__module__.startswith("fedmerit_evaluation.dossier.")}
    assert {name for name in ours if not name.startswith("_")} == set(EVIDENCE)


def test_a_run_that_recorded_nothing_claims_nothing_of_what_it_came_to(tmp_path: Path) -> None:
    file = DossierSources([made_run(tmp_path, task="other", labels=["liver"])], [])
    said = {name: text for name, one in EVIDENCE.items() if (text := one(file))}
    assert said.keys() == {"task", "centres", "training", "method", "seeds", "limits"}
    assert "0 of 6 rounds" in said["limits"]
    assert "no test Dice yet" in said["limits"]
