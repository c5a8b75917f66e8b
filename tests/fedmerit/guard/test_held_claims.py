"""What a site says of itself may lower what it earns, and no more."""

import pytest
import torch

from fedmerit.core import Reports
from fedmerit.guard.bounds import bound_claims
from fedmerit.methods.fedave import FedAVE
from fedmerit.methods.fedce import FedCE

PRESENT = torch.ones(4, dtype=torch.bool)


def test_a_claimed_error_gives_way_to_what_others_measured():
    claims = {"minus_error": torch.tensor([1.0, 0.2, 0.3, 0.1]).double(), "cosine": torch.ones(4).double()}
    measured = torch.tensor([0.2, 0.2, torch.nan, 0.3]).double()
    held = bound_claims(claims, PRESENT, measured)
    assert held["minus_error"] is measured
    assert held["cosine"] is claims["cosine"]
    assert bound_claims(claims, PRESENT, None)["minus_error"] is claims["minus_error"]


def test_the_error_that_others_measured_is_divided_by_no_claim():
    claims = {"minus_error": torch.full((4,), 0.5).double(), "error": torch.tensor([0.0, 0.4, 0.5, 0.6]).double()}
    measured = torch.tensor([0.2, 0.2, 0.1, 0.3]).double()
    said = Reports(PRESENT.double(), PRESENT, bound_claims(claims, PRESENT, measured))
    asked = {name: FedCE(error=name).data_term(said) for name in ("relative", "absolute")}
    assert torch.equal(asked["relative"], asked["absolute"])
    assert bound_claims(claims, PRESENT, None)["error"] is claims["error"]


def test_a_claimed_loss_counts_at_most_the_median_of_the_others():
    claims = {"loss": torch.tensor([1.0, 0.2, 0.3, 0.1]).double()}
    assert bound_claims(claims, PRESENT, None)["loss"].tolist() == pytest.approx([0.2, 0.2, 0.2, 0.1])


def test_fedave_without_claims_pays_for_dice_alone():
    assert FedAVE().without_self_reports.distributions == "none"
