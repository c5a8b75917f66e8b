"""A site under an attack: the contract, when it begins, what it remembers, and whole runs on both engines."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from chains import verify
from playing import play, without_update
from tiny import TINY

from fedmerit.contract import flat
from fedmerit.contract.capabilities import TrainsLocally, capabilities
from fedmerit.methods.fedavg import FedAvg
from fedmerit.schema.messages import Evaluation, Purpose, Task
from fedmerit.schema.results import read_results
from fedmerit.schema.run_info import read_run
from fedmerit.trainers.factory import initial_network
from fedmerit_lab.attacks import attacked_runs
from fedmerit_lab.attacks.attack import Attack, parse_attack
from fedmerit_lab.attacks.attacker_site import AttackerSite


@dataclass(frozen=True, kw_only=True)
class Late(Attack):
    """Cannot be done before round 3."""

    earliest: ClassVar[int] = 3


def test_it_begins_as_early_as_was_said_and_as_it_can():
    assert [Attack(from_=given).first for given in (0, 2, 5)] == [0, 2, 5]
    assert [Late(from_=given).first for given in (0, 2, 5)] == [3, 3, 5]
    with pytest.raises(ValueError, match=r"^from=-1: expected a whole number, 0 or more$"):
        Attack(from_=-1)


def test_an_attack_that_changes_nothing_is_an_honest_round(played, open_site):
    replies = play(AttackerSite(open_site(), Attack()))[1]
    for honest, other in zip(played()[1], replies, strict=True):
        assert torch.equal(honest.update, other.update)
        assert without_update(honest) == without_update(other)


@pytest.mark.parametrize("kind", ["repeat", "zero", "delta-noise", "sign-flip", "inverted", "inflated"])
def test_rounds_before_the_first_are_honest_bit_for_bit(played, kind):
    honest, acted = played()[1], played(f"{kind}:from=2")[1]
    for round in (0, 1):
        assert torch.equal(acted[round].update, honest[round].update)
        assert without_update(acted[round]) == without_update(honest[round])
    lies_only = kind == "inflated"
    assert torch.equal(acted[2].update, honest[2].update) == lies_only
    assert (acted[2].num_samples == honest[2].num_samples) != lies_only


@pytest.mark.parametrize("spec", ["noise", "delta-noise", "replay:from=2", "repeat", "label-noise:share=0.5"])
def test_a_site_that_is_opened_again_and_asked_twice_sends_the_same(played, open_site, spec):
    class Restarted:
        """Every task is answered by a site opened for it, as after a crash."""

        config = open_site(spec).config

        def answer(self, task):
            return open_site(spec).answer(task)

    again = play(Restarted(), Restarted())[1]
    assert all(torch.equal(one.update, other.update) for one, other in zip(played(spec)[1], again, strict=True))


@pytest.fixture
def late_task(open_site):
    """Of a round whose round before the site knows nothing of."""
    network = initial_network(open_site().config.network, 0)
    return Task(2, flat.get_parameters(network), flat.get_buffers(network), 0.5, 0.5)


@pytest.mark.parametrize("spec", ["delta", "noise", "replay"])
def test_a_free_rider_that_lost_its_memory_trains(open_site, late_task, spec):
    assert torch.equal(open_site(spec).answer(late_task).update, open_site().answer(late_task).update)


def test_wrong_masks_leave_validation_and_tests_only(open_site, folders):
    site = open_site("inverted")
    network = initial_network(site.config.network, 0)
    models, each = flat.get_parameters(network)[None], torch.eye(1, dtype=torch.float64)
    site.answer(Task(0, models[0], flat.get_buffers(network)))
    for split in ("validation", "testing"):
        task = Evaluation(site.config.rounds, split, models, each, (flat.get_buffers(network),), each)
        said = site.answer(replace(task, purpose=Purpose.FINAL))
        voxels = [one.true_positives + one.false_negatives for one in said.overlaps[0]]
        assert voxels == [int(case.label.sum()) for case in folders["prostate"].cases(split)]


@dataclass(frozen=True)
class WithVectors(TrainsLocally, FedAvg):
    """A method whose sites send a vector beside their updates and have models of their own."""

    vectors = ("control",)
    keeps_own_model = True


def test_a_free_rider_that_does_not_train_sends_the_vectors_that_belong_to_the_method(open_site, late_task):
    """The server refuses an update that lacks them."""
    site = open_site("zero")
    site.trainer.can = capabilities(WithVectors())
    assert list(site.answer(late_task).vectors) == ["control"]
    assert not site.answer(late_task).vectors["control"].any()
    parameters, _ = site.memory.read(late_task.round).own
    assert torch.equal(parameters, late_task.parameters)


def make(run, sites, engine, attacks, rounds=3, method="fedce"):
    settings = TINY | {"validate_trained": "true"}
    options = {"method": method, "sites": sites, "rounds": rounds, "engine": engine}
    attacked_runs.create(run, attacks, settings=settings, **options)
    attacked_runs.execute(run, lambda record: None)
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "attacks",
    [{"site2": "delta-noise:from=1"}, {"site1": "label-noise:share=0.5", "site3": "replay"}],
    ids=["an update", "data and an update"],
)
def test_a_simulated_site_attacks_as_a_local_one(tmp_path, sites, assert_same_run, attacks):
    local = make(tmp_path / "local" / "run", sites, "local", attacks)
    simulated = make(tmp_path / "sim" / "run", sites, "sim", attacks)
    assert_same_run(local, simulated)
    assert read_run(local)["attacks"] == read_run(simulated)["attacks"]
    honest = make(tmp_path / "honest" / "run", sites, "local", {})
    digests = [[json.loads(line)["updates"] for line in (run / "ledger.jsonl").open()] for run in (local, honest)]
    attacking = {site for site, sent in digests[0][0].items() if sent != digests[1][0][site]}
    assert attacking == {site for site, spec in attacks.items() if parse_attack(spec).first == 0}
    assert digests[0][1] != digests[1][1]
    kinds = [spec.partition(":")[0] for spec in attacks.values()]
    jobs = [path.read_text() for path in (tmp_path / "sim").rglob("config_fed_*.json")]
    reported = [kind for kind in kinds for job in jobs if kind in job]
    assert reported == []  # the job carries nothing of it


def test_rounds_record_norms_cosines_and_repetitions(tmp_path, sites):
    run = make(tmp_path / "run", sites, "local", {"site1": "zero", "site2": "replay"}, method="fedavg")
    rounds = read_results(run).query("split == ''").pivot(index=["round", "site"], columns="quantity", values="value")
    zero, replay, honest = (rounds.xs(f"site{number}", level="site") for number in (1, 2, 3))
    assert (zero[["norm", "cosine_to_mean", "largest_pair_cosine"]] == 0).all(axis=None)
    assert zero["cosine_to_previous"].isna().to_list() == [True, False, False]
    assert (zero["cosine_to_previous"][1:] == 0).all()
    assert zero["repeated"].to_list() == [0, 1, 1]
    assert replay["repeated"].to_list() == [0, 1, 1]
    assert replay["norm"].nunique() == 1
    assert honest["repeated"].to_list() == [0, 0, 0]
    assert (honest["norm"] > 0).all()
    assert honest["largest_pair_cosine"].to_list() == pytest.approx(replay["largest_pair_cosine"].to_list())
    assert zero["train_loss"].isna().all()
    assert verify(run / "ledger.jsonl") == 3
    trained, received = (read_results(run).query(f"split == '{name}'") for name in ("validation_trained", "validation"))
    assert set(trained["round"]) == {0, 1, 2}
    keys = ["round", "site", "case", "label"]
    both = trained.query("quantity == 'dice'").merge(received.query("quantity == 'dice'"), on=keys)
    assert len(both) == len(trained) / 4
    same = both["value_x"] == both["value_y"]
    assert same[both["site"] == "site1"].all()
