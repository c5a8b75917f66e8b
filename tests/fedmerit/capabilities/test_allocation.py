"""Methods that give each site a part of the neurons: a submodel is zero where its site holds no neuron."""

import pytest
import torch
from rounds import layout

from fedmerit.capabilities import AllocatesNeurons, ImportanceRequest
from fedmerit.methods.registry import METHODS
from fedmerit.vectors import parameter_mask

ALLOCATING = [name for name, kind in METHODS.items() if issubclass(kind, AllocatesNeurons)]


def test_fedsac_alone_allocates():
    assert ALLOCATING == ["fedsac"]


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.importance_schedule(0),
        lambda one: one.importance_request(None),
        lambda one: one.allocate(None, None),
    ],
)
def test_who_has_the_capability_has_all_of_it(call):
    with pytest.raises(NotImplementedError):
        call(AllocatesNeurons())


def test_what_a_site_does_not_hold_is_zero_in_its_model_and_the_rest_is_the_models():
    made = METHODS["fedsac"](contributions=(0.2, 0.5, 0.9))  # known before, so that submodels go out at once
    model = torch.arange(1, 31, dtype=torch.float32)
    whole = layout(30)
    state = made.start(model, 3, whole)
    request = made.importance_request(state)
    assert isinstance(request, ImportanceRequest)
    assert request.order in ("exact", "taylor")
    assert (request.order, request.images) == made.importance_schedule(0)
    torch.testing.assert_close(request.model, model)
    _, models, neurons = made.allocate(state, torch.arange(5, dtype=torch.float64))
    assert (models.shape, neurons.shape, neurons.dtype) == ((3, 30), (3, 5), torch.bool)
    held = parameter_mask(neurons, whole.owners.long())
    torch.testing.assert_close(models, model.expand(3, 30).where(held, 0.0))
    assert bool(held[:, whole.owners < 0].all())  # what is no neuron's is everybody's
