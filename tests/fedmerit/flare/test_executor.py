"""What a site does before it asks for work."""

import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext

from fedmerit.flare import executor


@pytest.mark.parametrize("wrong", [{}, {"method": "no such method"}])
def test_a_job_that_cannot_run_here_is_refused_as_it_begins(wrong, monkeypatch):
    told, ended = [], []
    monkeypatch.setattr(executor.MeritExecutor, "_follow_manifest", lambda self, fl_ctx: None)
    monkeypatch.setattr(executor, "tell", lambda own, error, what, fl_ctx: told.append(what))
    one = executor.MeritExecutor(wrong)
    monkeypatch.setattr(one, "system_panic", lambda reason, fl_ctx: ended.append(reason))
    one.handle_event(EventType.START_RUN, FLContext())
    assert told == ["job refused"]
    assert len(ended) == 1
    assert "no such method" not in ended[0]  # the server hears that, not why
