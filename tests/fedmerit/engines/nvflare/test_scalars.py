"""The rounds' scalars at NVFlare's analytics receivers, a site's own under its name."""

import json
from types import SimpleNamespace

import pytest
from nvflare.apis.analytix import AnalyticsData
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContextManager
from nvflare.app_common.widgets.streaming import AnalyticsReceiver
from nvflare.widgets.fed_event import ServerFedEventRunner
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedmerit.engines.nvflare.scalars import receiver, track

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
        self.handlers, self.contexts = handlers, FLContextManager(self, identity_name="server")

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


def scalars(folder):
    """Steps and values of each tag in event files."""
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_gets_a_folder_per_site(tmp_path):
    chosen = receiver("tensorboard")
    engine = Engine(chosen)
    engine.get_workspace = lambda: SimpleNamespace(get_run_dir=lambda job: str(tmp_path))
    with engine.new_context() as fl_ctx:
        chosen._handle_start_run_event(fl_ctx)
        track(engine, RECORD)
        chosen.finalize(fl_ctx)
    assert scalars(tmp_path / "tb_events" / "A") == {"weight": [(3, 0.25)], "validation_dice": [(3, 0.5)]}
    assert scalars(tmp_path / "tb_events" / "B")["contribution"] == [(3, -0.5)]


@pytest.mark.slow
def test_a_job_shows_its_rounds_in_tensorboard(fedmerit, options, tmp_path):
    run = tmp_path / "run"
    more = ("--track", "tensorboard")
    result = fedmerit("run", "--out", run, *options(engine="sim", method="fedavg", rounds=2), *more)
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    folders = {path.name: path for path in run.glob("nvflare/**/tb_events/*")}
    assert sorted(folders) == ["site1", "site2", "site3"]
    for site, folder in folders.items():
        shown = scalars(folder)
        for tag, part in (("weight", "weights"), ("validation_dice", "validation_dice")):
            expected = [(record["round"], pytest.approx(record[part][site], rel=1e-6)) for record in records]
            assert shown[tag] == expected
