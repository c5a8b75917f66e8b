"""What tests of models share."""

import pytest

from fedmerit_evaluation.models.predictor import open_predictor


@pytest.fixture(scope="module")
def predictor(trained):
    return open_predictor(trained(), device="cpu")
