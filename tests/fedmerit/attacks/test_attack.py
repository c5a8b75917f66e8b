"""The contract of an attack: what is honest by itself, and which hooks there are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from playing import play, without_update

from fedmerit.attacks.attack import Attack
from fedmerit.attacks.attacker_site import AttackerSite
from fedmerit.attacks.catalogue import KINDS
from fedmerit.parameters import rules

HOOKS = {"others", "training_seed_site", "training_cases", "keep", "update", "claim", "commit", "rate"}


@dataclass(frozen=True, kw_only=True)
class Late(Attack):
    """Cannot be done before round 3."""

    earliest: ClassVar[int] = 3


def test_it_begins_as_early_as_was_said_and_as_it_can():
    assert [Attack(from_=given).first for given in (0, 2, 5)] == [0, 2, 5]
    assert [Late(from_=given).first for given in (0, 2, 5)] == [3, 3, 5]
    with pytest.raises(ValueError, match=r"^from=-1: expected 0 or more$"):
        Attack(from_=-1)


def test_every_attack_replaces_hooks_that_there_are():
    """A hook of another name would never be called."""
    assert vars(Attack).keys() >= HOOKS
    replaced = set()
    for kind in KINDS.values():
        chain = [one for one in kind.__mro__ if issubclass(one, Attack) and one is not Attack]
        own = {name for one in chain for name, value in vars(one).items() if isinstance(value, Callable | property)}
        own -= {name for name in own if name.startswith("_")} | {*rules(kind), "spoil"}  # of attacks on masks
        assert own <= HOOKS, kind
        replaced |= own
    assert replaced == HOOKS


def test_an_attack_that_changes_nothing_is_an_honest_round(played, open_site):
    replies = play(AttackerSite(open_site(), Attack()))[1]
    for honest, other in zip(played()[1], replies, strict=True):
        assert torch.equal(honest.update, other.update)
        assert without_update(honest) == without_update(other)
