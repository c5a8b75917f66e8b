"""ShapFed against its slow reference, and where the output layer lies."""

import math
from itertools import permutations

import pytest
import torch
from comparing import assert_models
from hypothesis import given
from hypothesis import strategies as st
from monai.networks.nets import DynUNet
from rounds import as_numbers, few, layout, make_rounds, outcomes

from fedmerit.contract import flat
from fedmerit.contract.method import Layout
from fedmerit.schema.configuration.settings import Network
from fedmerit.trainers.factory import build_network, read_layout
from fedmerit_lab.methods.shapfed import ShapFed

rounds_of_two_labels = st.builds(  # of two entries each or more: of one, cosines are 1 or -1, and cancel
    make_rounds,
    seed=st.integers(0, 2**32),
    n=st.integers(1, 5),
    d=st.integers(8, 12),
    absences=st.booleans(),
    dtype=st.just(torch.float64),
)


def cosine(a, b):
    norms = math.hypot(*a) * math.hypot(*b)
    return sum(x * y for x, y in zip(a, b, strict=True)) / norms if norms > 1e-12 else 0.0


def total(weights, vectors):
    return [sum(w * x for w, x in zip(weights, column, strict=True)) for column in zip(*vectors, strict=True)]


def class_values(vectors, share, exact):
    """Of one class: cosines with the sum of all, or by every order of the sites what each adds to the cosine."""
    everyone = total(share, vectors)
    if not exact:
        return [cosine(vector, everyone) for vector in vectors]
    orders = list(permutations(range(len(vectors))))
    values = [0.0] * len(vectors)
    for order in orders:
        before = 0.0
        for place, i in enumerate(order):
            some = [share[j] if j in order[: place + 1] else 0.0 for j in range(len(vectors))]
            now = cosine(total(some, vectors), everyone)
            values[i] += (now - before) / len(orders)
            before = now
    return values


def reference(rounds, outputs, mu, exact, personal):
    n, samples, d = len(rounds.samples), rounds.samples.tolist(), rounds.updates.shape[2]
    models, gamma = [[0.0] * d for _ in range(n)], {}
    for updates in as_numbers(rounds):
        here = [i for i in range(n) if updates[i]]
        share = [samples[i] / sum(samples[j] for j in here) for i in here]
        psi = dict.fromkeys(here, 0.0)
        for places in outputs:
            values = class_values([[updates[i][k] for k in places] for i in here], share, exact)
            for i, value in zip(here, values, strict=True):
                psi[i] += value / len(outputs)
        gamma |= {i: mu * gamma[i] + (1 - mu) * psi[i] if i in gamma else psi[i] for i in here}
        positive = {i: max(gamma[i], 0.0) for i in here}
        whole = sum(positive.values())
        weights = {i: positive[i] / whole if whole else 1 / len(here) for i in here}
        trained = {i: [w + x for w, x in zip(models[i], updates[i], strict=True)] for i in here}
        server = total(list(weights.values()), list(trained.values()))
        for i in here if personal else range(n):
            near = min(positive[i], 1.0) if personal else 1.0
            own = trained.get(i, server)
            models[i] = [(1 - near) * x + near * y for x, y in zip(own, server, strict=True)]
        yield psi, dict(gamma), weights, [list(model) for model in models]


@pytest.mark.parametrize(
    ("mu", "contribution", "reward"),
    [(0.9, "cosine", "personal"), (0.5, "exact", "personal"), (0.3, "cosine", "global")],
)
@given(rounds=rounds_of_two_labels)
@few
def test_shapfed_is_the_reference(mu, contribution, reward, rounds):
    outputs = layout(rounds.updates.shape[2]).outputs.tolist()
    expected = reference(rounds, outputs, mu, contribution == "exact", reward == "personal")
    ours = outcomes(ShapFed(mu, contribution, reward), rounds)
    for outcome, (psi, gamma, weights, models) in zip(ours, expected, strict=True):
        for i, value in enumerate(outcome.contribution.tolist()):
            assert value == pytest.approx(psi.get(i, math.nan), abs=1e-7, nan_ok=True)
            assert outcome.reputation[i].item() == pytest.approx(gamma.get(i, 0.0), abs=1e-7)
            assert outcome.weights[i].item() == pytest.approx(weights.get(i, 0.0), abs=1e-6)
        assert_models(outcome.models, models if reward == "personal" else models[0])


def test_a_network_whose_output_layer_is_not_known_is_refused():
    nothing = Layout((4,), torch.full((4,), -1, dtype=torch.int32))
    with pytest.raises(ValueError, match="no convolution that makes its logits"):
        ShapFed().start(torch.zeros(4), 2, nothing)


def test_the_output_layer_of_every_network_is_cut_by_labels():
    """Its bias and all weights of a label are in that label's row, those of a transposed convolution too."""
    plain, residual = (build_network(Network(1, ("a", "b"), "unet", 4, 3, residual_units=units)) for units in (0, 2))
    dynunet = DynUNet(2, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[4, 8, 16], norm_name="batch")
    last = {plain: "model.2.conv", residual: "model.2.1.conv.unit0.conv", dynunet: "output_block.conv.conv"}
    for network, name in last.items():
        for label, places in enumerate(read_layout(network).outputs):
            marked = torch.zeros_like(flat.get_parameters(network))
            marked[places] = 1
            parts = {key: part for key, part in flat.named(network, marked).items() if part.any()}
            assert set(parts) == {f"{name}.weight", f"{name}.bias"}
            weight = parts[f"{name}.weight"].transpose(0, int(network is plain))
            assert parts[f"{name}.bias"].nonzero().tolist() == [[label]]
            assert weight[label].all()
            assert weight.sum() == weight[label].numel()
