"""Test what a machine refuses: classes that a job names, and each rule of a site's manifest.

Whole federations do so in test_session.py.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvflare.apis.fl_constant import SystemConfigs
from nvflare.fuel.utils.config_service import ConfigService

from fedmerit.engines.nvflare.poc import allow_plan
from fedmerit.engines.nvflare.recipe import build_site_policy
from fedmerit.errors import BadInput
from fedmerit.schema.configuration.run import RunConfiguration, make_configuration
from fedmerit.schema.configuration.settings import TASK_RECIPES, TASKS
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.site.policy import JobRules, Manifest
from fedmerit_deploy.site_policy import ClassValidator, SitePolicy, check_rules, count_images, refusals

SITE = Manifest(site="A")
JOB = Path(__file__).resolve().parents[2] / "jobs" / "fedce_prostate" / "app"
SIDES = ("client", "server")
FOREIGN = "nvflare.app_common.np.np_trainer.NPTrainer"  # on NVFlare's own list of allowed classes, not on ours


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


def test_plan_that_copies_an_image_breaks_four_rules():
    sentences = refusals(SITE, hostile(), 4, images=1000)
    assert [text.partition(":")[0] for text in sentences] == [
        "architectures", "arguments", "least_images", "optimizers",
    ]  # fmt: skip
    for text, words in zip(sentences, ("Generator", "latent_shape", "1 different images", "sgd"), strict=True):
        assert words in text
        assert "local/fedmerit.json" in text
        assert "\n" not in text


def test_site_policy_raises_every_refusal(own_sites, monkeypatch):
    monkeypatch.setenv("FEDMERIT_SITES", str(own_sites))
    with pytest.raises(BadInput, match="architectures: the job asks for Generator") as raised:
        SitePolicy(Manifest(site="site1")).check(hostile(), 4)
    assert "optimizers: the job asks for sgd" in str(raised.value)
    SitePolicy(Manifest(site="site1")).check(plan(), 4)


@pytest.mark.parametrize("task", sorted(TASK_RECIPES))
@pytest.mark.parametrize("recipe", ["default", "quick"])
def test_recipes_pass_default_rules(task, recipe):
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
def test_rule_refuses_until_widened(settings, rule, wider):
    config = plan(**settings)
    assert refused(config) == [rule]
    assert refused(config, **wider) == []


def test_plain_sgd_needs_many_images():
    config = plan(optimizer="sgd")
    assert refused(config, images=300) == []
    assert refused(config, images=300, sgd_images=0) == ["optimizers"]


def test_repeated_image_counts_once():
    assert refused(plan(steps=100, batch_size=8), images=3) == ["least_images"]
    assert refused(plan(epochs=100), images=3) == ["least_images"]


def test_count_images_of_plan_that_prefers_organs(own_sites):
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
def test_evaluation_caps_refuse_only_needed_evaluations(method, caps, rules):
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
def test_studies_allow_named_study_in_its_period(studies, study, rules):
    config = RunConfiguration.from_dict(replace(plan(), study=study).to_dict())
    assert (config.study, "study" in config.to_dict()) == (study, bool(study))
    assert refused(config, studies=studies) == rules


def test_code_of_others_needs_approval():
    named = replace(plan().network, architecture="pytest:Item")  # of a small package
    config = replace(plan(), network=named)
    assert refused(config) == ["parts"]
    assert refusals(Manifest(site="A", parts="all"), config, 4, 20) == []


@pytest.mark.parametrize("config", [hostile(), plan("cycle", keep_updates=False), plan(keep_updates=True, lr=1)])
def test_widened_rules_allow_every_plan(config):
    assert refusals(Manifest(site="A", jobs=allow_plan(config, 4), parts="all"), config, 4, 1) == []


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
        place[last] = part
        path.write_text(json.dumps(content))
        told = {one: ClassValidator(f"config_fed_{one}.json").validate(str(tmp_path / "app")) for one in SIDES}
        assert [facts for _, facts in told.values()] == [{}, {}]
        assert [one for one in SIDES if told[one][0]] in ([], [side])  # the other is not concerned
        return told[side][0]

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
    told = reason(side, where, {"id": "part", key: FOREIGN, "args": {}})
    assert told == f"Component '{FOREIGN}' at config path '{where}' is not in allow_list"


def test_validator_leaves_job_with_code_to_byoc_right(reason, tmp_path):
    (tmp_path / "app/custom").mkdir()
    assert reason("client", "executors.0.executor", {"path": FOREIGN}) == ""
