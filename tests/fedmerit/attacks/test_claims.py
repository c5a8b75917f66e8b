"""What a site says of itself that is not so."""

import torch


def test_inflated_claims_are_at_their_best_and_the_update_is_honest(played):
    honest, lying = played()[1], played("inflated")[1]
    for truth, lie in zip(honest, lying, strict=True):
        assert torch.equal(truth.update, lie.update)
        assert lie.num_samples == 10 * truth.num_samples
        assert lie.values.keys() == truth.values.keys()
    assert lying[0].values == {}
    assert all(reply.values == {"cosine": -1.0, "minus_error": 1.0} for reply in lying[1:])


def test_one_claim_alone(played):
    honest, lying = played()[1][1], played("inflated:what=minus_error")[1][1]
    assert lying.num_samples == honest.num_samples
    assert lying.values == {"cosine": honest.values["cosine"], "minus_error": 1.0}
