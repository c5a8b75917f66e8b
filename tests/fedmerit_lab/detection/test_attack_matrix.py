"""What lies pay on made-up sites: the attacks, and the table of attacks by methods."""

import pytest
import torch

from fedmerit.methods.registry import build_method
from fedmerit_lab.detection import attack_matrix
from fedmerit_lab.detection.attack_matrix import ATTACKER, ATTACKS, HONEST, METHODS, PARTNER, ROUNDS, matrix
from fedmerit_lab.detection.synthetic_sites import SITES, STEP, Seen

D = 2000
UPDATE = torch.arange(1.0, D + 1)


@pytest.mark.parametrize(
    ("attack", "places"),
    [("honest", []), ("zero update", [5]), ("claims 1e9 images", [5]), ("two rig the evaluation", [0, 5]),
     ("a site split in two", [5, 6]), ("two exact copies", [5, 6])],
)  # fmt: skip
def test_who_attacks(attack, places):
    assert attack_matrix.list_attackers(attack) == places


def seen_in(round, last=None, first=None):
    """What a player knows in a round: its model moved by (3, 0, 4), and so on."""
    step = torch.zeros(D)
    step[[0, 2]] = torch.tensor([3.0, 4.0])
    peers = torch.stack([torch.full((D,), float(place)) for place in range(SITES)])
    return Seen(round, step, last, first, peers, torch.Generator().manual_seed(round))


def cosine(one, other):
    return float(one @ other / (one.norm() * other.norm()))


def lied(attack, round=3, **known):
    """What the attacker makes of an honest update 1, 2, ..., D."""
    return ATTACKS[attack][ATTACKER].update(UPDATE, seen_in(round, **known))


def test_an_attack_replaces_the_attacker_and_whom_it_names():
    for attack, players in ATTACKS.items():
        changed = [place for place in range(SITES) if players[place] != HONEST[place]]
        expected = {"two rig the evaluation": [PARTNER, ATTACKER], "honest": [], "two exact copies": []}
        assert changed == expected.get(attack, [ATTACKER]), attack
        assert {player.site for player in players[SITES:]} <= {ATTACKER}


def test_plain_lies_are_the_honest_update_changed_as_they_say():
    assert lied("zero update").tolist() == [0] * D
    assert lied("zero update from the middle on", round=6).equal(UPDATE)
    assert not lied("zero update from the middle on", round=7).any()
    for round in range(6):
        assert lied("zero update, two rounds of three", round=round).any() == (round % 3 == 0)
    torch.testing.assert_close(lied("11 % of the honest update"), 0.11 * UPDATE)
    assert lied("10,000 times the honest update").equal(1e4 * UPDATE)
    assert lied("signs reversed").equal(-UPDATE)
    assert lied("half the signs reversed")[:4].tolist() == [1, -2, 3, -4]
    assert lied("replay", round=1).equal(UPDATE)
    assert lied("replay", last=7 * UPDATE).equal(7 * UPDATE)


def test_lies_of_an_honest_length_have_the_direction_they_say():
    step = seen_in(0).step
    for lie in (lied("noise of an honest norm"), lied("last step"), lied("last step and noise, cosine .83"),
                lied("knows the rules", first=UPDATE)):  # fmt: skip
        assert float(lie.norm()) == pytest.approx(float(UPDATE.norm()), rel=1e-5)
    assert abs(cosine(lied("noise of an honest norm"), UPDATE)) < 0.1
    assert cosine(lied("last step"), step) == pytest.approx(1)
    assert cosine(lied("last step and noise, cosine .83"), step) == pytest.approx(0.83, abs=0.05)
    assert cosine(lied("knows the rules", first=step), step) == pytest.approx(0.8, abs=0.05)
    assert lied("knows the rules", round=0).equal(UPDATE)  # trains once
    still = Seen(0, torch.zeros(D), None, None, seen_in(0).peers, torch.Generator())
    assert ATTACKS["last step"][ATTACKER].update(UPDATE, still).equal(UPDATE)


