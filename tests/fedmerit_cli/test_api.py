"""The commands as Python functions."""

import shutil
import sys
from importlib.metadata import version

import pytest
from made_photographs import write_photographs

import fedmerit
from fedmerit.errors import BadInput
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.server.checkpoint import is_finished

SETTINGS = {"architecture": "unet", "width": 2, "depth": 2, "residual_units": 0, "augmentation": "none"}


def test_version():
    assert fedmerit.__version__ == version("fedmerit")
    with pytest.raises(AttributeError, match="no_such"):
        fedmerit.no_such  # noqa: B018


def test_from_sites_to_tables_and_report(sites, tmp_path):
    records = []
    done = fedmerit.run(
        tmp_path / "run", "fedavg", sites, rounds=2, engine="local", settings=SETTINGS, on_round=records.append
    )
    assert [record["round"] for record in records] == [0, 1]
    table = done.results.dice_and_contributions
    assert list(table["site"]) == done.sites
    assert table["dice"].between(0, 1).all()
    assert fedmerit.load_run(tmp_path / "run").results.rows.equals(done.results.rows)
    page = fedmerit.report(tmp_path / "run", tmp_path / "report.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    plain = fedmerit.report(tmp_path / "run", tmp_path / "plain.html", sites=sites, images=False).read_text()
    assert len(plain) < len(page)  # test images with outlines are most of it
    with pytest.raises(BadInput, match="no-values"):
        fedmerit.report(tmp_path / "run", tmp_path / "held.html", ground_truth=tmp_path / "no-values")


def test_rounds_one_by_one_until_one_has_seen_enough(sites, tmp_path):
    options = {"rounds": 4, "engine": "local", "settings": SETTINGS}
    for record in fedmerit.rounds(tmp_path / "run", "fedavg", sites, **options):
        if record["round"] == 1:
            break
    assert not is_finished(tmp_path / "run", 4)
    assert read_run(tmp_path / "run")["plan"]["guard"]["guard"] == "on"  # as with the command
    for changed in ({"rounds": 5}, {"seed": 1}, {"settings": {**SETTINGS, "width": 4}}):
        with pytest.raises(BadInput, match=f"was started with {next(iter(changed))}"):
            fedmerit.run(tmp_path / "run", resume=True, **changed)
    again = [record["round"] for record in fedmerit.rounds(tmp_path / "run", resume=True, settings=SETTINGS)]
    assert again == [0, 1, 2, 3]  # those done before come first
    assert is_finished(tmp_path / "run", 4)


def test_a_run_that_ended_is_opened_though_its_sites_are_gone(own_sites, tmp_path):
    options = {"rounds": 1, "engine": "local", "settings": SETTINGS}
    done = fedmerit.run(tmp_path / "run", "fedavg", own_sites, **options)
    shutil.rmtree(own_sites)
    records = []
    again = fedmerit.run(tmp_path / "run", resume=True, on_round=records.append)
    assert [record["round"] for record in records] == [0]
    assert again.results.rows.equals(done.results.rows)


def test_an_error_reaches_who_asks_for_rounds(sites, tmp_path):
    with pytest.raises(BadInput, match="no-such"):
        list(fedmerit.rounds(tmp_path / "run", "no-such", sites))
    with pytest.raises(TypeError, match="method and sites"):
        fedmerit.run(tmp_path / "run")


def test_a_cluster_needs_a_number_of_jobs(sites, tmp_path):
    with pytest.raises(BadInput, match="--jobs"):
        fedmerit.compare(tmp_path, sites, "fedavg", rounds=1, settings=SETTINGS, cluster="slurm")


def test_options_have_the_names_of_the_command_line(sites, tmp_path):
    with pytest.raises(BadInput, match=r"rounds=0: expected a whole number, 1 or more"):
        fedmerit.run(tmp_path / "run", "fedavg", sites, rounds=0)
    with pytest.raises(BadInput, match=r"unknown option resumes; did you mean"):
        fedmerit.run(tmp_path / "run", "fedavg", sites, resumes=True)
    with pytest.raises(BadInput, match=r"recipe 'fast': unknown"):
        fedmerit.run(tmp_path / "run", "fedavg", sites, recipe="fast")
    assert dir(fedmerit) == sorted(fedmerit.__all__)


def test_processes_need_a_guarded_script(sites, tmp_path, monkeypatch):
    script = tmp_path / "study.py"
    script.write_text("import fedmerit\nfedmerit.compare('out', 'sites', 'fedavg', jobs=2)\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    with pytest.raises(BadInput, match=r"study.py: compare\(\) with jobs above 1 needs `if __name__"):
        fedmerit.compare(tmp_path / "out", sites, "fedavg", jobs=2)


@pytest.mark.parametrize("where", [{"jobs": 2}, {"cluster": "tcp://127.0.0.1:9"}])
def test_runs_on_nvflare_are_not_compared_side_by_side(sites, tmp_path, where):
    with pytest.raises(BadInput, match="use --engine local"):
        fedmerit.compare(tmp_path / "runs", sites, ["fedavg"], rounds=1, engine="sim", **where)
    assert not (tmp_path / "runs").exists()


def test_all_methods_are_those_that_work_with_so_many_sites(own_sites, tmp_path, monkeypatch):
    shutil.rmtree(own_sites / "site3")
    asked = []

    def prepare(out, items, *further):
        asked.extend(item.method for item in items)
        raise BadInput("that is all")

    monkeypatch.setattr("fedmerit_evaluation.studies.comparison.prepare", prepare)
    with pytest.raises(BadInput, match="that is all"):
        fedmerit.compare(tmp_path / "out", own_sites, "all")
    assert "fedavg" in asked
    assert "krum" not in asked  # it needs three


def test_prepare(tmp_path):
    source = write_photographs(tmp_path / "raw")
    folders = fedmerit.prepare("generic", tmp_path / "sites", source=source, size=32, labels={"disc": (1, 2)})
    assert [folder.name for folder in folders] == ["A", "B"]
    table = tmp_path / "patients.csv"
    table.write_text("site,case,patient\nA,0,one\nA,1,one\n")
    named = fedmerit.prepare("generic", str(tmp_path / "named"), source=str(source), size=32, patient_table=str(table))
    assert {case.patient for cases in SiteFolder(named[0]).splits.values() for case in cases} >= {"A-one", "A-2"}
    with pytest.raises(BadInput, match="channels 0"):
        fedmerit.prepare("generic", tmp_path / "others", source=source, channels=0)
