"""Learning from other sites' predictions; worked numbers are in methods/test_oracles.py."""

import torch

from fedmerit.distillation import divergence


def test_divergence_is_finite_for_any_logits():
    extreme = torch.tensor([-3e38, -100.0, 0.0, 100.0, 3e38]).view(1, 1, 1, -1)
    for one in (extreme, extreme.flip(-1), torch.zeros_like(extreme)):
        own = one.clone().requires_grad_()
        for kl in ("own_peer", "peer_own"):
            loss = divergence(own, extreme, 5.0, kl)
            assert not loss.isnan()
    assert float(divergence(extreme[..., 1:4], extreme[..., 1:4], 5.0, "own_peer")) == 0.0
