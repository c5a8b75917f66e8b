"""Test what a machine refuses: classes that a job names, and each rule of a site's manifest.

Whole federations do so in test_session.py.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvflare.apis.fl_constant import SystemConfigs
from nvflare.fuel.utils.config_service import ConfigService
from one_in import one_in
from refusals import broken_rules

from fedmerit.engines.nvflare.poc import allow_plan
from fedmerit.engines.nvflare.recipe import build_site_policy
from fedmerit.errors import BadInput, Refused
from fedmerit.reasons import REFUSED_BY, RefusedByRules, reason_of
from fedmerit.schema.configuration.run import RunConfiguration, make_configuration
from fedmerit.schema.configuration.settings import TASK_RECIPES, TASKS
from fedmerit.schema.messages import SAME_MODEL
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.site.job_ledger import JobLedger, job_family
from fedmerit.site.order_secret import make_secret, name_job
from fedmerit.site.policy import JobRules, Manifest
from fedmerit.trainers.factory import describe_images, initial_network, measure_network
from fedmerit.trainers.trainer import TrainingImages
from fedmerit_deploy.site_policy import ClassValidator, SitePolicy, check_rules

SITE = Manifest(site="A")
JOB = Path(__file__).resolve().parents[2] / "jobs" / "fedce_prostate" / "app"
SIDES = ("client", "server")
SGD = {"optimizer": "sgd", "lr": 0.1, "schedule": "constant"}
FOREIGN = "nvflare.app_common.np.np_trainer.NPTrainer"  # on NVFlare's own list of allowed classes, not on ours


@pytest.fixture(autouse=True, scope="module")
def networks_are_measured_once():
    """Most plans have one network, which takes longer to build than all the rules."""
    measured = {}

    def measure(network, sides):
        key = repr((network, tuple(sides)))
        if key not in measured:
            measured[key] = measure_network(network, sides)
        return measured[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedmerit_deploy.site_policy.measure_network", measure)
        yield


def plan(method="fedavg", task="prostate", keep_updates=False, values=(), share_models=False, **settings):
    network = {"in_channels": TASKS[task]["in_channels"], "labels": TASKS[task]["labels"]}
    settings = {"guard": "on", "batch_size": 4, **settings}
    config = make_configuration(method, task, 30, 0, network, settings, values, keep_updates)
    return replace(config, share_models=share_models)


def hostile():
    """The plan of which an update was a patient's image: one image, one step, a first layer that sees all of it."""
    shape = {"latent_shape": [1024], "start_shape": [8, 32, 32], "channels": [8, 1], "strides": [1, 1]}
    content = plan(**SGD, steps=1, batch_size=1).to_dict()
    content["network"] |= {"architecture": "Generator", "arguments": shape}
    return RunConfiguration.from_dict(content)


