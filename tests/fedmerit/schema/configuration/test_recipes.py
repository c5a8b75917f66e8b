from pathlib import Path

import pytest

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.configuration.settings import PAPER, PRESETS, TASKS, with_recipe


def config(**settings):
    return make_configuration("fedavg", "prostate", 2, 0, TASKS["prostate"], settings)


@pytest.mark.parametrize(
    ("task", "settings", "expected"),
    [
        ("prostate", {}, (2, True)),
        ("fundus", {}, (2, True)),
        ("fundus", {"batch_size": 16, "largest": "false"}, (16, False)),
        ("fundus", {"recipe": "quick"}, (8, False)),
        ("a task of others", {}, (8, False)),
    ],
)
def test_a_task_has_defaults_beneath_every_recipe(task, settings, expected):
    made = make_configuration("fedavg", task, 2, 0, TASKS["fundus"], settings)
    assert (made.training.batch_size, made.network.largest) == expected


@pytest.mark.parametrize(
    ("settings", "steps"),
    [({}, 30), ({"steps": 7}, 7), ({"steps": 0}, 0), ({"epochs": 2}, 0), ({"batch_size": 4}, 0),
     ({"epochs": 2, "steps": 9}, 9), ({"recipe": "quick"}, 0), ({"preset": "cgsv"}, 0), ({"lr": 1e-2}, 30)],
)  # fmt: skip
def test_a_tasks_steps_are_of_its_batches(settings, steps):
    made = make_configuration("fedavg", "fundus", 2, 0, TASKS["fundus"], settings)
    assert made.training.steps == steps


def test_an_unknown_recipe_is_named():
    with pytest.raises(BadInput, match=r"recipe 'slow'.*default, quick"):
        with_recipe({"recipe": "slow"})


@pytest.mark.parametrize("method", PRESETS)
def test_a_papers_own_settings_are_a_preset_of_its_method(method):
    preset = PRESETS[method]
    made = make_configuration(method, "prostate", preset.rounds, 0, TASKS["prostate"], {"preset": PAPER})
    assert vars(made.training).items() >= dict(preset.training).items()
    assert made.parameters.items() >= dict(preset.parameters).items()
    assert config(preset=method).training == made.training  # any method trains as it does
    assert config(preset=method).parameters == config().parameters


@pytest.mark.parametrize("method", PRESETS)
def test_the_documentation_has_every_preset(method):
    """By name; `fedmerit methods` prints what it sets."""
    page = (Path(__file__).resolve().parents[4] / "docs" / "training.md").read_text()
    assert f"`{method}`" in page.split("## Paper presets")[1].split("\n## ")[0]


def test_what_is_set_goes_before_a_preset_and_a_preset_before_a_recipe():
    made = config(recipe="quick", preset="cycle", lr=0.5)
    assert (made.network.architecture, made.training.optimizer, made.training.lr) == ("unet", "sgd", 0.5)
    assert made.training.schedule == "step"
    assert (made.training.decay, made.training.decay_every) == (0.1, 25)


@pytest.mark.parametrize(("name", "why"), [("paper", "fedavg has none of its own"), ("vpdl", "unknown")])
def test_a_preset_that_is_not_there_is_named(name, why):
    with pytest.raises(BadInput, match=f"preset '{name}': .*{why}; there are fedce, cgsv, fedave, fedsac, cycle"):
        config(preset=name)
