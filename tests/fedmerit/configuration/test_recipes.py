import pytest

from fedmerit.configuration.recipes import RECIPES, with_recipe
from fedmerit.configuration.run import TASKS, make_configuration
from fedmerit.errors import BadInput


def config(**settings):
    return make_configuration("fedavg", "prostate", 2, 0, TASKS["prostate"], settings)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_its_settings(recipe):
    assert config(recipe=recipe) == config(**RECIPES[recipe])


def test_what_is_set_goes_before_the_recipe():
    made = config(recipe="quick", schedule="cosine")
    assert (made.network.architecture, made.training.schedule) == ("unet", "cosine")
    assert config(recipe="default") == config()


def test_an_unknown_recipe_is_named():
    with pytest.raises(BadInput, match=r"recipe 'slow'.*default, quick, unet"):
        with_recipe({"recipe": "slow"})