def site_images(images, patients=None, sides=(128, 128)):
    """Images, as many of each patient; None: not known."""
    if images is None:
        return None
    patients = patients or images
    return TrainingImages(images, (images // patients,) * patients, images * sides[0] * sides[1], sides)


def refused(config, images=20, sites=4, patients=None, sides=(128, 128), **rules):
    manifest, known = Manifest(site="A", jobs=JobRules(**rules)), site_images(images, patients, sides)
    return [check.rule for check in check_rules(manifest, config, sites, known) if not check.passes]


def test_plan_that_copies_an_image_breaks_six_rules():
    sentences = broken_rules(SITE, hostile(), 4, site_images(1000))
    assert [text.partition(":")[0] for text in sentences] == [
        "architectures", "arguments", "least_images", "least_patients", "least_batch", "optimizers",
    ]  # fmt: skip
    named = ("Generator", "latent_shape", "1 different images", "1 different patients", "1 images a step", "sgd")
    for text, words in zip(sentences, named, strict=True):
        assert words in text
        assert "local/fedmerit.json" in text
        assert "\n" not in text


def test_site_policy_raises_every_refusal(own_sites, monkeypatch):
    monkeypatch.setenv("FEDMERIT_SITES", str(own_sites))
    with pytest.raises(BadInput, match="architectures: the job asks for Generator") as raised:
        SitePolicy(Manifest(site="site1")).check(hostile(), 4)
    assert "optimizers: the job asks for sgd" in str(raised.value)
    rules = JobRules(least_patients=3, least_bottom=2, parameters_per_voxel=100.0)
    SitePolicy(Manifest(site="site1", jobs=rules)).check(plan(), 4)


@pytest.mark.parametrize("task", sorted(TASK_RECIPES))
@pytest.mark.parametrize("recipe", ["default", "quick"])
def test_recipes_pass_default_rules(task, recipe):
    for images in (None, 10, 1000):
        assert refused(plan("fedce", task, recipe=recipe), images) == []


@pytest.mark.parametrize(
    ("settings", "rule", "wider"),
    [
        ({"architecture": "HighResNet"}, "architectures", {"architectures": ("HighResNet",)}),
        ({"arguments": {"trans_bias": True}}, "arguments", {"arguments": ("trans_bias",)}),
        ({"steps": 1, "batch_size": 7}, "least_images", {"least_images": 6}),
        ({"batch_size": 3}, "least_batch", {"least_batch": 3}),
        ({"lr": 1e-4, "schedule": "cosine"}, "least_lr", {"least_lr": 1e-8}),
        ({"lr": 1e-9, "schedule": "constant"}, "least_lr", {"least_lr": 1e-9}),
        ({"schedule": "step", "decay": 1e-9, "decay_every": 20}, "least_lr", {"least_lr": 1e-15}),
        ({"architecture": "unet", "depth": 7, "width": 2}, "least_bottom", {"least_bottom": 2}),
        ({"width": 32}, "parameters_per_voxel", {"parameters_per_voxel": 100.0}),
        (SGD, "optimizers", {"optimizers": ("sgd",)}),
        (SGD, "optimizers", {"sgd_images": 20}),
        ({"lr": 10}, "largest_lr", {"largest_lr": 10.0}),
        ({"optimizer": "adamw", "weight_decay": 1000}, "largest_weight_decay", {"largest_weight_decay": 1000.0}),
        ({"keep_updates": True}, "keep_updates", {"keep_updates": True}),
        ({"method": "cycle", "share_models": True}, "share_models", {"share_models": True}),
        ({"share_models": True}, "share_models", {"share_models": True}),
    ],
)
def test_rule_refuses_until_widened(settings, rule, wider):
    config = plan(**settings)
    assert refused(config) == [rule]
    assert refused(config, **wider) == []


FEW = ["least_images", "least_patients"]


@pytest.mark.parametrize(
    ("settings", "site", "broken"),
    [
        (SGD, {"images": 300}, []),
        (SGD, {"images": 300, "sgd_images": 0}, ["optimizers"]),
        (SGD | {"lr": 1e-4}, {"images": 300}, ["sgd_least_lr"]),
        (SGD | {"lr": 1e-4}, {"images": 300, "sgd_least_lr": 1e-4}, []),
        ({"steps": 100, "batch_size": 8}, {"images": 3}, FEW),  # a repeated image counts once
        ({"epochs": 100}, {"images": 3}, FEW),
        ({}, {"images": 300, "patients": 3}, ["least_patients"]),
        ({"steps": 2}, {"images": 300, "patients": 4}, ["least_patients"]),  # of 8 images, of 3.6 patients
        ({"steps": 2}, {"images": 300, "patients": 4, "least_patients": 3}, []),
        ({"steps": 2}, {"images": 300, "patients": 5}, []),
        ({"arguments": {"kernel_size": [[33, 33]]}}, {"arguments": ("kernel_size",)}, ["least_bottom"]),  # not built
    ],
)
def test_rules_depend_on_images_and_patients(settings, site, broken):
    assert refused(plan(**settings), **site) == broken


def test_images_of_plan_that_prefers_organs_are_those_with_labels(own_sites):
    folder = SiteFolder(own_sites / "site1")
    for case in folder.cases("training")[1:]:
        np.save(case.label_file, np.zeros_like(case.label))
    images = describe_images(folder, plan())
    assert images == TrainingImages(15, (5, 5, 5), 15 * 32 * 32, (32, 32))
    labelled = describe_images(folder, plan(organ_share=1.0))
    assert labelled == TrainingImages(3, (3,), 15 * 32 * 32, (32, 32))  # generated glands leave out the end slices
    reported = [text.partition(":")[0] for text in broken_rules(SITE, plan(organ_share=1.0), 4, labelled)]
    assert reported[:2] == ["least_images", "least_patients"]


def test_patients_behind_images_are_the_expected_number():
    images = TrainingImages(20, (10, 5, 3, 2), 1, (1, 1))
    assert [images.count_patients(number) for number in (None, 20, 99, 1)] == [4, 4, 4, 1]
    owners, random = np.repeat([0, 1, 2, 3], images.patients), np.random.default_rng(0)
    for number in (3, 6, 12):
        drawn = [len(set(random.choice(owners, number, replace=False))) for _ in range(4000)]
        assert images.count_patients(number) == int(np.mean(drawn))


@pytest.mark.parametrize(
    ("settings", "sides", "bottom"),
    [
        ({}, (64, 64), 8),  # nnU-Net's: sides of 4 are not halved
        ({"depth": 3}, (16, 32), 8),
        ({"architecture": "unet", "depth": 5, "norm": "group"}, (32, 32), 2),
        ({"architecture": "segresnet"}, (128, 128), 8),
        ({"patch": (16, 32, 32), "depth": 4}, (16, 32, 32), 4),
    ],
)
def test_smallest_feature_maps_are_those_that_convolutions_see(settings, sides, bottom):
    parameters, found = measure_network(plan(**settings).network, sides)
    assert found == bottom
    assert parameters == sum(one.numel() for one in initial_network(plan(**settings).network, 0).parameters())


@pytest.fixture
def policy(own_sites, monkeypatch, tmp_path) -> SitePolicy:
    """The rules of a site with its ledger, loose in what is not about other jobs."""
    monkeypatch.setenv("FEDMERIT_SITES", str(own_sites))
    rules = {"least_patients": 1, "least_bottom": 1, "parameters_per_voxel": 1e6, "largest_lr": 1.0, "least_images": 1}
    rules |= {"least_batch": 1, "optimizers": ("adam", "sgd"), "sgd_least_lr": 1e-30, "jobs_per_study": 3}
    return SitePolicy(Manifest(site="site1", jobs=JobRules(**rules)), JobLedger(tmp_path / "job_ledger.jsonl"))


def train(policy: SitePolicy, config, job: str) -> None:
    policy.check(config, 4, job)
    policy.note_training(config, job, 0, "0" * 64)


def test_second_of_two_jobs_that_differ_by_one_step_is_refused(policy):
    """Jobs of which the difference is the step of one image: all of N images, and N - 1 steps of one."""
    one = {"optimizer": "sgd", "batch_size": 1, "architecture": "unet", "norm": "group", "lr": 0.1}
    train(policy, plan(**one, epochs=1), "A")
    with pytest.raises(RefusedByRules, match="repeated_jobs") as reported:
        policy.check(plan(**one, steps=14), 4, "B")
    assert "what job A trained here on" in str(reported.value)
    assert reason_of(reported.value) == REFUSED_BY.format("repeated_jobs")
    assert "it differs from it only in steps (0, 14)" in str(reported.value)
    assert f"fedmerit deploy site allow {plan(**one, steps=14).digest}" in str(reported.value)


@pytest.mark.parametrize(
    "change",
    one_in(4, [
        {"steps": 3}, {"epochs": 2}, {"batch_size": 5}, {"lr": 0.00101}, {"schedule": "cosine"}, {"clip_norm": 1e9},
        {"weight_decay": 1e-12}, {"augmentation": "none"}, {"mirrored": False}, {"norm": "instance"}, {"guard": "off"},
        {"residual_units": 3}, {"optimizer": "adamw"},  # a dynunet has no residual units
        {"arguments": {"res_block": False}}, {"organ_share": 0.01}, {"method": "fedprox"}, {"validate_trained": True},
    ]),
)  # fmt: skip
def test_related_jobs_need_the_data_managers_word(policy, change):
    train(policy, plan(), "A")
    with pytest.raises(BadInput, match="repeated_jobs"):
        policy.check(plan(**change), 4, "B")


@pytest.mark.parametrize("change", [{"seed": 1}, {"rounds": 31}, {"study": "other"}, {}])
def test_jobs_of_other_seeds_and_rounds_are_related(policy, change):
    assert job_family(replace(plan(), fold=0)) == job_family(plan())
    train(policy, plan(), "A")
    with pytest.raises(BadInput, match=r"differs from it only in|has the same plan"):
        policy.check(replace(plan(), **change), 4, "B")


@pytest.mark.parametrize("change", [{"width": 16}, {"architecture": "unet"}, {"loss": "dice"}, {"optimizer": "sgd"}])
def test_jobs_of_other_networks_losses_and_optimizers_are_not_related(policy, change):
    train(policy, plan(), "A")
    policy.check(plan(**change), 4, "B")


def test_word_is_for_one_plan_and_as_many_jobs(policy):
    train(policy, plan(), "A")
    policy.ledger.allow(plan(steps=3).digest, 1)
    with pytest.raises(BadInput, match="repeated_jobs"):
        policy.check(plan(steps=4), 4, "B")
    train(policy, plan(steps=3), "B")
    policy.check(plan(steps=3), 4, "B")  # resumed
    policy.note_training(plan(steps=3), "B", 1, "1" * 64)
    with pytest.raises(BadInput, match="repeated_jobs"):
        policy.check(plan(steps=3), 4, "C")
    with pytest.raises(BadInput, match="repeated_jobs"):
        policy.check(plan(steps=4), 4, "B")  # another plan under the id of a job that trained


def test_job_that_says_it_resumes_one_whose_folder_is_gone_needs_the_word(policy, tmp_path):
    """The site draws another secret, so the same images come in another order: as of two jobs."""
    make_secret(tmp_path / "own")
    train(policy, plan(), name := name_job("A", tmp_path / "own"))
    policy.check(plan(), 4, name_job("A", tmp_path / "own"))  # resumed
    shutil.rmtree(tmp_path / "own")
    with pytest.raises(RefusedByRules, match="repeated_jobs"):
        policy.check(plan(), 4, name_job("A", tmp_path / "own"))
    make_secret(tmp_path / "own")
    assert name_job("A", tmp_path / "own") != name
    with pytest.raises(RefusedByRules, match="repeated_jobs"):
        policy.note_training(plan(), name_job("A", tmp_path / "own"), 0, "0" * 64)


def test_ledger_of_jobs_of_which_a_line_was_taken_out_allows_no_job(policy):
    train(policy, plan(), "A")
    policy.note_training(plan(), "A", 1, "1" * 64)
    lines = policy.ledger.path.read_text().splitlines(keepends=True)
    for changed in ([lines[0], *lines[2:]], [lines[0].replace('"A"', '"B"'), *lines[1:]]):
        policy.ledger.path.write_text("".join(changed))
        with pytest.raises(BadInput, match=r"job_ledger\.jsonl, line \d: was changed, or follows another line"):
            policy.check(plan(steps=3), 4, "B")


def test_model_of_two_rounds_of_the_job_is_not_trained_again(policy):
    """Twice it may be: FedSAC begins again after its local-only rounds."""
    train(policy, plan(), "A")
    policy.note_training(plan(), "A", 0, "0" * 64)  # as after a crash
    policy.note_training(plan(), "A", 1, "1" * 64)
    policy.note_training(plan(), "A", 2, "0" * 64)
    with pytest.raises(Refused, match=r"round 3, with the model of rounds 0 and 2") as refused:
        policy.note_training(plan(), "A", 3, "0" * 64)
    assert refused.value.reason == SAME_MODEL
    assert [entry.round for entry in policy.ledger.entries() if entry.received] == [0, 0, 1, 2]


def test_rule_lets_related_jobs_pass(policy):
    train(policy, plan(), "A")
    rules = policy.manifest.jobs.model_copy(update={"repeated_jobs": True})
    SitePolicy(policy.manifest.model_copy(update={"jobs": rules}), policy.ledger).check(plan(), 4, "B")


def test_jobs_of_a_study_are_counted(policy):
    studies = dict.fromkeys(("x", "y"), "2000-01-01/2999-12-31")
    rules = policy.manifest.jobs.model_copy(update={"studies": studies})
    policy.manifest = policy.manifest.model_copy(update={"jobs": rules})
    for number, width in enumerate((2, 3, 4)):
        train(policy, replace(plan(width=width), study="x"), str(number))
    with pytest.raises(BadInput, match="jobs_per_study: the job asks for job 4 of study x; allowed here: at most 3"):
        policy.check(replace(plan(width=5), study="x"), 4, "3")
    policy.check(replace(plan(width=5), study="y"), 4, "3")


def test_jobs_of_studies_that_the_rules_do_not_name_count_together(policy):
    """A plan may name any study: each would have jobs of its own."""
    for number, width in enumerate((2, 3, 4)):
        train(policy, replace(plan(width=width), study=f"study {number}"), str(number))
    with pytest.raises(BadInput, match="job 4 of studies that the rules do not name; allowed here: at most 3"):
        policy.check(replace(plan(width=5), study="another"), 4, "3")


def test_job_that_was_accepted_beside_a_related_one_trains_only_once(policy):
    """Two jobs that were both accepted before the first trained."""
    policy.check(plan(), 4, "A")
    policy.check(plan(steps=3), 4, "B")
    policy.note_training(plan(), "A", 0, "0" * 64)
    with pytest.raises(BadInput, match="repeated_jobs"):
        policy.note_training(plan(steps=3), "B", 0, "0" * 64)


def test_ledger_has_plan_model_and_images_of_every_round(policy, own_sites):
    config = plan()
    train(policy, config, "A")
    policy.note_training(config, "A", 1, "1" * 64)
    began, *rounds = policy.ledger.entries()
    assert (began.work, began.job, began.plan) == ("begin", "A", config.digest)
    assert [(entry.work, entry.round, entry.received, entry.images) for entry in rounds] == [
        ("train", 0, "0" * 64, 15),
        ("train", 1, "1" * 64, 15),
    ]
    assert {entry.folder for entry in rounds} == {SiteFolder(own_sites / "site1").digest}


def private(**settings):
    return plan(**{"dp_noise": 1.0, "dp_delta": 1e-3, "norm": "instance", "steps": 1, **settings})


def bounded(policy, largest):
    rules = policy.manifest.jobs.model_copy(update={"largest_epsilon": largest, "repeated_jobs": True})
    return SitePolicy(policy.manifest.model_copy(update={"jobs": rules}), policy.ledger)


def test_rule_of_epsilon_refuses_training_without_privacy(policy):
    with pytest.raises(BadInput, match="largest_epsilon: the job asks for training without differential privacy"):
        bounded(policy, 8).check(plan(), 4, "A")


def test_epsilon_of_all_jobs_is_bounded(policy):
    """ε grows with every round of every job; a job may not begin that would exceed the bound, nor train on."""

    def private_plan(**settings):
        return replace(private(**settings), rounds=6)

    asks = check_rules(bounded(policy, 1).manifest, private_plan(), 4, site_images(15, 5))
    (rule,) = [check for check in asks if check.rule == "largest_epsilon"]
    spent = float(re.search(r"ε ([\d.]+) at δ 0.001 over this job and 0 earlier ones", rule.requested).group(1))
    site = bounded(policy, 1.5 * spent)
    train(site, private_plan(), "A")  # one round of 6
    for round in range(1, 6):
        site.note_training(private_plan(), "A", round, f"{round:064}")
    with pytest.raises(BadInput, match="over this job and 1 earlier ones"):
        site.check(private_plan(dp_clip=2.0), 4, "B")
    site.note_training(private_plan(), "A", 5, f"{5:064}")  # the same round again, after a crash
    entry = list(site.ledger.entries())[-1]
    assert (entry.noise, entry.steps) == (1.0, 1)
    with pytest.raises(BadInput, match="largest_epsilon"):  # accepted before A had trained
        site.note_training(private_plan(dp_clip=2.0), "B", 0, "0" * 64)


def test_rule_of_epsilon_refuses_a_delta_that_a_patient_passes(policy):
    with pytest.raises(BadInput, match=r"dp_delta=0.5: site site1 trains on"):
        bounded(policy, 1e6).check(private(dp_delta=0.5), 4, "A")


def test_damaged_ledger_refuses_every_job(policy):
    train(policy, plan(), "A")
    policy.ledger.path.write_text("{}\n")
    with pytest.raises(BadInput, match="line 1: not an entry of the ledger of jobs"):
        policy.check(plan(width=2), 4, "B")


NOW, PAST, LATER = "2000-01-01/2999-12-31", "2000-01-01/2000-12-31", "2999-01-01/2999-12-31"


@pytest.mark.parametrize(
    ("studies", "study", "rules"),
    [
        ({}, "", []),
        ({}, "x", []),
        ({"x": NOW}, "x", []),
        ({"x": NOW}, "", ["studies"]),
        ({"x": NOW}, "y", ["studies"]),
        ({"x": PAST, "y": NOW}, "x", ["studies"]),
        ({"x": LATER}, "x", ["studies"]),
    ],
)
def test_studies_allow_named_study_in_its_period(studies, study, rules):
    config = RunConfiguration.from_dict(replace(plan(), study=study).to_dict())
    assert (config.study, "study" in config.to_dict()) == (study, bool(study))
    assert refused(config, studies=studies) == rules


def test_code_of_others_needs_approval():
    named = replace(plan().network, architecture="pytest:Item")  # of a small package
    config = replace(plan(), network=named)
    assert refused(config) == ["parts"]
    assert broken_rules(Manifest(site="A", parts="all"), config, 4) == []


@pytest.mark.parametrize("config", [hostile(), plan("cycle", keep_updates=False), plan(keep_updates=True, lr=1)])
def test_widened_rules_allow_every_plan(config):
    assert broken_rules(Manifest(site="A", jobs=allow_plan(config, 4), parts="all"), config, 4) == []


@pytest.fixture
def reason(tmp_path, monkeypatch) -> Callable[..., str]:
    """Why client or server refuse a job that names ``part`` at a place of their file of it."""
    monkeypatch.setitem(ConfigService._sections, SystemConfigs.RESOURCES_CONF, build_site_policy())
    shutil.copytree(JOB, tmp_path / "app")

    def refused(side: str, where: str = "note", part: Mapping[str, Any] | None = None) -> str:
        path = tmp_path / "app/config" / f"config_fed_{side}.json"
        content = place = json.loads(path.read_text())
        *keys, last = [int(key) if key.isdigit() else key for key in where.split(".")]
        for key in keys:
            place = place[key]
        place[slice(last, last + 1) if isinstance(place, list) else last] = [part] if isinstance(place, list) else part
        path.write_text(json.dumps(content))
        reported = {one: ClassValidator(f"config_fed_{one}.json").validate(str(tmp_path / "app")) for one in SIDES}
        assert [facts for _, facts in reported.values()] == [{}, {}]
        assert [one for one in SIDES if reported[one][0]] in ([], [side])  # the other is not concerned
        return reported[side][0]

    return refused


@pytest.mark.parametrize("side", SIDES)
def test_validator_accepts_exported_job(reason, side):
    assert reason(side) == ""


@pytest.mark.parametrize(
    ("side", "where"),
    [
        ("client", "executors.0.executor"),
        ("client", "executors.0.executor.args.inner"),
        ("client", "task_result_filters.1.filters.0"),
        ("server", "components.0"),
        ("server", "workflows.0"),
    ],
)
@pytest.mark.parametrize("key", ["path", "class_path"])
def test_validator_refuses_foreign_class(reason, side, where, key):
    reported = reason(side, where, {"id": "part", key: FOREIGN, "args": {}})
    assert reported == f"Component '{FOREIGN}' at config path '{where}' is not in allow_list"


def test_validator_leaves_job_with_code_to_byoc_right(reason, tmp_path):
    (tmp_path / "app/custom").mkdir()
    assert reason("client", "executors.0.executor", {"path": FOREIGN}) == ""
