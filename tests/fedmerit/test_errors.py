"""What others wrote, on a terminal."""

import pytest

from fedmerit.errors import LONGEST_WORDS, Refused, printable
from fedmerit.federation.exchange import Exchange
from fedmerit.wire.messages import Failure


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
