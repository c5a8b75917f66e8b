"""Jobs of several methods and seeds, written, submitted and fetched by a command each."""

import json
from contextlib import nullcontext

import pytest
from tiny import flags

from fedmerit_deploy import job_ends, session

TINY = ("--task", "prostate", *flags())


def test_export_with_seeds_and_companions_writes_a_job_each(fedmerit, tmp_path):
    out = tmp_path / "jobs"
    options = ("--method", "cgsv", "--set", "beta=1.5", "--seeds", "0,2", "--with", "standalone")
    assert fedmerit("job", "export", *options, *TINY, "--out", out).exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "cgsv_seed0", "cgsv_seed2", "standalone_seed0", "standalone_seed2"
    ]  # fmt: skip
    texts = {path.name: "".join(file.read_text() for file in path.rglob("*.json")) for path in out.iterdir()}
    assert {name for name, text in texts.items() if '"beta"' in text} == {"cgsv_seed0", "cgsv_seed2"}
    assert len(set(texts.values())) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--with", "standalon"), "did you mean standalone"),
        (("--with", "cgsv"), "named twice"),
        (("--seeds", "0,0"), "given twice"),
    ],
)
def test_export_with_wrong_companion_or_seed_writes_nothing(fedmerit, tmp_path, options, message):
    done = fedmerit("job", "export", "--method", "cgsv", *options, *TINY, "--out", tmp_path / "jobs")
    assert done.exit_code == 2
    assert message in done.output
    assert not (tmp_path / "jobs").exists()


def test_submit_and_fetch_take_several_jobs(fedmerit, tmp_path, monkeypatch):
    submitted, fetched = [], []
    monkeypatch.setattr(session, "session", lambda kit: nullcontext(None))
    monkeypatch.setattr(session, "submit", lambda opened, job: submitted.append(job.name) or f"id-{job.name}")
    monkeypatch.setattr(session, "connected", lambda opened: [])
    monkeypatch.setattr(session, "describe", lambda opened, job: {"name": job.partition("-")[2]})
    monkeypatch.setattr(job_ends, "explain_end", lambda description: [])
    monkeypatch.setattr(session, "fetch", lambda opened, job, out: fetched.append(out))
    for name in ("fedce_seed0", "standalone_seed0"):
        (tmp_path / "jobs" / name).mkdir(parents=True)
        (tmp_path / "jobs" / name / "meta.json").write_text(json.dumps({"name": name}))
    assert "id-standalone_seed0" in fedmerit("job", "submit", tmp_path / "jobs", "--kit", tmp_path).output
    assert submitted == ["fedce_seed0", "standalone_seed0"]
    ids = ("id-fedce_seed0", "id-standalone_seed0")
    fedmerit("job", "fetch", *ids, "--kit", tmp_path, "--out", tmp_path / "runs")
    fedmerit("job", "fetch", ids[0], "--kit", tmp_path, "--out", tmp_path / "run")
    assert [path.relative_to(tmp_path).parts[0] for path in fetched] == ["runs", "runs", "run"]
    assert len(set(fetched)) == 3
