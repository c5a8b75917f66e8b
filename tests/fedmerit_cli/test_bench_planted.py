"""`fedmerit bench planted`: what is asked for; the worlds and their tables are tested with what it calls."""

import pytest

from fedmerit_lab.benchmarks.observed_trainings import ESTIMATORS


@pytest.fixture
def asked(monkeypatch):
    """What would be trained, and how it is shown; nothing is trained."""
    found = {}
    monkeypatch.setattr(
        "fedmerit_lab.benchmarks.scenarios.generate", lambda *given: found.update(generated=given) or given[0]
    )
    monkeypatch.setattr(
        "fedmerit_lab.benchmarks.known_answers.values_of", lambda cases, tell: found.update(cases=cases) or tell(4, 40)
    )
    monkeypatch.setattr(
        "fedmerit_lab.benchmarks.known_answers.planted_tables", lambda values, sites: found.update(sites=sites) or []
    )
    return found


def test_options_say_what_is_trained(fedmerit, tmp_path, asked):
    given = (
        "--pool",
        tmp_path / "pool",
        "--estimators",
        "multi_round:last=2,data_size",
        "--seeds",
        "4,7",
        "--sites",
        3,
    )
    result = fedmerit(
        "bench",
        "planted",
        "--out",
        tmp_path,
        *given,
        "--rounds",
        2,
        "--jobs",
        1,
        "--set",
        "lr=0.1",
        "--recipe",
        "quick",
    )
    assert result.exit_code == 0, result.output
    cases = asked["cases"]
    assert (cases.out, cases.pool, cases.sites, cases.rounds) == (tmp_path, tmp_path / "pool", 3, 2)
    assert list(cases.estimators) == ["multi_round:last=2", "data_size"]
    assert list(cases.seeds) == [4, 7]
    assert cases.settings == {"lr": "0.1", "recipe": "quick"}
    assert asked["sites"] == 3
    assert "generated" not in asked
    assert "trainings: 4 of 40 done" in result.output


def test_without_a_pool_hospitals_are_generated_and_all_estimators_asked(fedmerit, tmp_path, asked):
    result = fedmerit("bench", "planted", "--out", tmp_path, "--size", 32, "--patients", 9)
    assert result.exit_code == 0, result.output
    assert asked["generated"] == (tmp_path / "pool", 32, 9)
    assert asked["cases"].pool == tmp_path / "pool"
    assert list(asked["cases"].estimators) == list(ESTIMATORS)
    assert list(asked["cases"].seeds) == list(range(10))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--estimators", "shap"), "--estimators 'shap': unknown"),
        (("--jobs", 0), "--jobs 0: expected 1 or more"),
        (("--pool", "P", "--seeds", "one"), "--seeds one: expected whole numbers"),
    ],
)
def test_bad_input_before_anything_is_trained(fedmerit, tmp_path, asked, arguments, told):
    result = fedmerit("bench", "planted", *arguments, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert told in result.stderr
    assert "cases" not in asked
    assert not (tmp_path / "out").exists()
