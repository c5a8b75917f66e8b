"""`fedmerit lab bench values`: what is asked for; worlds and agreement are tested with what it calls."""

import pytest

from fedmerit_lab.benchmarks.value_benchmark import ESTIMATORS


@pytest.fixture
def asked(monkeypatch):
    """What would be judged, world by world, and how many worlds every table shows; nothing is trained."""
    found = {"judged": [], "shown": []}

    def judge(wanted, world, tell):
        found["judged"].append((wanted, world))
        tell(world, 5, 5)
        return world

    monkeypatch.setattr(
        "fedmerit_lab.benchmarks.scenarios.generate", lambda *given: found.update(generated=given) or given[0]
    )
    monkeypatch.setattr("fedmerit_lab.benchmarks.value_benchmark.judge", judge)
    monkeypatch.setattr(
        "fedmerit_lab.benchmarks.value_benchmark.bench_tables", lambda judged: found["shown"].append(list(judged)) or []
    )
    return found


def test_worlds_are_judged_in_turn_and_tables_shown_after_each(fedmerit, tmp_path, asked):
    worlds = ["noise:sites=3", "asis"]
    given = ("--worlds", ",".join(worlds), "--pool", tmp_path / "pool", "--estimators", "data_size", "--seeds", "4,7")
    result = fedmerit(
        "lab",
        "bench",
        "values",
        "--out",
        tmp_path,
        *given,
        "--rounds",
        2,
        "--jobs",
        1,
        "--draws",
        30,
        "--set",
        "lr=0.1",
    )
    assert result.exit_code == 0, result.output
    assert [world for _, world in asked["judged"]] == worlds
    assert asked["shown"] == [worlds[:1], worlds]
    wanted = asked["judged"][0][0]
    assert (wanted.out, wanted.pool, wanted.rounds, wanted.draws) == (tmp_path, tmp_path / "pool", 2, 30)
    assert list(wanted.estimators) == ["data_size"]
    assert list(wanted.seeds) == [4, 7]
    assert wanted.settings == {"lr": "0.1"}
    assert "generated" not in asked
    assert "asis: 5 done" in result.output


def test_without_a_pool_hospitals_are_generated_and_all_estimators_asked(fedmerit, tmp_path, asked):
    result = fedmerit("lab", "bench", "values", "--out", tmp_path, "--size", 32, "--patients", 9)
    assert result.exit_code == 0, result.output
    assert asked["generated"] == (tmp_path / "pool", 32, 9)
    assert [world for _, world in asked["judged"]] == ["sizes:sites=4", "noise:sites=4", "duplicate:sites=4"]
    assert list(asked["judged"][0][0].estimators) == list(ESTIMATORS)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--estimators", "shap"), "--estimators 'shap': unknown"),
        (("--worlds", "noisy:sites=4"), "--worlds"),
        (("--jobs", 0), "--jobs 0: expected 1 or more"),
    ],
)
def test_bad_input_before_anything_is_trained(fedmerit, tmp_path, asked, arguments, told):
    result = fedmerit("lab", "bench", "values", *arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert asked["judged"] == []
    assert not (tmp_path / "out").exists()
