"""A site refuses a job by its manifest's rules before any work; the server learns only that it did."""

from unittest.mock import MagicMock

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable

from fedmerit.flare import executor
from fedmerit.trainers.monai_trainer import machine_settings
from fedmerit.trainers.monai_trainer.manifest import Manifest
from fedmerit.wire.messages import TRAIN


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
    """An executor that began a job, what it logged, and what the server learned."""

    def begin(plan, manifest):
        logged, ended = [], []
        monkeypatch.setattr(executor.MeritExecutor, "_follow_manifest", lambda self, fl_ctx: manifest)
        monkeypatch.setattr(executor, "report_error", lambda own, error, what, fl_ctx: logged.append(str(error)))
        one = executor.MeritExecutor(plan)
        monkeypatch.setattr(one, "system_panic", lambda reason, fl_ctx: ended.append(reason))
        one.handle_event(EventType.START_RUN, context)
        return one, logged, ended

    return begin


def plan(**training):
    network = {"in_channels": 1, "labels": ["prostate"], "architecture": training.pop("architecture", "unet")}
    return {
        "method": "fedavg", "task": "prostate", "rounds": 2, "seed": 0, "network": network, "training": training,
    }  # fmt: skip


def test_a_job_beyond_the_rules_is_refused(began, context):
    hostile = plan(architecture="Generator", steps=1, batch_size=1, optimizer="sgd")
    one, logged, ended = began(hostile, Manifest(site="site1"))
    assert ended == ["job refused (BadInput)"]
    for words in ("architectures: the job asks for Generator", "least_images: ", "optimizers: "):
        assert words in logged[0]
    answer = one.execute(TRAIN, Shareable(), context, MagicMock())  # a server that asks all the same
    assert answer.get_return_code() == ReturnCode.TASK_UNKNOWN


@pytest.mark.parametrize("manifest", [Manifest(site="site1"), None])
def test_a_job_within_the_rules_begins(began, manifest):
    assert began(plan(batch_size=2), manifest)[1:] == ([], [])


def test_in_the_simulator_everything_is_the_users_own(began):
    assert began(plan(steps=1, batch_size=1, optimizer="sgd"), None)[1:] == ([], [])
