"""Live curves of a run on the local engine: what the ledger has, a folder or run of each site."""

import json

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedmerit.engines.live_curves import write_curves

RECORD = {
    "round": 3,
    "weights": {"A": 0.25, "B": 0.75},
    "contributions": {"A": None, "B": -0.5},
    "validation_dice": {"A": 0.5, "B": 0.625},
}


def test_run_on_the_local_engine_with_tensorboard_writes_the_ledgers_scalars(fedmerit, options, tmp_path):
    run = tmp_path / "run"
    result = fedmerit("run", "--out", run, *options(track="tensorboard", only="site1,site2"))
    assert result.exit_code == 0, result.output
    assert f"live: tensorboard --logdir {run / 'tensorboard'}" in result.output
    records = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    for site in ("site1", "site2"):
        events = EventAccumulator(str(run / "tensorboard" / site)).Reload()
        for tag, part in (("weight", "weights"), ("validation_dice", "validation_dice")):
            shown = [(event.step, event.value) for event in events.Scalars(tag)]
            assert shown == [(record["round"], pytest.approx(record[part][site], rel=1e-6)) for record in records]


def test_mlflow_gets_a_run_of_each_site(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="needs the extra tracking")
    with write_curves(["mlflow"], tmp_path, ["A", "B"]) as on_round:
        on_round(RECORD)
        on_round(RECORD | {"round": 4})
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("FedMerit").experiment_id])
    by_site = {run.info.run_name: run for run in runs}
    assert sorted(by_site) == ["A", "B"]
    assert by_site["B"].data.metrics == {"weight": 0.75, "contribution": -0.5, "validation_dice": 0.625}
    history = client.get_metric_history(by_site["A"].info.run_id, "weight")
    assert [(metric.step, metric.value) for metric in history] == [(3, 0.25), (4, 0.25)]
    assert {run.info.status for run in runs} == {"FINISHED"}
