"""Mixed precision: which, and what it does."""

import pytest
import torch

from fedmerit.trainers.monai_trainer.prediction import autocast, choose_precision

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("device", "known", "expected"),
    [
        (CPU, True, torch.bfloat16),
        (CPU, False, torch.bfloat16),
        (GPU, True, torch.bfloat16),
        (GPU, False, torch.float16),
    ],
)
def test_it_is_bfloat16_but_on_graphics_cards_that_do_not_know_it(monkeypatch, device, known, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: known)
    assert choose_precision(device, amp=True) is expected
    assert choose_precision(device, amp=False) is None


def test_products_are_computed_in_it_and_without_it_in_float32():
    """Of 1 + 2^-10 bfloat16 keeps 1, float32 all."""
    one, other = torch.full((1, 1), 1 + 2**-10), torch.ones(1, 1)
    with autocast(CPU, torch.bfloat16):
        mixed = one @ other
    with autocast(CPU, None):
        whole = one @ other
    assert (mixed.dtype, mixed.item()) == (torch.bfloat16, 1)
    assert (whole.dtype, whole.item()) == (torch.float32, 1 + 2**-10)
