"""What any job may ask of a site: every rule of its manifest, and what the page of a job says."""

from dataclasses import replace

import numpy as np
import pytest

from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS, OWN
from fedmerit.schema.configuration.run import RunConfiguration, make_configuration
from fedmerit.schema.configuration.settings import TASK_RECIPES, TASKS
from fedmerit.schema.egress_list import LISTED
from fedmerit.trainers.monai.data import SiteFolder
from fedmerit.trainers.monai.manifest import JobRules, Manifest
from fedmerit_deploy.job_rules import allowing, check_rules, count_images, refusals, require_allowed
from fedmerit_deploy.plan_description import Job, describe_job, parts_at_the_end, parts_before, parts_each_round

SITE = Manifest(site="A")


def plan(method="fedavg", task="prostate", keep_updates=False, values=(), share_models=False, **settings):
    network = {"in_channels": TASKS[task]["in_channels"], "labels": TASKS[task]["labels"]}
    settings = {"guard": "on", **settings}
    config = make_configuration(method, task, 30, 0, network, settings, values, keep_updates)
    return replace(config, share_models=share_models)


def hostile():
    """The plan of which an update was a patient's image: one image, one step, a first layer that sees all of it."""
    shape = {"latent_shape": [1024], "start_shape": [8, 32, 32], "channels": [8, 1], "strides": [1, 1]}
    content = plan(optimizer="sgd", steps=1, batch_size=1).to_dict()
    content["network"] |= {"architecture": "Generator", "arguments": shape}
    return RunConfiguration.from_dict(content)


def refused(config, images=20, sites=4, **rules):
    manifest = Manifest(site="A", jobs=JobRules(**rules))
    return [check.rule for check in check_rules(manifest, config, sites, images) if not check.passes]


def test_the_plan_that_takes_an_image_is_refused_by_each_rule_it_breaks():
    sentences = refusals(SITE, hostile(), 4, images=1000)
    assert [text.partition(":")[0] for text in sentences] == [
        "architectures", "arguments", "least_images", "optimizers",
    ]  # fmt: skip
    for text, words in zip(sentences, ("Generator", "latent_shape", "1 different images", "sgd"), strict=True):
        assert words in text
        assert "local/fedmerit.json" in text
        assert "\n" not in text
    with pytest.raises(BadInput, match="architectures: the job asks for Generator"):
        require_allowed(SITE, hostile(), 4, 1000)


@pytest.mark.parametrize("task", sorted(TASK_RECIPES))
@pytest.mark.parametrize("recipe", ["default", "quick"])
def test_the_recipes_are_allowed(task, recipe):
    for images in (None, 8, 1000):
        assert refused(plan("fedce", task, recipe=recipe), images) == []


@pytest.mark.parametrize(
    ("settings", "rule", "wider"),
    [
        ({"architecture": "UNETR"}, "architectures", {"architectures": ("UNETR",)}),
        ({"arguments": {"kernel_size": [[33, 33]]}}, "arguments", {"arguments": ("kernel_size",)}),
        ({"steps": 3, "batch_size": 2}, "least_images", {"least_images": 6}),
        ({"optimizer": "sgd"}, "optimizers", {"optimizers": ("sgd",)}),
        ({"optimizer": "sgd"}, "optimizers", {"sgd_images": 20}),
        ({"lr": 10}, "largest_lr", {"largest_lr": 10.0}),
        ({"optimizer": "adamw", "weight_decay": 1000}, "largest_weight_decay", {"largest_weight_decay": 1000.0}),
        ({"keep_updates": True}, "keep_updates", {"keep_updates": True}),
        ({"method": "cycle", "share_models": True}, "share_models", {"share_models": True}),
        ({"share_models": True}, "share_models", {"share_models": True}),
    ],
)
def test_each_rule(settings, rule, wider):
    config = plan(**settings)
    assert refused(config) == [rule]
    assert refused(config, **wider) == []


def test_plain_sgd_needs_many_images():
    config = plan(optimizer="sgd")
    assert refused(config, images=300) == []
    assert refused(config, images=300, sgd_images=0) == ["optimizers"]


def test_one_image_seen_often_is_one_image():
    assert refused(plan(steps=100, batch_size=8), images=3) == ["least_images"]
    assert refused(plan(epochs=100), images=3) == ["least_images"]


def test_a_plan_that_prefers_organs_sees_only_images_with_one(own_sites):
    folder = SiteFolder(own_sites / "site1")
    for case in folder.cases("training")[1:]:
        np.save(case.label_file, np.zeros_like(case.label))
    config = plan(organ_share=1.0)
    assert count_images(folder, plan()) == 15
    assert refused(config, count_images(folder, config)) == ["least_images"]


@pytest.mark.parametrize(
    ("method", "caps", "rules"),
    [
        ("fedavg", {"validation": 1}, ["evaluations"]),
        ("fedavg", {"validation": 0}, ["evaluations"]),
        ("fedavg", {"validation": 2, "testing": 8}, []),
        ("fedavg", {"testing": 1}, ["evaluations"]),
        ("fedavg", {"testing": 0, "server_validation": 0}, []),  # the run does without
    ],
)
def test_evaluations(method, caps, rules):
    assert refused(plan(method), evaluations=caps) == rules


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
def test_a_site_takes_part_in_its_studies_while_they_last(studies, study, rules):
    config = RunConfiguration.from_dict(replace(plan(), study=study).to_dict())
    assert (config.study, "study" in config.to_dict()) == (study, bool(study))
    assert refused(config, studies=studies) == rules


def test_code_of_others_has_to_be_approved():
    named = replace(plan().network, architecture="pytest:Item")  # of a small package
    config = replace(plan(), network=named)
    assert refused(config) == ["parts"]
    assert refusals(Manifest(site="A", parts="all"), config, 4, 20) == []


@pytest.mark.parametrize("config", [hostile(), plan("cycle", keep_updates=False), plan(keep_updates=True, lr=1)])
def test_a_user_may_do_all_on_their_own_machine(config):
    assert refusals(Manifest(site="A", jobs=allowing(config, 4), parts="all"), config, 4, 1) == []


def test_every_part_of_the_egress_list_is_on_the_page_of_some_job():
    named = set()
    settings = [
        {"guard": "on"},
        {"guard": "off"},
        {"norm": "batch", "final_model": "selected", "validate_trained": True},
    ]
    for method in OWN:
        optimizer = {"optimizer": "sgd"} if method == "scaffold" else {}
        for more in settings:
            try:
                config = plan(method, **optimizer, **more)
            except BadInput:  # the method needs the guard
                continue
            for filters in ((), ("he",)):
                job = Job("j", config.to_dict(), filters)
                parts = [*parts_before(config), *parts_each_round(job, config), *parts_at_the_end(config)]
                named |= {name for name, _ in parts}
                assert dict(describe_job(job, config))["never leaves"]
    peers = plan("cycle", exchange="peer", warmup_by="own")
    named |= {name for name, _ in parts_each_round(Job("j", {}), peers)}
    assert named == set(LISTED) - {"survey"}
    assert set(OWN) <= set(METHODS)
