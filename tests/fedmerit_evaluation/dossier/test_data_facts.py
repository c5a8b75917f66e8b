"""What is said of the data, each from site folders that hold no more than it takes."""

from pathlib import Path

from dossier_files import made_run, made_sites
from run_factory import make_run

from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit_evaluation.dossier.data_evidence import left_out, licences, preparation, sources
from fedmerit_evaluation.dossier.sources import DossierSources, open_sources
from fedmerit_evaluation.results.run_folders import open_runs


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


def test_the_size_of_slices_is_that_of_the_run_the_plan_or_the_folders(tmp_path: Path) -> None:
    folders = open_sites(made_sites(tmp_path, Alder={"spacing": [0.5, 0.5], "crop": "whole", "field_of_view": 32}))
    plan = {"preprocessing": {"size": [48, 48]}}
    assert preparation(DossierSources([made_run(tmp_path)], [])) == ""
    assert preparation(DossierSources([made_run(tmp_path, plan=plan)], [])) == "Slices of 48 x 48 pixels."
    assert (
        preparation(DossierSources([made_run(tmp_path, plan=plan, image_size=[40, 56])], []))
        == "Slices of 40 x 56 pixels."
    )
    assert preparation(DossierSources([made_run(tmp_path)], folders)) == (
        "Slices of 64 x 64 pixels of 0.5 x 0.5 mm; field of view 32, crop whole."
    )
