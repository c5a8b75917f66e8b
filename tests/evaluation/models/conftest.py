"""What tests of models share."""

import pytest

from evaluation.models.raw_images import open_predictor


@pytest.fixture(scope="module")
def predictor(trained):
    return open_predictor(trained(), device="cpu")
