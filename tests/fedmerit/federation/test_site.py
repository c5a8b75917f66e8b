"""One site: whom it refuses, what it answers, what leaves it."""

from dataclasses import replace

import pytest
import torch
from pretending import tiny_plan

from fedmerit import flat
from fedmerit.errors import BadInput
from fedmerit.federation.requirements import require_fit
from fedmerit.federation.site import Site
from fedmerit.federation.site_log import SITE_LOG
from fedmerit.records.ledger import Ledger
from fedmerit.training.data import SiteFolder
from fedmerit.training.overlaps import mean_dice
from fedmerit.training.prediction import evaluate
from fedmerit.wire.messages import (
    LOST_MEMORY,
    NOT_FOR_OTHERS,
    Enrolment,
    EnrolmentTask,
    Evaluated,
    Evaluation,
    Failure,
    Purpose,
    Reply,
    SparseUpdate,
    Task,
)

ONE = torch.eye(1, dtype=torch.float64)


@pytest.fixture
def site(sites, tmp_path):
    def make(method="fedavg", **options):
        config = tiny_plan(method, augment=False)
        memory = tmp_path / "run" / "sites" / "site1"
        return Site(SiteFolder(sites / "site1"), config, memory, "cpu", **options)

    return make


def task_of(site, round=0):
    return Task(round, flat.get_parameters(site.network), flat.get_buffers(site.network))


def evaluation(site, split, purpose=Purpose.ROUND, round=0):
    model, buffers = flat.get_parameters(site.network), flat.get_buffers(site.network)
    return Evaluation(round, split, model[None], ONE, (buffers,), ONE, purpose=purpose)


def test_images_of_another_task_are_refused(sites, tmp_path):
    config = tiny_plan("fedavg")
    other = replace(config, task="fundus")
    with pytest.raises(BadInput, match="the run expects"):
        Site(SiteFolder(sites / "site1"), other, tmp_path, "cpu")
    require_fit(config, SiteFolder(sites / "site1"))


def test_a_training_answers_with_its_update_its_images_and_what_the_model_was_worth(site, sites):
    here = site()
    task = task_of(here)
    reply = here.answer(task)
    assert isinstance(reply, Reply)
    folder = SiteFolder(sites / "site1")
    assert reply.num_samples == here.num_samples == sum(len(case.image) for case in folder.cases("training"))
    memory = here.memory.of(0)
    assert torch.equal(memory.received, task.parameters)
    assert torch.equal(reply.update, memory.trained - memory.received)
    flat.load(here.network, task.parameters, task.buffers)
    overlaps = evaluate(here.network, folder.cases("validation"), ("prostate",))
    assert mean_dice(reply.overlaps) == pytest.approx(mean_dice(overlaps))
    assert reply.log == Ledger(here.memory.path / SITE_LOG).records[-1]["hash"]


def test_what_changed_since_a_round_it_does_not_remember_is_a_failure_and_no_error(site):
    here = site()
    sparse = SparseUpdate(torch.tensor([0], dtype=torch.int32), torch.tensor([1.0]))
    assert here.answer(replace(task_of(here, 1), parameters=sparse)) == Failure(LOST_MEMORY)


def test_training_images_are_evaluated_for_nobody_and_the_log_says_who_asked(site):
    here = site()
    assert here.answer(evaluation(here, "training")) == Failure(NOT_FOR_OTHERS)
    (entry,) = Ledger(here.memory.path / SITE_LOG).records
    assert entry["work"] == "refused"
    assert entry["reason"].startswith(NOT_FOR_OTHERS)
    assert "the training split in round 0" in entry["reason"]  # which the server is not told
    answer = here.answer(evaluation(here, "testing", Purpose.FINAL, here.config.rounds))
    assert isinstance(answer, Evaluated)
    assert len(answer.overlaps) == 1


def test_an_operators_cap_goes_before_what_the_run_needs(site):
    here = site(caps={"testing": 0})
    answer = here.answer(evaluation(here, "testing", Purpose.FINAL, here.config.rounds))
    assert isinstance(answer, Failure)
    assert "operator" in answer.reason


def test_enrolment_says_how_much_the_site_holds_and_whose_word_it_is(site, sites):
    answer = site(certificate="PEM").answer(EnrolmentTask(0))
    assert isinstance(answer, Enrolment)
    folder = SiteFolder(sites / "site1")
    assert answer.certificate == "PEM"
    for split in ("training", "validation", "testing"):
        assert answer.cases[split] == len(folder.cases(split))
    assert len(answer.fingerprint) == len(folder.cases("training"))


def test_what_a_filter_changed_is_what_the_site_remembers_to_have_sent(site):
    here = site()
    task = task_of(here)
    here.answer(task)
    sent = torch.full_like(task.parameters, 0.5)
    here.sent(task, sent)
    assert torch.equal(here.memory.of(0).model, task.parameters + sent)


def test_its_model_goes_to_nobody_who_has_no_part(site):
    here = site(participants=("site1", "site2"))
    assert here.give_model("stranger", 0) is None
    assert here.give_model("site2", 0) is None  # of FedAvg, models go by the server alone
