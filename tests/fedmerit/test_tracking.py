"""The rounds' scalars at NVFlare's analytics receivers, a site's own under its name."""

import json

import pytest
from nvflare.apis.analytix import AnalyticsData
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContextManager
from nvflare.app_common.widgets.streaming import AnalyticsReceiver
from nvflare.widgets.fed_event import ServerFedEventRunner

from fedmerit.configuration.tracking import KINDS, MLflow, parse, require_tracking
from fedmerit.errors import BadInput
from fedmerit.flare.recipe import site_policy
from fedmerit.flare.scalars import RECEIVERS, track

RECORD = {
    "round": 3,
    "weights": {"A": 0.25, "B": 0.75},
    "contributions": {"A": None, "B": -0.5},
    "validation_dice": {"A": 0.5, "B": 0.625},
}


class Receiver(AnalyticsReceiver):
    """Keeps what NVFlare's own receivers would write."""

    def initialize(self, fl_ctx):
        self.kept = []

    def save(self, fl_ctx, shareable, record_origin):
        data = AnalyticsData.from_dxo(from_shareable(shareable))
        self.kept.append((record_origin, data.tag, data.value, data.step))

    def finalize(self, fl_ctx):
        pass


class Engine:
    """As much of the server's engine as fires events."""

    def __init__(self, *handlers):
        self.handlers, self.contexts = handlers, FLContextManager(identity_name="server")

    def new_context(self):
        return self.contexts.new_context()

    def fire_event(self, event_type, fl_ctx):
        for handler in self.handlers:
            handler.handle_event(event_type, fl_ctx)


def test_every_scalar_of_a_round_reaches_receivers_under_its_site():
    receiver, sent = Receiver(), []
    runner = ServerFedEventRunner()
    runner.fire_and_forget_request = lambda **request: sent.append(request)
    engine = Engine(receiver, runner)
    with engine.new_context() as fl_ctx:
        receiver._handle_start_run_event(fl_ctx)
    track(engine, RECORD)
    assert receiver.kept == [
        ("A", "weight", 0.25, 3),
        ("B", "weight", 0.75, 3),
        ("B", "contribution", -0.5, 3),
        ("A", "validation_dice", 0.5, 3),
        ("B", "validation_dice", 0.625, 3),
    ]
    assert sent == []  # nothing goes out to the sites
    with engine.new_context() as fl_ctx:
        assert fl_ctx.get_prop(FLContextKey.EVENT_DATA) is None


def test_specs():
    assert parse("mlflow:uri=http://10.0.0.7:5000") == MLflow("http://10.0.0.7:5000")
    for spec in ("wandb", "tensorboard:uri=x", "mlflow:url=x"):
        with pytest.raises(BadInput, match=spec.partition(":")[0]):
            parse(spec)


def test_the_local_engine_has_no_receivers():
    with pytest.raises(BadInput, match="--engine sim"):
        require_tracking(["tensorboard"], "local")


def test_a_tracker_that_is_not_installed_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr("fedmerit.configuration.tracking.find_spec", lambda name: None)
    for kind in KINDS:
        with pytest.raises(BadInput, match=r"pip install 'fedmerit\[tracking\]'"):
            require_tracking([kind], "sim")


def test_only_servers_that_track_allow_receivers():
    assert not set(RECEIVERS) & set(site_policy()["class_allow_list"])
    assert set(RECEIVERS) <= set(site_policy(track=True)["class_allow_list"])


def test_tensorboard_gets_a_folder_per_site(fedmerit, options, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = tmp_path / "run"
    more = ("--track", "tensorboard")
    result = fedmerit("run", "--out", run, *options(engine="sim", method="fedavg", rounds=2), *more)
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    folders = {path.name: path for path in run.glob("nvflare/**/tb_events/*")}
    assert sorted(folders) == ["site1", "site2", "site3"]
    for site, folder in folders.items():
        events = accumulator.EventAccumulator(str(folder))
        events.Reload()
        for tag, part in (("weight", "weights"), ("validation_dice", "validation_dice")):
            expected = [(record["round"], record[part][site]) for record in records]
            assert [(event.step, event.value) for event in events.Scalars(tag)] == [
                (round, pytest.approx(value, rel=1e-6)) for round, value in expected
            ]
