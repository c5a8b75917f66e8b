"""Every attack by its spec."""

import pytest

from fedmerit.attacks.catalogue import KINDS, STUDY_ATTACKS, format_spec, parse, require_possible
from fedmerit.errors import BadInput
from fedmerit.schema.declarations import rules
from fedmerit.trainers.monai.machine_settings import attack_setting, configured_attack


@pytest.mark.parametrize("kind", KINDS)
def test_a_spec_and_its_text_say_the_same(kind):
    needed = {"twin": ":of=site2", "near-twin": ":of=site2", "rigged": ":friends=site1+site2"}.get(kind, "")
    attack = parse(f"{kind}{needed}:from=4")
    assert type(attack) is KINDS[kind]
    assert attack.from_ == attack.first == 4
    assert parse(format_spec(attack)) == attack
    assert format_spec(attack).startswith(f"{kind}:from=4")
    assert type(attack).__doc__
    assert rules(attack).keys() == vars(attack).keys()
    assert all(rule.text for rule in rules(attack).values())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", ["''", "repeat, replay"]),
        ("lazy", ["attack 'lazy'", "sign-flip"]),
        ("zero:share=0.5", ["'share=0.5'", "from"]),
        ("zero:from=soon", ["from='soon'", "a whole number"]),
        ("shifted:share=0", ["share=0", "above 0, at most 1"]),
        ("shifted:by=1", ["by=1", "above 0, below 1"]),
        ("scaled:by=0", ["by=0", "other than 0"]),
        ("inflated:what=dice", ["what='dice'", "num_samples"]),
        ("twin", ["of: missing", "twin:of=SITE"]),
        ("rigged", ["friends: missing", "rigged:friends=A+B"]),
    ],
)
def test_an_unusable_spec_is_told(spec, words):
    with pytest.raises(BadInput) as caught:
        parse(spec)
    assert all(word in str(caught.value) for word in words), caught.value


def test_specs_are_for_sites_that_there_are():
    assert require_possible({"B": "zero"}, ["A", "B"], 1) == {"B": "zero:from=0"}
    with pytest.raises(BadInput, match="no site C; there are A, B"):
        require_possible({"C": "zero"}, ["A", "B"], 1)
    with pytest.raises(BadInput, match="no site C; there are A, B"):
        require_possible({"A": "twin:of=C"}, ["A", "B"], 9)
    with pytest.raises(BadInput, match="no site C; there are A, B"):
        require_possible({"A": "rigged:friends=A+C"}, ["A", "B"], 9)


@pytest.mark.parametrize("kind", STUDY_ATTACKS)
def test_attacks_that_take_other_site_folders_are_sent_to_their_commands(kind):
    with pytest.raises(BadInput, match=f"attack A={kind}: .*`fedmerit lab attacks --kinds {kind} --attackers A`"):
        require_possible({"A": kind}, ["A", "B"], 9)


@pytest.mark.parametrize(("spec", "first"), [("zero:from=3", 3), ("delta", 1)])
def test_an_attack_that_would_never_begin_is_refused(spec, first):
    require_possible({"A": spec}, ["A", "B"], first + 1)
    with pytest.raises(BadInput, match=f"attack A={spec}: begins in round {first}, counted from 0, and there are"):
        require_possible({"A": spec}, ["A", "B"], first)


def test_a_machine_tells_its_sites_by_its_environment(monkeypatch):
    monkeypatch.delenv("FEDMERIT_BEHAVIOURS", raising=False)
    assert configured_attack("A") is None
    specs = require_possible({"A": "noise:from=3,times=2", "B": "zero"}, ["A", "B", "C"], 9)
    monkeypatch.setenv("FEDMERIT_BEHAVIOURS", attack_setting(specs))
    assert [configured_attack(site) for site in "ABC"] == ["noise:from=3:times=2.0:shared=0.0", "zero:from=0", None]
    monkeypatch.setenv("FEDMERIT_BEHAVIOURS", "zero")
    with pytest.raises(BadInput, match="expected SITE=SPEC"):
        configured_attack("A")
