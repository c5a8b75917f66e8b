"""Kept updates of a job of NVFlare's, replayed under other rules."""

import pytest
import torch
from typer.testing import CliRunner

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import Ledger
from fedmerit_cli.main import app
from fedmerit_evaluation.valuation.replay import find_kept, one_round_values, replay_rules, replay_tables

SHAPES = {"conv.weight": (4, 3), "conv.bias": (4,), "last.weight": (2, 4), "last.bias": (2,)}
SITES = ["site-1", "site-2", "site-3", "site-4"]


@pytest.fixture
def kept(tmp_path):
    """Two rounds of four sites; the last sends what the first sends, and the third is absent once."""
    folder, generator = tmp_path / "ws" / "kept_updates", torch.Generator().manual_seed(0)

    def draw():
        return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}

    folder.mkdir(parents=True)
    torch.save({"model": draw()}, folder / "first.pt")
    common = draw()
    for number in range(2):
        noise = {site: draw() for site in SITES}
        updates = {site: {name: common[name] + noise[site][name] / 2 for name in SHAPES} for site in SITES}
        updates["site-4"] = updates["site-1"]
        for site in SITES:
            if (site, number) != ("site-3", 1):
                torch.save({"update": updates[site], "samples": 10}, folder / f"round-{number:05d}-{site}.pt")
    return folder


def test_replay_gives_weights_contributions_and_duplicates(kept, tmp_path):
    job = find_kept(tmp_path / "ws")
    assert (job.sites, len(job.rounds)) == (SITES, 2)
    folders = replay_rules(job, ["fedavg", "cgsv", "fedce"], tmp_path / "out")
    contributions, findings = (table.frame.set_index("Site") for table in replay_tables(job, folders))
    assert findings["Repeated updates [%]"].to_dict() == {"site-1": 100, "site-2": 0, "site-3": 0, "site-4": 100}
    assert findings["Rounds"].to_dict() == {"site-1": "2", "site-2": "2", "site-3": "1", "site-4": "2"}
    assert contributions.loc["site-1", "Contribution by cgsv"] == contributions.loc["site-4", "Contribution by cgsv"]
    unknown = contributions.isna().stack()
    assert list(unknown[unknown].index) == [("site-3", "Contribution by fedce")]  # it was there in the first round only
    first, second = Ledger(folders["fedce"] / "ledger.jsonl").records
    assert set(first["contributions"].values()) == {None}  # no model holds an update yet
    assert second["rejected"]["site-3"] == "no reply"
    assert second["failed"] == ["site-3"]
    shares = [second["contributions"][site] for site in ("site-1", "site-2", "site-4")]
    assert shares[0] == shares[2] < shares[1]  # of two equal updates each is less novel
    assert sum(shares) == pytest.approx(1)


def test_one_round_values_share_what_the_score_gains(kept):
    job = find_kept(kept)
    first = job.first_model()["last.bias"]

    def score(state):
        return float((state["last.bias"] - first).norm().clamp(max=10) / 10)

    values = one_round_values(job, score)
    both = job.read(0), job.read(1)
    mean = sum(torch.stack([one.tensors["last.bias"] for one in updates.values()]).mean(0) for updates in both)
    assert sum(values.values()) == pytest.approx(float(mean.norm() / 10), abs=1e-5)
    assert values["site-1"] == pytest.approx(values["site-4"])
    with pytest.raises(BadInput, match="--score: gave 3; expected a number from 0 to 1"):
        one_round_values(job, lambda state: 3.0)


def test_value_replay_writes_one_report(kept, tmp_path):
    (tmp_path / "score.py").write_text("def score(state): return float(state['last.bias'].abs().clamp(max=1).mean())\n")
    out = tmp_path / "out"
    command = ["value", "replay", str(kept), "--out", str(out), "--score", f"{tmp_path / 'score.py'}:score"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    page = (out / "replay.html").read_text()
    assert "Weight by shapfed" in page
    assert "One-round value" in page
    assert (out / "tables" / "contributions.csv").exists()
    assert "exists already" in CliRunner().invoke(app, command).output


def test_find_kept_names_what_is_missing(tmp_path):
    with pytest.raises(BadInput, match="holds kept updates of 0 jobs; expected the folder kept_updates of one"):
        find_kept(tmp_path)
