"""Run folders of scripts: what is recorded, and when one may stand for another; the end of their processes."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedmerit.engines import runs, script_sites
from fedmerit.engines.resumption import require_same_script_run
from fedmerit.engines.script_sites import Launch, ScriptProcess, read_launch
from fedmerit.errors import BadInput
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.records import TRAIN
from fedmerit.schema.run_info import read_run
from fedmerit.trainers.script.restarts import RestartedScript, ScriptEnded
from fedmerit.trainers.script.trainer import Question
from fedmerit_evaluation.ground_truth import coalitions
from fedmerit_evaluation.studies.execution import choose_worker_count
from fedmerit_evaluation.studies.study import describe_cost, open_study_sites, parse_methods

PROJECT = Path(__file__).resolve().parents[3] / "examples" / "nvflare_project"


@pytest.fixture
def options(tmp_path):
    """Of a run with a copy of the example's script."""
    project = Path(shutil.copytree(PROJECT, tmp_path / "project"))
    script, model = project / "client.py", f"{project / 'model.py'}:Net"
    return {"script": script, "model": model, "clients": 3, "rounds": 2, "engine": "local"}


def test_a_run_has_the_clients_that_are_asked_for_and_records_all(options, tmp_path):
    runs.create(tmp_path / "run", "cgsv", **options, only=["site-3", "site-1"])
    info = read_run(tmp_path / "run")
    assert info["sites"] == ["site-1", "site-3"]
    assert read_launch(tmp_path / "run").sites == ["site-1", "site-2", "site-3"]
    assert choose_worker_count(tmp_path / "run") == 1  # its sites have processes of their own
    with pytest.raises(BadInput, match="no client is called site-4; there are site-1, site-2, site-3"):
        runs.create(tmp_path / "other", "cgsv", **options, only=["site-4"])
    with pytest.raises(BadInput, match="--recipe: of prepared images"):
        runs.create(tmp_path / "other", "cgsv", **options, recipe="quick")
    with pytest.raises(BadInput, match="exists already"):
        runs.create(tmp_path / "run", "cgsv", **options)
    with pytest.raises(BadInput, match="--model: missing; a --script needs it"):
        runs.create(tmp_path / "other", "cgsv", script=options["script"])
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ({"rounds": 3}, "plan: rounds"),
        ({"method": "rffl"}, "plan: method"),
        ({"settings": {"alpha": 0.5}}, "plan: parameters"),
        ({"metric": "loss"}, "plan: script"),
        ({"script_args": "--lr 1"}, "script: args"),
        ({"clients": 2}, "script: clients"),
        ({"engine": "sim"}, "engine"),
        ({}, ""),
    ],
)
def test_a_study_takes_a_run_up_only_if_it_would_make_the_same(options, tmp_path, changed, reported):
    options = {"method": "cgsv", **options}
    runs.create(tmp_path / "run", **options)
    if not reported:
        require_same_script_run(tmp_path / "run", RunOptions.read(options))
        return
    with pytest.raises(
        BadInput, match=f"was started with another {reported}; give it the same, or choose another --out"
    ):
        require_same_script_run(tmp_path / "run", RunOptions.read(options | changed))


def test_a_script_that_changed_since_the_run_began_trains_no_more(options, tmp_path):
    runs.create(tmp_path / "run", "fedavg", **options)
    with options["script"].open("a") as file:
        file.write("# another")
    open_study_sites(options)  # a person names it now
    with pytest.raises(BadInput, match=r"client.py: changed since .* began; put the old one back"):
        read_launch(tmp_path / "run")


def test_all_methods_of_a_study_are_those_that_the_script_can_do(options):
    sites = open_study_sites(options)
    assert sites.names == ["site-1", "site-2", "site-3"]
    chosen = {item.label for item in parse_methods("all", sites.names, script=sites.script)}
    assert {"standalone", "fedavg", "cgsv", "cffl", "fedci"} <= chosen
    assert not {"pooled", "fedsac", "cycle", "vpdl"} & chosen
    options["script"].write_text(options["script"].read_text().replace("is_evaluate", "is_train"))
    other = open_study_sites(options)
    assert not {"cffl", "fedci"} & {item.label for item in parse_methods("all", other.names, script=other.script)}
    with pytest.raises(BadInput, match=r"a study: tests models at sites that did not train them; have the script"):
        other.require_evaluation("a study")


def test_coalitions_of_clients_are_taken_up_again(options, tmp_path):
    wanted = [frozenset({"site-1", "site-2", "site-3"}), frozenset({"site-2"})]
    asked = {name: value for name, value in options.items() if name not in ("method", "seed")}
    for _ in range(2):
        trainings = coalitions.prepare(tmp_path / "study", wanted, [0], "fedavg", {}, asked)
    assert [read_run(one.folder)["sites"] for one in trainings] == [["site-1", "site-2", "site-3"], ["site-2"]]
    assert [read_run(one.folder)["method"] for one in trainings] == ["fedavg", "standalone"]
    assert describe_cost(2, 2, [one.folder for one in trainings]) == "2 of 2 trainings to do"  # images are unknown


def test_a_script_at_work_ends_with_its_run_and_is_not_started_again(tmp_path, monkeypatch):
    monkeypatch.setattr(script_sites, "SERVE", "import time; time.sleep(600)")
    process = ScriptProcess("site-1", Launch(file="client.py", sha256="", clients=1), tmp_path / "script.log")
    script = RestartedScript(process.ask, process.start)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(script, Question(TRAIN, {}, 0, 1, {}))
        process.close(0.0)
        with pytest.raises(ScriptEnded, match="site site-1: its script was ended with the run"):
            answer.result(30)
    assert script.starts == 0
