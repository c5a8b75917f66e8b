"""What the guard remembers: sketches, means over rounds, its way through a checkpoint."""

import math

import pytest
import torch

from fedmerit.guard.history import WIDTH, WINDOW, History, running_mean, sketch


def cosines(rows):
    units = rows.double() / rows.double().norm(dim=1, keepdim=True)
    return units @ units.T


def test_history_survives_a_checkpoint(play, tmp_path):
    _, history = play(lambda round, updates: updates, 3)[-1]
    torch.save(history.content(), tmp_path / "history.pt")
    again = History.of(torch.load(tmp_path / "history.pt", weights_only=True))
    for name, value in vars(history).items():
        if name not in ("verdicts", "responses"):
            assert torch.equal(value.nan_to_num(9.0), getattr(again, name).nan_to_num(9.0)), name
    for part in ("verdicts", "responses"):
        for name, value in vars(getattr(history, part)).items():
            assert torch.equal(value, getattr(getattr(again, part), name)), name


def test_what_an_earlier_version_did_not_remember_is_not_known():
    content = History.empty(3).content()
    content["verdicts"]["seen"] = torch.ones(4, 3, WINDOW, dtype=torch.bool)  # of the kinds there were
    for name in ("rater_distance", "response", "responses", "likeness"):
        del content[name]
    history = History.of(content)
    for known in (history.rater_distance, history.response, history.likeness):
        assert known.isnan().tolist() == [True] * 3
    assert history.verdicts.rounds.tolist() == [[WINDOW] * 3] * 4 + [[0] * 3] * 2
    assert not history.responses.counts.any()


def test_a_sketch_keeps_cosines():
    random = torch.Generator().manual_seed(0)
    updates = torch.randn(3 * WIDTH + 5, generator=random) + torch.randn(5, 3 * WIDTH + 5, generator=random)
    found = sketch(updates, 7)
    assert found.shape == (5, WIDTH)
    assert torch.allclose(cosines(found), cosines(updates), rtol=0, atol=0.04)  # four times what is usual
    assert torch.equal(found, sketch(updates, 7))
    assert not torch.equal(found, sketch(updates, 8))


def test_of_a_small_model_a_sketch_is_the_update_but_for_signs():
    updates = torch.arange(1.0, 7.0).view(2, 3)
    found = sketch(updates, 0)
    assert torch.equal(found[:, :3].abs(), updates)
    assert torch.equal(found[0, :3].sign(), found[1, :3].sign())
    assert not found[:, 3:].any()


def test_entries_as_far_apart_as_a_sketch_is_wide_are_added_up():
    """1 and 10 in the first and the last of three rows of entries: 11 or 9, by their signs."""
    update = torch.zeros(1, 2 * WIDTH + 1)
    update[0, 0], update[0, 2 * WIDTH] = 1, 10
    assert {float(sketch(update, seed)[0, 0].abs()) for seed in range(12)} == {9.0, 11.0}


def test_what_is_remembered_is_half_of_what_was_and_half_of_what_is():
    nan = math.nan
    memory, now = torch.tensor([0.4, nan, 0.4, nan]), torch.tensor([0.8, 0.2, nan, nan])
    assert running_mean(memory, now).tolist() == pytest.approx([0.6, 0.2, 0.4, nan], nan_ok=True)
