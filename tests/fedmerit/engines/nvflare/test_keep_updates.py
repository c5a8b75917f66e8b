"""The filter that keeps the updates of any NVFlare job."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.filter import FilterChainType, FilterContextKey
from nvflare.app_common.app_constant import AppConstants

from fedmerit.engines.nvflare.keep_updates import KeepUpdates
from fedmerit.tensor_files import FIRST_MODEL, KEPT_UPDATES


@pytest.fixture
def pass_through(tmp_path):
    """Pass a message of a site through the filter, on its way there or back."""
    workspace = SimpleNamespace(get_run_dir=lambda job: str(tmp_path))
    context = SimpleNamespace(
        get_peer_context=lambda: SimpleNamespace(get_identity_name=lambda: "site-1"),
        get_engine=lambda: SimpleNamespace(get_workspace=lambda: workspace),
        get_job_id=lambda: "job",
    )

    def send(chain, kind, data, number, meta=None):
        filter, message = KeepUpdates(), DXO(kind, data=data, meta=meta or {}).to_shareable()
        filter.set_prop(FilterContextKey.CHAIN_TYPE, chain)
        message.set_header(AppConstants.CURRENT_ROUND, number)
        assert filter.process(message, context) is message

    return send


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_filter_keeps_what_a_site_changed(pass_through, tmp_path, kind):
    before, after = {"weight": np.ones(3)}, {"weight": np.array([1.0, 2.0, 4.0])}
    sent = after if kind == DataKind.WEIGHTS else {"weight": after["weight"] - before["weight"]}
    for number in (0, 1):
        pass_through(FilterChainType.TASK_DATA_CHAIN, DataKind.WEIGHTS, before, number)
        pass_through(FilterChainType.TASK_RESULT_CHAIN, kind, sent, number, {"NUM_STEPS_CURRENT_ROUND": 7})
    kept = torch.load(tmp_path / KEPT_UPDATES / "round-00001-site-1.pt")
    assert kept["update"]["weight"].tolist() == [0, 1, 3]
    assert kept["samples"] == 7
    assert torch.load(tmp_path / KEPT_UPDATES / FIRST_MODEL)["model"]["weight"].tolist() == [1, 1, 1]
    assert len(list((tmp_path / KEPT_UPDATES).iterdir())) == 3
