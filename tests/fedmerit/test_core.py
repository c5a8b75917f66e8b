"""The contract, seeds, distillation and errors."""

import math

import pytest
import torch

from fedmerit.core import Reports
from fedmerit.errors import LONGEST_WORDS, Refused, printable
from fedmerit.federation.exchange import Exchange
from fedmerit.methods.vpdl import divergence
from fedmerit.seeds import random_seed
from fedmerit.wire.messages import Failure


def test_data_share_counts_present_sites_alone():
    reports = Reports(torch.tensor([10.0, 20.0, math.nan]), torch.tensor([True, True, False]))
    assert reports.data_share.tolist() == [10 / 30, 20 / 30, 0]
    assert reports.data_share.dtype == torch.float64


def test_seeds_are_the_same_on_every_machine_and_differ_by_part():
    assert random_seed(0, "site1", 2) == random_seed(0, "site1", 2)
    seeds = {random_seed(*parts) for parts in ((0, "a", 1), (0, "a", 2), (0, "b", 1), (1, "a", 1), (0, 1), ("0", "a1"))}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert random_seed(0, "initial model") == 8076977981672800817  # of SHA-256's first 63 bits


def test_divergence_is_finite_for_any_logits():
    extreme = torch.tensor([-3e38, -100.0, 0.0, 100.0, 3e38]).view(1, 1, 1, -1)
    for one in (extreme, extreme.flip(-1), torch.zeros_like(extreme)):
        own = one.clone().requires_grad_()
        for kl in ("own_peer", "peer_own"):
            loss = divergence(own, extreme, 5.0, kl)
            assert not loss.isnan()
    assert float(divergence(extreme[..., 1:4], extreme[..., 1:4], 5.0, "own_peer")) == 0.0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Dice 0.8, Universitätsklinikum", "Dice 0.8, Universitätsklinikum"),
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("a\rb\nc\td", r"a\rb\nc\td"),
        ("\u202ereversed", r"\u202ereversed"),
        ("\x9b31m", r"\x9b31m"),
    ],
)
def test_control_characters_are_written_out(text, shown):
    assert printable(text) == shown


def test_breaks_that_are_ours_stay():
    assert printable("one\ntwo\x07", "\n") == "one\ntwo\\x07"


def test_a_sites_reason_commands_no_terminal():
    exchange = Exchange({}, lambda site, answer: answer.reason, "reply", "round 0", 1)
    exchange.refuse("a\x1b]0;title\x07", "\x1b[31mfailed\nround 1: all is well")
    exchange.take("b\x1b[A", Failure("no"))
    told = "".join(name + reason for name, reason in exchange.faults().items())
    assert told.isprintable()
    assert r"\x1b[31mfailed\nround 1" in told


def test_what_a_server_asks_for_commands_no_terminal_of_a_site():
    """It names the split, which the site tells its operator and its own log."""
    refused = str(Refused("not given", "the \x1b[2J split" + "x" * 10**6))
    assert refused.startswith(r"not given: the \x1b[2J split")
    assert len(refused) < LONGEST_WORDS + 50
