import pytest
import torch
from pretending import generator

from fedmerit.contract import flat
from fedmerit.schema.configuration.settings import Network
from fedmerit.trainers.factory import build_network


def make_network(seed=0, norm="batch"):
    """MONAI's U-Net for (batch, 1, 16, 16), with BatchNorm statistics that are not the initial ones."""
    torch.manual_seed(seed)
    network = build_network(
        Network(in_channels=1, labels=("disc", "cup"), architecture="unet", width=2, depth=3, norm=norm)
    )
    network(torch.randn(4, 1, 16, 16))
    return network


def test_round_trip_of_parameters_and_buffers():
    source, target = make_network(0), make_network(1)
    vector, buffers = flat.get_parameters(source), flat.get_buffers(source)
    assert vector.dtype == torch.float32
    assert vector.shape == (sum(parameter.numel() for parameter in source.parameters()),)
    flat.load(target, vector, buffers)
    for (name, ours), theirs in zip(source.state_dict().items(), target.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    assert torch.equal(flat.get_parameters(target), vector)


def test_the_vector_holds_no_buffers_and_no_frozen_parameters():
    network = make_network()
    every = flat.get_parameters(network)
    frozen = next(iter(network.parameters()))
    frozen.requires_grad_(False)
    assert torch.equal(flat.get_parameters(network), every[frozen.numel() :])
    assert set(flat.get_buffers(network)).isdisjoint(flat.trainable(network))


@pytest.mark.parametrize("train", [True, False])
def test_training_after_load_changes_neither_the_vector_nor_the_buffers_given(train):
    network = make_network()
    vector, buffers = flat.get_parameters(network), flat.get_buffers(network)
    kept, kept_buffers = vector.clone(), {name: value.clone() for name, value in buffers.items()}
    flat.load(network, vector, buffers)
    network.train(train)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    network(torch.randn(4, 1, 16, 16)).sum().backward()
    optimizer.step()
    assert not torch.equal(flat.get_parameters(network), kept)  # it did train
    assert torch.equal(vector, kept)
    assert all(torch.equal(buffers[name], value) for name, value in kept_buffers.items())


def test_the_vector_does_not_depend_on_the_memory_format():
    network = make_network()
    vector = flat.get_parameters(network)
    last = make_network(1).to(memory_format=torch.channels_last)
    flat.load(last, vector, flat.get_buffers(network))
    assert torch.equal(flat.get_parameters(last), vector)


def test_named_and_flatten_are_inverse():
    network = make_network()
    vector = torch.arange(float(len(flat.get_parameters(network))))  # (d,)
    parts = flat.named(network, vector)
    assert list(parts) == [name for name, _ in network.named_parameters()]
    assert {name: part.shape for name, part in parts.items()} == {
        name: parameter.shape for name, parameter in network.named_parameters()
    }
    assert torch.equal(flat.flatten(parts, list(parts)), vector)
    shuffled = dict(reversed(parts.items()))
    assert torch.equal(flat.flatten(shuffled, list(parts)), vector)


@pytest.mark.parametrize("length", [-1, 1])
def test_a_vector_of_another_length_is_an_error(length):
    network = make_network()
    wrong = torch.zeros(len(flat.get_parameters(network)) + length)
    before = flat.get_parameters(network)
    with pytest.raises(RuntimeError, match="split_with_sizes"):
        flat.load(network, wrong, flat.get_buffers(network))
    assert torch.equal(flat.get_parameters(network), before)


def site_buffers(mean, var, steps):
    """Buffers of one site: two channels and a counter."""
    return {
        "norm.running_mean": torch.tensor(mean),
        "norm.running_var": torch.tensor(var),
        "norm.num_batches_tracked": torch.tensor(steps),
    }


SITES = [
    site_buffers([1.0, 2.0], [1.0, 4.0], 10),
    site_buffers([3.0, -2.0], [2.0, 0.0], 30),
    site_buffers([-5.0, 6.0], [5.0, 0.5], 20),
]


def test_buffers_are_averaged_by_share_and_counters_take_the_maximum():
    mean = flat.average_buffers(SITES, torch.tensor([0.5, 0.25, 0.25]))
    assert mean["norm.running_mean"].tolist() == [0.5 * 1 + 0.25 * 3 - 0.25 * 5, 0.5 * 2 - 0.25 * 2 + 0.25 * 6]
    assert mean["norm.running_var"].tolist() == [0.5 * 1 + 0.25 * 2 + 0.25 * 5, 0.5 * 4 + 0.25 * 0.5]
    assert mean["norm.num_batches_tracked"] == 30
    assert {name: value.dtype for name, value in mean.items()} == {n: v.dtype for n, v in SITES[0].items()}


def test_buffers_are_summed_in_float64():
    parts = [{"x": torch.tensor(value)} for value in (1e8, 1.0, -1e8)]
    third = torch.tensor([1 / 3] * 3, dtype=torch.float64)
    assert abs(flat.average_buffers(parts, third)["x"] - 1 / 3) < 1e-7  # 0 in float32


def test_buffers_of_sites_without_share_do_not_count():
    broken = site_buffers([float("nan")] * 2, [float("inf")] * 2, 99)
    some = flat.average_buffers([SITES[0], broken, SITES[2]], torch.tensor([0.75, 0.0, 0.25]))
    expected = flat.average_buffers([SITES[0], SITES[2]], torch.tensor([0.75, 0.25]))
    assert all(torch.equal(some[name], value) for name, value in expected.items())


def test_buffers_without_a_site_are_the_average_of_the_others():
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    mean = flat.average_buffers(SITES, shares)
    for i in range(3):
        others = [j for j in range(3) if j != i]
        expected = flat.average_buffers([SITES[j] for j in others], shares[others] / shares[others].sum())
        without = flat.leave_out_buffers(mean, SITES[i], float(shares[i]))
        for name in ("norm.running_mean", "norm.running_var"):
            assert torch.allclose(without[name], expected[name], rtol=0, atol=1e-5), (i, name)
        assert without["norm.num_batches_tracked"] == mean["norm.num_batches_tracked"]


def test_variances_without_a_site_are_never_negative():
    random = torch.Generator().manual_seed(0)
    for share in (0.1, 0.5, 0.9, 0.999):
        shares = torch.tensor([share, 1 - share], dtype=torch.float64)
        own = {"running_var": torch.rand(1000, generator=random) * 100}
        other = {"running_var": torch.rand(1000, generator=random) * 1e-6}
        without = flat.leave_out_buffers(flat.average_buffers([own, other], shares), own, share)
        assert without["running_var"].min() >= 0


def test_mixture_of_one_model_is_that_model_bit_for_bit():
    models = torch.randn(3, 50, generator=generator(0))
    models[1, :2] = torch.tensor([-0.0, 1e-45])
    mixed = flat.mix(models, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
    assert torch.equal(mixed.view(torch.int32), models[1].view(torch.int32))


@pytest.mark.parametrize("mixture", [[0.25, 0.75, 0.0], [1 / 3] * 3, [0.0, 0.5, 0.0], [1.0, 1.0, -1.0], [1.0, 0, 1e-9]])
def test_mixture_is_the_weighted_sum_in_float64(mixture):
    models = torch.randn(3, 50, generator=generator(0))
    kept, weights = models.clone(), torch.tensor(mixture, dtype=torch.float64)
    mixed = flat.mix(models, weights)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, (weights[:, None] * models.double()).sum(dim=0).float())
    assert torch.equal(models, kept)


def test_model_without_part_in_a_mixture_may_hold_anything():
    models = torch.tensor([[1.0, 2.0], [float("nan"), float("inf")], [3.0, 6.0]])
    assert flat.mix(models, torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64)).tolist() == [2.0, 4.0]
