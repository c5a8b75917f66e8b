"""The contract."""

import math

import torch

from fedmerit.core import Reports


def test_data_share_counts_present_sites_alone():
    reports = Reports(torch.tensor([10.0, 20.0, math.nan]), torch.tensor([True, True, False]))
    assert reports.data_share.tolist() == [10 / 30, 20 / 30, 0]
    assert reports.data_share.dtype == torch.float64
