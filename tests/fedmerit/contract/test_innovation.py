"""The forecast of updates against plain least squares, and values and shares of pay against sums written out."""

import itertools

import numpy as np
import pytest
import torch

from fedmerit.contract.innovation import COLUMNS, LAGS, RIDGE, STEPS, Broadcast, Innovations, find_rests

SIZES = (1200, 30, 20, 1500, 7)  # two large tensors, and 57 entries that are fitted together


def models(count, seed=0):
    """So many models one after the other, each a step from the one before."""
    random = torch.Generator().manual_seed(seed)
    steps = 0.01 * torch.randn(count, sum(SIZES), generator=random)
    return list(torch.randn(sum(SIZES), generator=random) + steps.cumsum(dim=0))


def broadcast_of(path):
    state = Broadcast.begin(path[0])
    for model in path[1:]:
        state = state.after(model)
    return state


def literal_rest(update, path, entries):
    """The residual of a ridge regression by numpy on the entries, with every column written out."""
    w, w0 = path[-1].double().numpy()[entries], path[0].double().numpy()[entries]
    steps = [(b - a).double().numpy()[entries] for a, b in itertools.pairwise(path)][::-1][:STEPS]
    lags = [steps[i] if i < len(steps) else 0 * w for i in range(LAGS)]
    old = np.array(steps) if steps else np.zeros((1, len(w)))
    mean, deviation, power = old.mean(0), np.maximum(old.std(0), 1e-12), np.sqrt((old**2).mean(0))
    last, t = lags[0], mean / deviation
    columns = np.array([
        *lags, mean, mean * abs(t), mean * abs(mean), np.tanh(t), np.sign(mean) * np.sqrt(abs(mean)),
        np.sign(last) * np.sqrt(abs(last)), abs(last), np.sign(last), np.sign(last) * power, power, last * abs(w),
        w, w * abs(w), np.sign(w), abs(w), w0, np.ones_like(w),
    ])  # fmt: skip
    assert len(columns) == COLUMNS
    columns = columns[(columns**2).sum(1) > 0]
    columns = columns / np.sqrt((columns**2).sum(1, keepdims=True))
    u = update.double().numpy()[entries]
    fit = np.linalg.solve(columns @ columns.T + RIDGE * np.eye(len(columns)), columns @ u)
    return u - fit @ columns


@pytest.mark.parametrize("rounds", [1, 2, 4, 12])
def test_find_rests_of_any_round_are_residuals_of_least_squares_by_tensor(rounds):
    path, random = models(rounds), torch.Generator().manual_seed(9)
    updates = 0.01 * torch.randn(3, sum(SIZES), generator=random)
    found = find_rests(updates, broadcast_of(path), SIZES)
    ends = np.cumsum([0, *SIZES])
    parts = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    for entries in (parts[0], parts[3], np.concatenate([parts[1], parts[2], parts[4]])):
        for update, rest in zip(updates, found, strict=True):
            expected = literal_rest(update, path, entries)
            assert rest.numpy()[entries] == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    "forecast",
    [
        lambda path: path[-1] - path[-2],
        lambda path: path[-2] - path[-4],
        lambda path: (path[-1] - path[-2]).sign() * (path[-1] - path[-2]).abs().sqrt(),
        lambda path: 0.3 * path[-1].abs() + 0.01 * (path[-1] - path[-2]) * path[-1].abs(),
        lambda path: torch.cat([0.5 * (path[-1] - path[-2])[:1200], 2.0 * (path[-1] - path[-2])[1200:]]),
    ],
    ids=["last step", "older steps", "roots", "weights", "tensors times factors"],
)
def test_find_rests_of_a_function_of_broadcast_models_leaves_nothing(forecast):
    path = models(6)
    update = forecast(path)
    rest = find_rests(update[None], broadcast_of(path), SIZES)
    assert float(rest.norm()) < 0.01 * float(update.norm())


def test_find_rests_of_an_unrelated_update_leaves_nearly_all():
    update = torch.randn(1, sum(SIZES), generator=torch.Generator().manual_seed(5))
    rest = find_rests(update, broadcast_of(models(9)), SIZES)
    assert float(rest.norm()) > 0.95 * float(update.norm())


def test_find_rests_of_zeros_are_zeros():
    assert not find_rests(torch.zeros(2, sum(SIZES)), broadcast_of(models(3)), SIZES).any()


def innovations(gains, began=(0, 0, 0)):
    """Of the server's images; ``gains`` (T, n, K)."""
    gains = torch.tensor(gains, dtype=torch.float64)[:, :, None]
    return Innovations(gains, torch.tensor([gains.shape[3]]), torch.tensor(began))


def test_totals_are_sums_over_rounds_with_standard_errors_over_patients():
    random = np.random.default_rng(1)
    gains = random.normal(size=(5, 3, 40)) / 40
    value, error = innovations(gains).totals()
    by_patient = 40 * gains.sum(axis=0)
    assert value.numpy() == pytest.approx(by_patient.mean(axis=1))
    assert error.numpy() == pytest.approx(by_patient.std(axis=1, ddof=1) / np.sqrt(40))


def test_totals_of_a_single_patient_are_not_above_two_standard_errors():
    value, error = innovations([[[0.2], [0.1], [0.0]]]).totals()
    assert not (value > 2 * error).any()


def test_shares_are_in_proportion_to_values_and_negative_ones_get_nothing():
    found = innovations([[[0.3], [0.1], [-0.5]]]).shares(torch.ones(3))
    assert found.tolist() == pytest.approx([0.75, 0.25, 0.0])


def test_shares_of_a_late_site_are_those_of_its_rounds():
    gains = [[[0.8], [0.0], [0.8]]] * 2 + [[[0.1], [0.1], [0.2]]] * 2
    found = innovations(gains, began=(0, 2, 0)).shares(torch.ones(3))
    late = 0.25 * 2 / 4  # of what all added since, times the rounds since
    assert found.tolist() == pytest.approx([(1 - late) * 1.8 / 3.8, late, (1 - late) * 2.0 / 3.8])


def test_shares_are_multiplied_by_the_credit_of_a_site():
    found = innovations([[[0.3], [0.3], [0.0]]]).shares(torch.tensor([1.0, 0.25, 1.0]))
    assert found.tolist() == pytest.approx([0.8, 0.2, 0.0])


def test_shares_without_any_value_are_zero():
    assert not innovations([[[-0.3], [0.0], [-0.1]]]).shares(torch.ones(3)).any()