def test_who_trains_on_wrong_images_goes_astray_the_same_way_every_round():
    one, other = (lied("shifted masks", round=round) - UPDATE for round in (3, 8))
    assert one.equal(other)
    assert float(one.norm()) == pytest.approx(STEP, rel=1e-2)
    assert float((lied("one image, repeated") - UPDATE).norm()) == pytest.approx(1.5 * STEP, rel=1e-2)
    part = lied("a part of the images")
    assert cosine(part, UPDATE) == pytest.approx(0.5**0.5, abs=0.05)
    assert float(part @ UPDATE / (UPDATE @ UPDATE)) == pytest.approx(0.4, abs=0.05)


def test_copies_are_of_the_attackers_own_update():
    twin = seen_in(3).peers[ATTACKER]
    exact = ATTACKS["two exact copies"]
    assert len(exact) == SITES + 1
    assert exact[-1].update(UPDATE, seen_in(3)).equal(twin)
    first, second = (
        one.update(UPDATE, seen_in(round)) for round, one in enumerate(ATTACKS["two copies, cosine .77"][-2:])
    )
    assert cosine(first, second) == pytest.approx(1 / (1 + 0.55**2), abs=0.03)  # each has noise of its own


def test_claims_and_ratings_are_what_pays_most():
    liar = ATTACKS["claims the best of itself"][ATTACKER]
    assert liar.update(UPDATE, seen_in(3)).equal(UPDATE)
    assert not lied("zero update and claims").any()
    told = liar.claim({"loss": 0.2, "minus_error": 0.3, "minus_cosine": 0.9})
    assert told == {"loss": 1, "minus_error": 1}
    assert liar.claim({f"loss_bin_{place}": 5.0 for place in range(4)}) == {
        "loss_bin_0": 0, "loss_bin_1": 0, "loss_bin_2": 20, "loss_bin_3": 0
    }  # fmt: skip
    members = torch.eye(SITES, dtype=torch.bool)
    honest = torch.full((SITES,), 0.7)
    pair = ATTACKS["two rig the evaluation"]
    assert pair[PARTNER].rate(honest, members).tolist() == [1, 0, 0, 0, 0, 1]
    assert ATTACKS["rigs the evaluation"][ATTACKER].rate(honest, members).tolist() == [0, 0, 0, 0, 0, 1]
    assert pair[1].rate(honest, members).equal(honest)


def test_what_attacks_pay_where_images_are_believed():
    """FedAvg pays by claimed images: 1e9 of 1e9 + 500, 50 + 50 of 600, two of six, one of seven twice."""
    attacks = ["claims 1e9 images", "a site split in two", "two rig the evaluation", "two exact copies"]
    table = matrix(["fedavg"], [0], False, attacks).set_index("attack")
    assert table["weight"].to_dict() == pytest.approx(
        dict(zip(attacks, (1e9 / (1e9 + 500), 1 / 6, 2 / 6, 2 / 7), strict=True))
    )
    assert table["honest weight"].to_dict() == pytest.approx(
        dict(zip(attacks, (1 / 6, 1 / 6, 2 / 6, 1 / 6), strict=True))
    )
    assert (table["reward"] == 1).all()
    assert table["named"].isna().all()
    assert (table["accused"] == 0).all()
    rigged = table.loc["two rig the evaluation"]  # which nobody looks at
    assert table.loc["a site split in two", "honest dice"] == rigged["honest dice"]


def test_the_guard_names_who_sends_zeros_and_nobody_else():
    (row,) = matrix(["fedavg"], [0], True, ["zero update"]).to_dict("records")
    assert (row["weight"], row["reward"], row["accused"]) == (0, 0, 0)
    assert 3 <= row["named"] <= ROUNDS / 2
    assert row["honest weight"] == pytest.approx(1 / 6)
    assert row["honest reward"] == 1


def test_every_method_of_the_matrix_has_the_parameters_it_is_named_for():
    built = {label: build_method(name, parameters) for label, (name, parameters) in METHODS.items()}
    assert [built[f"fedce {combine}"].combine for combine in ("times", "plus")] == ["times", "plus"]
    assert built["fedce server"].estimate == "server" != built["fedce times"].estimate
    assert all(label == name for label, (name, _) in METHODS.items() if not label.startswith("fedce "))
