"""Test what the server keeps of a job's end, and what an admin reads of it."""

import errno
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext

from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import read_json
from fedmerit.reasons import DISK_FULL
from fedmerit_deploy import job_ends
from fedmerit_deploy.job_ends import META, Cause, JobEnd, JobEnds, JobEvents, explain_end


def records(*rejected):
    """Of rounds of three sites, each without those that are named with a reason."""
    return [
        {"round": number, "participants": sorted({"A", "B", "C"} - set(one)), "rejected": one}
        for number, one in enumerate(rejected)
    ]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("", Cause.nothing),
        ("fewer than 2 sites were left", Cause.passing),
        (RunFailed(f"no site sent a usable reply (A: {DISK_FULL})"), Cause.passing),
        (OSError(errno.ENOSPC, "full"), Cause.passing),
        (RunFailed("NaN"), Cause.failure),
        (BadInput("no keys"), Cause.input),
    ],
)
def test_job_end_derives_cause_from_error(error, cause):
    assert JobEnd.after([], error).cause is cause


EXCEPTION = "FINISHED:EXECUTION_EXCEPTION"


@pytest.mark.parametrize(
    ("status", "end", "reported"),
    [
        ("RUNNING", None, []),
        ("FINISHED:COMPLETED", JobEnd(3), []),
        ("FINISHED:COMPLETED", JobEnd(3, absent={"C": "absent in 3 of 3"}), ["j: C was absent in 3 of 3"]),
        ("FINISHED:ABANDONED", None, ["j: ended, the server was started again while it ran; `fedmerit job resume j`"]),
        ("FINISHED:ABNORMAL", None, ["its process at the server was killed", "`fedmerit job resume j` continues"]),
        ("FINISHED:ABORTED", JobEnd(1, error="no site took it"), ["it was stopped on purpose; `fedmerit job resume"]),
        (EXCEPTION, JobEnd.after(records({}), RunFailed("disk full")), ["ended, after 1 complete rounds: disk full;"]),
        (EXCEPTION, JobEnd.after([], BadInput("no keys")), ["no keys; mend that, then submit a job again"]),
        ("FINISHED:ABNORMAL", JobEnd(3, True), ["j: ended, the run is complete: `fedmerit job fetch j`"]),
        (EXCEPTION, None, ["log.txt in the kits", "`fedmerit job resume j` continues"]),
    ],
)
def test_explain_end_says_why_and_what_to_type(status, end, reported):
    lines = explain_end({"job_id": "j", "status": status} | ({META: vars(end)} if end else {}))
    assert all(words in "\n".join(lines) for words in reported)
    assert bool(lines) == bool(reported)


@pytest.mark.parametrize("content", [None, "text", {"round": None, "absent": 3, "cause": 7}])
def test_job_end_of_other_content_is_empty(content):
    assert JobEnd.of({META: content}) == JobEnd()


def test_server_keeps_end_with_job(tmp_path):
    end = JobEnd(2, True, "why", Cause.failure, {"C": "absent"})
    end.write(tmp_path, "job1")
    engine, kept = MagicMock(), {}
    engine.get_workspace.return_value = SimpleNamespace(get_root_dir=lambda: str(tmp_path))
    engine.get_component.return_value.update_meta = lambda job, meta, fl_ctx: kept.update({job: meta})
    context = MagicMock(spec=FLContext)
    context.get_engine.return_value = engine
    for job in ("job1", "job1", "job2"):  # once there, its file is gone
        context.get_prop = {FLContextKey.EVENT_DATA: {"job_id": job}}.get
        JobEnds().handle_event(EventType.JOB_COMPLETED, context)
    assert {job: JobEnd.of(meta) for job, meta in kept.items()} == {"job1": end}
    assert list((tmp_path / "ended").iterdir()) == []


def test_end_on_a_full_disk_is_written_when_there_is_room(tmp_path, monkeypatch):
    full, waited = OSError(errno.ENOSPC, "No space left on device"), []
    write = JobEnd.write

    def write_later(self, kit, job):
        if len(waited) < 2:
            raise full
        write(self, kit, job)

    monkeypatch.setattr(JobEnd, "write", write_later)
    monkeypatch.setattr(job_ends.time, "sleep", waited.append)
    JobEvents(tmp_path).ended("job", [], full, False)
    kept = read_json(tmp_path / job_ends.FOLDER / "job.json")
    assert (kept["cause"], len(waited)) == ("passing", 2)
    waited.clear()
    full.errno = errno.EACCES
    with pytest.raises(OSError, match="No space"):
        JobEvents(tmp_path).ended("job", [], full, False)


def test_server_ends_jobs_of_earlier_process():
    context = MagicMock(spec=FLContext)
    JobEnds().handle_event(EventType.SYSTEM_BOOTSTRAP, context)
    context.get_engine.return_value.job_runner.update_unfinished_jobs.assert_called_once_with(context)
