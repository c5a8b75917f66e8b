"""What a job names is looked at as it is deployed; whole federations do so in test_session.py."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from nvflare.apis.fl_constant import SystemConfigs
from nvflare.fuel.utils.config_service import ConfigService

from fedmerit.engines.nvflare.recipe import build_site_policy
from fedmerit_deploy.validator import ClassValidator

JOB = Path(__file__).resolve().parents[2] / "jobs" / "fedce_prostate" / "app"
SIDES = ("client", "server")
FOREIGN = "nvflare.app_common.np.np_trainer.NPTrainer"  # on NVFlare's own list of allowed classes, not on ours


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
def test_an_exported_job_is_not_refused(reason, side):
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
def test_a_class_that_is_not_allowed(reason, side, where, key):
    told = reason(side, where, {"id": "part", key: FOREIGN, "args": {}})
    assert told == f"Component '{FOREIGN}' at config path '{where}' is not in allow_list"


def test_a_job_with_code_is_judged_by_the_right_to_bring_it(reason, tmp_path):
    (tmp_path / "app/custom").mkdir()
    assert reason("client", "executors.0.executor", {"path": FOREIGN}) == ""
