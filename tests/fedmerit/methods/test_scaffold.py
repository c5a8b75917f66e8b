"""SCAFFOLD against its slow reference, absent sites, its optimiser; worked numbers are read by test_oracles.py."""

import pytest
import torch
from oracles import tensor
from quadratics import descended, mean, played, synthetic

from fedmerit.contract.capabilities import Trained, TrainingView
from fedmerit.contract.method import Layout, Reports
from fedmerit.errors import BadInput
from fedmerit.methods.scaffold import SCAFFOLD
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.configuration.settings import TASKS


@pytest.mark.parametrize("seed", [1, 2])
def test_scaffold_is_the_reference(seed):
    content, equal = synthetic(seed), [1 / 3] * 3
    w, c, own = content["start"], [0.0] * 4, [[0.0] * 4 for _ in range(3)]
    for _, outcome, _, _ in played(SCAFFOLD(), content):
        trained, new = [], []
        for i in range(3):
            shift = [a - b for a, b in zip(c, own[i], strict=True)]
            trained.append(descended(content, i, w, lambda at, shift=shift: shift))
            length = content["steps"] * content["lr"]
            new.append([own[i][k] - c[k] + (w[k] - trained[i][k]) / length for k in range(4)])
        w = mean(trained, equal)
        c = [x + y - z for x, y, z in zip(c, mean(new, equal), mean(own, equal), strict=True)]
        own = new
        assert torch.allclose(outcome.models, tensor(w), rtol=0, atol=1e-9)
        assert torch.allclose(outcome.vectors["control"], tensor(c), rtol=0, atol=1e-9)


def test_scaffold_counts_absent_sites_in_the_control():
    """c ← c + |S|/N mean over S."""
    method = SCAFFOLD()
    state = method.start(torch.zeros(1), 4, Layout.of(1))
    here = torch.tensor([True, True, False, False])
    sent = {"control": torch.tensor([[1.0], [3.0], [0.0], [0.0]])}
    reports = Reports(torch.ones(4).double(), here, vectors=sent)
    state, outcome = method.round(state, torch.tensor([[2.0], [4.0], [0.0], [0.0]]), reports)
    assert outcome.vectors["control"].tolist() == [1.0]
    assert outcome.models.tolist() == [3.0]
    assert state.controls.flatten().tolist() == [1.0, 3.0, 0.0, 0.0]


def test_a_reply_that_did_not_count_leaves_the_control_what_the_sites_have():
    """Two sites pull to (0, 0) and (0, 2); the second's replies of rounds 1 and 2 are late. The optimum is (0, 1)."""
    goals, method = torch.tensor([[0.0, 0.0], [0.0, 2.0]]).double(), SCAFFOLD()
    state = method.start(torch.tensor([1.0, 5.0]).double(), 2, Layout.of(2))
    control, kept = torch.zeros(2).double(), [{}, {}]
    for round in range(60):
        updates, sent = torch.zeros(2, 2).double(), torch.zeros(2, 2).double()
        for place, goal in enumerate(goals):

            def once(start, buffers=None, penalty=None, shift=None, goal=goal, rate=0.1 + 0.1 * place):
                at = start
                for _ in range(3):
                    at = at - rate * (2 * (at - goal) + shift)
                return Trained(at, {}, 0.0, 3, rate)

            view = TrainingView(state.model, {}, {"control": control}, kept[place], None, once)
            result = method.train(view)
            kept[place] = result.kept
            updates[place], sent[place] = result.trained.parameters - state.model, result.vectors["control"]
        here = torch.tensor([True, round not in (1, 2)])
        updates = updates * here[:, None]
        state, outcome = method.round(state, updates, Reports(here.double(), here, vectors={"control": sent}))
        control = outcome.vectors["control"]
    assert state.model.tolist() == pytest.approx([0, 1], abs=1e-3)
    assert control.tolist() == pytest.approx(torch.stack([one["control"] for one in kept]).mean(dim=0).tolist())


HONEST = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]])  # Δ_i
C = torch.tensor([0.5, -0.5])


def changes(change, updates=HONEST):
    """c_i⁺ - c_i = -2 Δ_i - c, as counted where ``change`` makes another of site 3's."""
    sent = -2 * HONEST - C
    sent[3] = change(sent[3])
    before = torch.stack([C, C, C, C])  # of which c is the mean
    vectors = {"control": before + sent}
    reports = Reports(torch.ones(len(updates)).double(), torch.ones(len(updates)).bool(), vectors=vectors)
    return sent, SCAFFOLD().guarded_form.controls(before, updates, reports) - before


def test_control_variates_that_follow_from_updates_count_as_they_were_sent():
    sent, counted = changes(lambda sent: sent)
    assert torch.equal(counted, sent)
    assert changes(lambda sent: 1000 * sent)[0][3].tolist() == [-4500, 500]
    believed = Reports(torch.ones(4), torch.ones(4).bool(), vectors={"control": 9 * sent})
    assert SCAFFOLD().controls(HONEST, HONEST, believed)[0].tolist() == [-22.5, 4.5]  # without the guard


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        # -4499.5 along Δ_3; the lengths are 2, 2, 2.83 and that: 3 times their median, 2.414, is 7.243
        (lambda sent: 1000 * sent, [-7.2426 - 0.5, 0.5]),
        (lambda sent: torch.tensor([0.0, 1e6]), [0 - 0.5, 0.5]),  # nothing of it lies along Δ_3 but 0.5 the other way
        (lambda sent: sent + torch.tensor([0.0, 3.0]), [-4 - 0.5, 0.5]),  # what lies across falls away
        (lambda sent: torch.tensor([4.0, 0.0]) - C, [-0.5, 0.5]),  # against what a gradient can be
    ],
)
def test_of_other_control_variates_what_follows_counts_up_to_three_times_the_median(change, counted):
    sent, found = changes(change)
    assert found[3].tolist() == pytest.approx(counted, abs=1e-3)
    assert torch.equal(found[:3], sent[:3])


def test_nothing_follows_from_no_update():
    _, found = changes(lambda sent: sent, torch.cat([HONEST[:3], torch.zeros(1, 2)]))
    assert found[3].tolist() == (-C).tolist()


def test_scaffold_takes_sgd_only():
    with pytest.raises(BadInput, match=r"optimizer=adam: method scaffold needs sgd; add --set optimizer=sgd"):
        make_configuration("scaffold", "prostate", 3, 0, TASKS["prostate"], {})
    made = make_configuration("scaffold", "prostate", 3, 0, TASKS["prostate"], {"optimizer": "sgd"})
    assert made.build_method() == SCAFFOLD()
