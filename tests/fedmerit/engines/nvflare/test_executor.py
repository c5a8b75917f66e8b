"""A site refuses a job by its manifest's rules before any work; the server learns only that it did."""

from unittest.mock import MagicMock

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedmerit.engines.nvflare import executor
from fedmerit.reasons import REFUSED_BY
from fedmerit.schema.records import TRAIN
from fedmerit.site import machine_settings
from fedmerit.site.policy import JobRules, Manifest


@pytest.fixture
def context(sites, monkeypatch):
    """NVFlare's, at site1 of three."""
    monkeypatch.setenv(machine_settings.SITES, str(sites))
    made = MagicMock()
    made.get_identity_name.return_value = "site1"
    made.get_engine().get_clients.return_value = ["a", "b", "c"]
    return made


@pytest.fixture
def began(context, monkeypatch):
    """An executor that began a job, and what it logged."""

    def begin(plan, manifest):
        logged = []
        monkeypatch.setattr(executor.MeritExecutor, "_follow_manifest", lambda self, fl_ctx: manifest)
        monkeypatch.setattr(executor, "report_error", lambda own, error, what, fl_ctx: logged.append(str(error)))
        one = executor.MeritExecutor(plan)
        one.handle_event(EventType.START_RUN, context)
        return one, logged

    return begin


def plan(**training):
    network = {"in_channels": 1, "labels": ["prostate"], "architecture": training.pop("architecture", "unet")}
    return {
        "method": "fedavg", "task": "prostate", "rounds": 2, "seed": 0, "network": network, "training": training,
    }  # fmt: skip


LOOSE = JobRules(least_patients=1, least_batch=1, least_bottom=1, parameters_per_voxel=1e6)


def test_a_job_beyond_the_rules_is_refused_until_the_hospital_allows_it(began, context, monkeypatch):
    hostile = plan(architecture="Generator", steps=1, batch_size=1, optimizer="sgd")
    one, logged = began(hostile, Manifest(site="site1", jobs=LOOSE))
    opened = MagicMock()
    monkeypatch.setattr(one, "open_site", opened)
    for _ in range(2):  # a server that asks all the same
        answer = FLModelUtils.from_shareable(one.execute(TRAIN, Shareable(), context, MagicMock()))
        assert answer.meta["reason"] == REFUSED_BY.format("architectures, images, optimizers, sgd_least_lr")
    assert not opened.called
    assert len(logged) == 1  # said once
    for words in ("architectures: the job asks for Generator", "least_images: ", "optimizers: "):
        assert words in logged[0]
    one.plan = plan(batch_size=2)
    one.execute(TRAIN, Shareable(), context, MagicMock())
    assert "the job asks for" not in logged[-1]  # it tried to work: that task was empty
    assert one.execute("mine", Shareable(), context, MagicMock()).get_return_code() == ReturnCode.TASK_UNKNOWN


@pytest.mark.parametrize("manifest", [Manifest(site="site1", jobs=LOOSE), None])
def test_a_job_within_the_rules_begins(began, manifest):
    assert began(plan(batch_size=2), manifest)[1] == []
