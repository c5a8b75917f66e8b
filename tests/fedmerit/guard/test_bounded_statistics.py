"""BatchNorm statistics that moved too far."""

import torch

from fedmerit.guard.bounds import bound_statistics

SENT = {"running_mean": torch.zeros(3), "running_var": torch.ones(3), "num_batches_tracked": torch.tensor(4)}


def moved(by):
    return {**SENT, "running_mean": torch.full((3,), by), "num_batches_tracked": torch.tensor(9)}


def test_what_moved_over_three_times_the_median_is_brought_back_and_the_rest_kept():
    trained = [moved(1.0), moved(2.0), moved(1.0), None, {**moved(0.0), "running_var": torch.full((3,), 1e11)}]
    bounded, factors = bound_statistics(trained, [SENT] * 5)
    assert [one is two for one, two in zip(bounded[:4], trained[:4], strict=True)] == [True] * 4
    assert factors[:4].tolist() == [1.0] * 4
    variance = bounded[4]["running_var"]
    assert float((variance - 1).norm()) < 3.01 * 3**0.5
    assert (variance >= 1).all()
    assert bounded[4]["num_batches_tracked"] == 9
