"""One site: whom it refuses, what it answers, what leaves it."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from pretending import tiny_plan

from fedmerit.contract import flat
from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import Ledger
from fedmerit.schema.messages import (
    LOST_MEMORY,
    NOT_FOR_OTHERS,
    OUT_OF_ORDER,
    Enrolment,
    EnrolmentTask,
    Evaluated,
    Evaluation,
    Failure,
    Importance,
    ImportanceTask,
    Purpose,
    Reply,
    SparseUpdate,
    Task,
    recorded,
)
from fedmerit.schema.scores import SERVER_SPLIT, mean_dice
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.site.site import image_site
from fedmerit.site.site_log import SITE_LOG
from fedmerit.trainers.memory import Learned, Memory
from fedmerit.trainers.monai.evaluation import estimate_statistics
from fedmerit.trainers.monai.local_round import LocalRound
from fedmerit.trainers.monai.network_checks import require_compatible_images
from fedmerit.trainers.monai.prediction import evaluate
from fedmerit.trainers.monai.samples import Slices

ONE = torch.eye(1, dtype=torch.float64)


@pytest.fixture
def site(sites, tmp_path):
    def make(method="fedavg", settings=None, **options):
        config = tiny_plan(method, augmentation="none", **settings or {})
        memory = tmp_path / "run" / "sites" / "site1"
        return image_site(SiteFolder(sites / "site1"), config, memory, "cpu", **options)

    return make


def make_task(site, round=0):
    return Task(round, flat.get_parameters(site.trainer.network), flat.get_buffers(site.trainer.network))


def evaluation(site, split, purpose=Purpose.ROUND, round=0):
    model, buffers = flat.get_parameters(site.trainer.network), flat.get_buffers(site.trainer.network)
    return Evaluation(round, split, model[None], ONE, (buffers,), ONE, purpose=purpose)


def test_images_of_another_task_are_refused(sites, tmp_path):
    config = tiny_plan("fedavg")
    other = replace(config, task="fundus")
    with pytest.raises(BadInput, match="the run expects"):
        image_site(SiteFolder(sites / "site1"), other, tmp_path, "cpu")
    require_compatible_images(config, SiteFolder(sites / "site1"))


def test_a_site_whose_processor_lacks_bfloat16_says_that_it_will_be_slow(site, monkeypatch, capsys):
    monkeypatch.setattr("fedmerit.trainers.monai.trainer.computes_bfloat16", lambda: False)
    site()
    assert not capsys.readouterr().err
    site(settings={"amp": True})
    assert "WARNING: site site1: amp=true, and this processor has no instructions" in capsys.readouterr().err


def test_a_training_answers_with_its_update_its_images_and_what_the_model_was_worth(site, sites):
    here = site()
    task = make_task(here)
    reply = here.answer(task)
    assert isinstance(reply, Reply)
    folder = SiteFolder(sites / "site1")
    assert reply.num_samples == here.trainer.num_samples == sum(len(case.image) for case in folder.cases("training"))
    memory = here.memory.read(0)
    assert torch.equal(memory.received, task.parameters)
    assert torch.equal(reply.update, memory.trained - memory.received)
    flat.load(here.trainer.network, task.parameters, task.buffers)
    overlaps = evaluate(here.trainer.network, folder.cases("validation"), ("prostate",))
    assert mean_dice(reply.overlaps) == pytest.approx(mean_dice(overlaps))
    assert reply.log == Ledger(here.memory.path / SITE_LOG).records[-1]["hash"]


def test_what_changed_since_a_round_it_does_not_remember_is_a_failure_and_no_error(site):
    here = site()
    sparse = SparseUpdate(torch.tensor([0], dtype=torch.int32), torch.tensor([1.0]))
    assert here.answer(replace(make_task(here, 1), parameters=torch.empty(0), changes=sparse)) == Failure(LOST_MEMORY)


def test_enrolment_says_how_much_the_site_holds_and_whose_word_it_is(site, sites):
    here = site(certificate="PEM")
    answer = here.answer(EnrolmentTask(0, "head"))
    assert isinstance(answer, Enrolment)
    (entry,) = Ledger(here.memory.path / SITE_LOG).records
    assert entry.items() >= {"work": "enrol", "round": 0, "ledger": "head", **recorded(answer.sealed())}.items()
    folder = SiteFolder(sites / "site1")
    assert answer.certificate == "PEM"
    for split in ("training", "validation", "testing"):
        assert answer.cases[split] == len(folder.cases(split))
    assert len(answer.fingerprint) == len(folder.cases("training"))


def test_what_a_filter_changed_is_what_the_site_remembers_to_have_sent(site):
    here = site()
    task = make_task(here)
    here.answer(task)
    sent = torch.full_like(task.parameters, 0.5)
    here.sent(task, sent)
    assert torch.equal(here.memory.read(0).model, task.parameters + sent)


def test_its_model_goes_to_nobody_who_has_no_part(site):
    here = site(participants=("site1", "site2"))
    assert here.give_model("stranger", 0) is None
    assert here.give_model("site2", 0) is None  # of FedAvg, models go by the server only
    asked = site("cycle", {"exchange": "peer", "warmup_by": "own", "warmup": 1}, participants=("site1", "site2"))
    assert asked.give_model("site2", 0) is not None
    assert asked.give_model("stranger", 0) is None


@pytest.mark.parametrize("asked", [False, True])
def test_what_it_trained_is_validated_where_the_run_asks(site, sites, asked):
    here = site(settings={"validate_trained": asked})
    reply = here.answer(make_task(here))
    memory = here.memory.read(0)
    flat.load(here.trainer.network, memory.trained, memory.buffers)
    after = evaluate(here.trainer.network, SiteFolder(sites / "site1").cases("validation"), ("prostate",))
    assert len(after) > 0
    assert [one.dice for one in reply.trained_overlaps] == [one.dice for one in after] * asked


@pytest.mark.parametrize(("split", "words"), [(SERVER_SPLIT, "--server-share"), ("testing", "prepare the site again")])
def test_a_split_without_cases_is_reported_with_what_to_do(site, monkeypatch, split, words):
    here = site("cffl")
    here.answer(make_task(here))
    monkeypatch.setitem(here.trainer.folder.splits, split, ())
    round, purpose = (0, Purpose.ROUND) if split == SERVER_SPLIT else (here.config.rounds, Purpose.FINAL)
    with pytest.raises(BadInput, match=f"site site1: its {split} split is empty; .*{words}"):
        here.answer(evaluation(here, split, purpose, round))


def test_statistics_are_estimated_on_training_images_where_the_run_has_it_so(site):
    here = site(settings={"statistics": "recalibrated"})
    task = evaluation(here, "training", Purpose.ESTIMATE)
    answer = here.answer(task)
    assert (answer.overlaps, answer.losses.shape) == ((), (0, 0))
    flat.load(here.trainer.network, task.models[0], task.buffers[0])
    estimate_statistics(here.trainer.network, here.trainer.samples)
    expected = flat.get_buffers(here.trainer.network)
    assert all(torch.equal(answer.buffers[name], value) for name, value in expected.items())
    assert any(not torch.equal(task.buffers[0][name], value) for name, value in expected.items())
    assert site().answer(task) == Failure(NOT_FOR_OTHERS)


@pytest.mark.parametrize(("method", "split"), [("cffl", SERVER_SPLIT), ("fedce", "validation")])
def test_candidates_are_evaluated_with_statistics_estimated_for_them_where_the_run_has_it_so(
    site, monkeypatch, method, split
):
    """Statistics of a model that nobody trained say nothing: here they are those of images 1000 times as bright.

    On validation patients it is the models without a site, and what observers ask for.
    """
    here = site(method, {"statistics": "recalibrated", "share": True})
    monkeypatch.setitem(here.trainer.folder.splits, SERVER_SPLIT, here.trainer.folder.cases("validation"))
    here.answer(make_task(here))
    task = evaluation(here, split)
    wrong = {name: value + 1000 for name, value in task.buffers[0].items()}
    answer = here.answer(replace(task, buffers=(wrong,)))
    flat.load(here.trainer.network, task.models[0], wrong)
    estimate_statistics(here.trainer.network, here.trainer.samples)
    expected = evaluate(here.trainer.network, here.trainer.folder.cases("validation"), ("prostate",))
    assert [one.dice for one in answer.overlaps[0]] == [one.dice for one in expected]


def test_importance_of_neurons_is_measured_and_logged(site, monkeypatch):
    here = site("fedsac", {"importance": "taylor"})
    monkeypatch.setitem(here.trainer.folder.splits, SERVER_SPLIT, here.trainer.folder.cases("validation"))
    model, buffers = flat.get_parameters(here.trainer.network), flat.get_buffers(here.trainer.network)
    images = min(16, len(Slices(here.trainer.folder.cases("validation"))))
    answer = here.answer(ImportanceTask(1, SERVER_SPLIT, model, buffers, "taylor", 16))
    assert isinstance(answer, Importance)
    assert (answer.round, answer.images) == (1, images)
    (entry,) = Ledger(here.memory.path / SITE_LOG).records
    assert (entry["split"], entry["models"], entry["order"]) == (SERVER_SPLIT, 1, "taylor")


def test_a_round_that_is_over_is_not_trained_again_and_one_cut_short_is(site):
    here = site()
    for task in [*[make_task(here, 0)] * 2, make_task(here, 2)]:  # absent from round 1
        assert isinstance(here.answer(task), Reply)
    before = here.memory.read(2).trained
    assert here.answer(make_task(here, 1)) == Failure(OUT_OF_ORDER)
    assert torch.equal(here.memory.read(2).trained, before)


def test_a_model_of_its_own_is_what_it_tests_and_lies_among_the_runs(site):
    here = site("ditto")
    here.answer(make_task(here))
    own, _ = here.memory.read(0).own
    task = Evaluation(here.config.rounds, "testing", torch.empty(1, 0), ONE, ({},), ONE, purpose=Purpose.FINAL)
    answer = here.answer(task)
    assert isinstance(answer, Evaluated)
    saved = torch.load(here.memory.path.parents[1] / "models" / "site1.pt", weights_only=True)
    first = next(iter(saved))
    assert torch.equal(saved[first].flatten(), own[: saved[first].numel()])


def test_weights_of_peers_are_remembered_until_they_change(site, monkeypatch):
    here, given = site(), iter([{"B": 0.1, "C": 0.2}, {"C": 0.3}])
    model, buffers = flat.get_parameters(here.trainer.network), flat.get_buffers(here.trainer.network)
    monkeypatch.setattr(
        here.trainer,
        "learn",
        lambda task, received, memory, question: Learned(0 * model, received, buffers, 0.5, weights=next(given)),
    )
    for round in (0, 1):
        here.answer(make_task(here, round))
    assert here.memory.read(1).weights == {"B": 0.1, "C": 0.3}


@pytest.fixture
def reporting(site):
    """A site whose method is asked to report, the task and what it is shown.

    The site trained statistics of 8 in the round before, those of the task are of 5.
    """

    def report(weight, data_share, **settings):
        here, shown = site(settings=settings), []
        here.trainer.method = SimpleNamespace(
            asks=("minus_error",), report=lambda view: shown.append(view) or {"seen": 1.0}
        )
        measures = SimpleNamespace(measure=lambda view, own: shown.append(own) or {"measured": 2.0})
        here.trainer.can = replace(here.can, leave_one_out=measures)
        here.trainer._validation_dice = flat.get_buffers  # of the network: what it would be evaluated with
        model, buffers = flat.get_parameters(here.trainer.network), flat.get_buffers(here.trainer.network)
        trained, mean = ({name: torch.full_like(value, to) for name, value in buffers.items()} for to in (8, 5))
        here.memory.remember(0, Memory(model + 1, model + 2, trained))
        task = Task(1, model, mean, weight=weight, data_share=data_share)
        values = here.answer(task).values
        assert values == {"seen": 1.0} | ({"measured": 2.0} if len(shown) == 2 else {})
        return here, task, *shown

    return report


@pytest.mark.parametrize(
    ("settings", "others"),
    [
        ({"statistics": "mean"}, 4.0),  # (5 - 8/4) / (1 - 1/4), by the share of the images
        ({"statistics": "weights"}, 2.0),  # (5 - 8/2) / (1 - 1/2), by the weight
        ({"statistics": "own"}, 5.0),  # the site's own are not the others'
        ({"statistics": "frozen", "frozen_from": 1}, 4.0),  # of round 0, still the mean
        ({"statistics": "frozen"}, 5.0),
    ],
)
def test_a_method_is_shown_the_sites_part_in_the_model_and_the_others_statistics(reporting, settings, others):
    here, task, view, own = reporting(0.5, 0.25, **settings)
    assert torch.equal(view.received, task.parameters)
    assert torch.equal(own.previous, task.parameters + 1)
    assert torch.equal(own.trained, task.parameters + 2)
    assert own.weight == 0.5
    buffers = own.validation_dice(task.parameters - 1)
    assert torch.equal(flat.get_parameters(here.trainer.network), task.parameters - 1)
    means = torch.cat([value for name, value in buffers.items() if name.endswith("running_mean")])
    assert means.unique().tolist() == pytest.approx([others])


@pytest.mark.parametrize(("weight", "data_share"), [(None, None), (1.0, 0.5), (0.5, 1.0)])
def test_a_model_without_its_part_or_without_others_has_none_to_show(reporting, weight, data_share):
    _, _, view = reporting(weight, data_share)  # nothing else
    assert view.training_losses().shape == (15,)  # of each training image


@pytest.mark.parametrize(("method", "away", "own"), [("ditto", 3, True), ("fedavg", 3, False), ("ditto", 1, True)])
def test_what_a_method_keeps_at_a_site_outlasts_rounds_without_it(site, monkeypatch, method, away, own):
    here, seen = site(method), list[Memory | None]()
    model, buffers = flat.get_parameters(here.trainer.network), flat.get_buffers(here.trainer.network)
    here.memory.remember(0, Memory(model, model + 1, buffers, own=(model + 2, buffers) if own else None))
    learn = LocalRound.learn

    def spying(self, received, memory):
        seen.append(memory)
        return learn(self, received, memory)

    monkeypatch.setattr(LocalRound, "learn", spying)
    here.trainer.learn(make_task(here, round=away), model, here.memory.read(away - 1), "")
    (memory,) = seen
    assert (memory is not None) == own
    assert memory is None or torch.equal(memory.own[0], model + 2)
