"""What the guard remembers: sketches, running means, verdicts, and its way through a checkpoint."""

import pytest
import torch

from fedmerit.guard.history import ROUNDS, WIDTH, WINDOW, History, Verdicts, sketch


def cosines(rows):
    units = rows.double() / rows.double().norm(dim=1, keepdim=True)
    return units @ units.T


def test_history_survives_a_checkpoint(play, tmp_path):
    _, history = play(lambda round, updates: updates, 3)[-1]
    torch.save(history.content(), tmp_path / "history.pt")
    again = History.restore(torch.load(tmp_path / "history.pt", weights_only=True))
    for one, other in ((history, again), (history.verdicts, again.verdicts), (history.responses, again.responses)):
        for name, value in vars(one).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value.nan_to_num(9.0), getattr(other, name).nan_to_num(9.0)), name


def test_a_sketch_keeps_cosines():
    random = torch.Generator().manual_seed(0)
    updates = torch.randn(3 * WIDTH + 5, generator=random) + torch.randn(5, 3 * WIDTH + 5, generator=random)
    found = sketch(updates, 7)
    assert found.shape == (5, WIDTH)
    assert torch.allclose(cosines(found), cosines(updates), rtol=0, atol=0.04)  # four times what is usual
    assert torch.equal(found, sketch(updates, 7))
    assert not torch.equal(found, sketch(updates, 8))


def test_a_sign_that_cannot_be_looked_for_any_more_stays_as_it_was():
    """Else a verdict would end with training, when honest updates have nothing in common any more."""

    def after(verdicts, rounds, short, elsewhere, known):
        seen = torch.tensor([[short], [False], [elsewhere], [False]])
        all_known = torch.ones(4, 1, dtype=torch.bool)
        all_known[2] = known
        for _ in range(rounds):
            verdicts = verdicts.after(seen, all_known, torch.tensor([True]), False)
        return verdicts

    found = after(Verdicts.none(4, 1), ROUNDS, True, True, True)
    assert found.against.all()
    later = after(found, 20, True, False, False)
    assert later.against.all()
    assert torch.equal(later.seen[2], found.seen[2])
    assert not after(later, ROUNDS, False, False, False).against.any()  # it works again: one kind alone is left
    assert not after(found, ROUNDS, True, False, True).against.any()
    assert not after(Verdicts.none(4, 1), 20, True, True, False).against.any()  # nothing begins so


def rounds_of(verdicts, rounds, seen, present=True, for_good=False):
    """One site, of two kinds, in so many rounds on end; both can be looked for."""
    known = torch.ones(2, 1, dtype=torch.bool)
    for _ in range(rounds):
        verdicts = verdicts.after(torch.tensor(seen)[:, None], known, torch.tensor([present]), for_good)
    return verdicts


def test_two_kinds_of_signs_in_three_of_nine_rounds_are_a_verdict():
    nothing = Verdicts.none(2, 1)
    assert not rounds_of(nothing, 2, [True, True]).against
    assert rounds_of(nothing, 3, [True, True]).against
    assert not rounds_of(nothing, 30, [True, False]).against
    broken = rounds_of(rounds_of(nothing, 2, [True, True]), WINDOW - ROUNDS, [True, False])
    assert rounds_of(broken, 1, [True, True]).against
    assert not rounds_of(rounds_of(broken, 1, [True, False]), 1, [True, True]).against  # too long ago


@pytest.mark.parametrize(("of", "judged_in"), [(2, 5), (3, 8), (4, 11), (5, None)])
def test_who_rides_in_one_of_up_to_four_rounds_is_judged(of, judged_in):
    verdicts, found = Verdicts.none(2, 1), []
    for number in range(40):
        verdicts = rounds_of(verdicts, 1, [number % of == of - 1] * 2)
        found += [number] if verdicts.against else []
    assert (min(found) if found else None) == judged_in


def test_three_rounds_without_two_kinds_lift_it_unless_it_is_for_good():
    found = rounds_of(Verdicts.none(2, 1), 3, [True, True])
    assert rounds_of(found, 2, [True, False]).against
    assert not rounds_of(found, 3, [True, False]).against
    again = rounds_of(rounds_of(found, 2, [False, False]), 1, [True, True])
    assert rounds_of(again, 2, [False, False]).against  # counted from anew
    assert rounds_of(found, 30, [False, False], for_good=True).against


def test_an_absent_site_stands_as_it_stood():
    found = rounds_of(Verdicts.none(2, 1), 3, [True, True])
    for before in (rounds_of(Verdicts.none(2, 1), 2, [True, True]), found, rounds_of(found, 2, [True, False])):
        after = rounds_of(before, 9, [False, False], present=False)
        assert all(torch.equal(value, getattr(after, name)) for name, value in vars(before).items())


def test_a_kind_that_cannot_be_looked_for_founds_no_verdict():
    """An outlier whose direction stays as it was late in training, and who is stale by chance in three rounds."""
    verdicts, known = rounds_of(Verdicts.none(2, 1), 5, [True, False]), torch.tensor([[False], [True]])
    for _ in range(3):
        verdicts = verdicts.after(torch.tensor([[True], [True]]), known, torch.ones(1).bool(), False)
    assert verdicts.standing.all()
    assert not verdicts.against
    assert rounds_of(verdicts, 1, [True, True]).against
