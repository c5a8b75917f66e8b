"""Observers after the fact: what was observed stands, and what cannot be reported says why.

Replays of kept updates are tested with the runs that kept them, in test_valued_runs.
"""

import pandas as pd
import pytest
from run_factory import make_sites
from tiny import TINY

from fedmerit.engines import runs
from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import OBSERVED
from fedmerit.files import read_json, write_json
from fedmerit.schema.results import COLUMNS, ResultsFile, Row
from fedmerit_evaluation.valuation.replay import FOLDER, replay_observers

SEEN = Row(
    "run", "fedavg", 0, 0, "Alder", "dice", 0.75, split="multi_round", case="000", label="x", coalition="Alder+Birch"
)


@pytest.fixture
def run(tmp_path):
    """A run folder before its first round, in which one number was observed."""
    sites = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=16)
    runs.create(
        tmp_path / "run", method="fedavg", sites=sites, rounds=2, engine="local",
        settings=TINY,
    )  # fmt: skip
    ResultsFile(tmp_path / "run" / OBSERVED).append([SEEN])
    return tmp_path / "run"


def test_replay_keeps_observed_rows(run):
    table = replay_observers(run, ["multi_round:most=8"], on_round=lambda *_: pytest.fail("went through updates"))
    assert list(table.columns) == list(COLUMNS)
    (row,) = table.to_dict("records")
    assert (row["site"], row["coalition"], row["quantity"], row["value"]) == ("Alder", "Alder+Birch", "dice", 0.75)
    assert not (run / FOLDER).exists()


def test_replay_without_observers_may_be_empty(run):
    (run / OBSERVED).unlink()
    pd.testing.assert_frame_equal(replay_observers(run, []), pd.DataFrame(columns=COLUMNS))


def test_replay_without_updates_raises(run):
    with pytest.raises(BadInput, match="was run without --values one_round,leave_one_out_loss and kept no updates"):
        replay_observers(run, ["multi_round", "one_round", "leave_one_out_loss:every=2"])
    (run / "updates").mkdir()
    with pytest.raises(BadInput, match=r"round_00000\.pt: file not found; let the run finish"):
        replay_observers(run, ["one_round"])


def test_replay_local_only_needs_standalone(run):
    (run / "updates").mkdir()
    with pytest.raises(BadInput, match=r"--values local_only: not with method fedavg: .* observe a run of standalone"):
        replay_observers(run, ["local_only"])


def test_replay_of_encrypted_run_raises(run):
    write_json(run / "run.json", read_json(run / "run.json") | {"privacy": ["he"]})
    assert len(replay_observers(run, ["multi_round"])) == 1
    with pytest.raises(BadInput, match="one_round cannot be computed: updates leave encrypted"):
        replay_observers(run, ["one_round"])


@pytest.mark.parametrize("statistics", ["own", pytest.param("recalibrated", marks=pytest.mark.slow)])
def test_replay_uses_recorded_batch_norm_statistics(tmp_path, statistics):
    sites, run = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=16), tmp_path / "run"
    settings = TINY | {"statistics": statistics}
    asked = {"values": ["multi_round"], "keep_updates": True}
    runs.create(run, method="fedavg", sites=sites, rounds=1, engine="local", threads=1, settings=settings, **asked)
    runs.execute(run, lambda record: None)
    there = replay_observers(run, ["multi_round"])
    (run / OBSERVED).unlink()
    tables = [there, replay_observers(run, ["multi_round"])]
    columns = ["site", "coalition", "case", "label", "quantity"]
    seen, again = (table.query("quantity != 'seconds'").set_index(columns)["value"].to_dict() for table in tables)
    assert again == seen
