"""What the guard remembers, and its way through a checkpoint."""

import torch

from fedmerit.guard.history import History


def test_history_survives_a_checkpoint(play, tmp_path):
    _, history = play(lambda round, updates: updates, 3)[-1]
    torch.save(history.content(), tmp_path / "history.pt")
    again = History.restore(torch.load(tmp_path / "history.pt", weights_only=True))
    for one, other in ((history, again), (history.known, again.known), (history.evidence, again.evidence)):
        for name, value in vars(one).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value.nan_to_num(9.0), getattr(other, name).nan_to_num(9.0)), name
