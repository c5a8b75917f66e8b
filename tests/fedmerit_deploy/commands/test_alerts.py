"""Alerts about a federation: what is new between two looks, and to whom it is sent."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fedmerit.errors import BadInput
from fedmerit_deploy.commands.status_output import Receivers
from fedmerit_deploy.status import FederationState, SiteState, list_changes

RUNNING = {"job_id": "3f2a", "name": "fedce", "status": "RUNNING"}


def look(when, *jobs, **silent):
    """A federation whose sites are silent for so many seconds; None: not connected."""
    return FederationState(when, {name: SiteState(seconds) for name, seconds in silent.items()}, jobs, {})


def test_changes_are_reported_once():
    ended = RUNNING | {"status": "FINISHED:COMPLETED"}
    looks = [
        (look(15, RUNNING, A=100.0, B=None), ["A: silent for 100 s"]),
        (look(30, RUNNING, A=115.0, B=None), []),
        (look(45, RUNNING, A=1.0, B=1.0), ["A: connected again", "B: connected again"]),
        (look(60, ended, A=1.0, B=1.0), ["job fedce (3f2a) ended: FINISHED:COMPLETED"]),
        (look(75, ended, A=1.0, B=1.0), []),
    ]
    before = look(0, RUNNING, A=2.0, B=None)
    for after, lines in looks:
        assert list(list_changes(before, after)) == lines
        before = after


def test_webhook_gets_text_as_json():
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert Receivers(webhook=f"http://127.0.0.1:{server.server_port}/secret").send("A: silent") == []
        thread.join()
    assert got == [{"text": "A: silent"}]


def test_webhook_that_fails_is_reported_without_its_address():
    (failed,) = Receivers(webhook="http://127.0.0.1:9/secret").send("x")
    assert failed == "webhook: URLError: no alert was sent"


def test_mail_goes_by_sendmail(tmp_path, monkeypatch):
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\ncat > {tmp_path}/mail; echo "$@" > {tmp_path}/options\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert Receivers(mail="it@hospital.example").send("A: silent for 100 s") == []
    mail = (tmp_path / "mail").read_text()
    assert "Subject: FedMerit: A: silent for 100 s" in mail
    assert "To: it@hospital.example" in mail
    assert (tmp_path / "options").read_text() == "-t -i\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"webhook": "file:///etc/passwd"}, "--webhook file:///etc/passwd: expected an address that begins with https"),
        ({"mail": "nobody"}, "--mail nobody: expected one mail address"),
        ({"mail": "a@b\nBcc: c@d"}, "expected one mail address"),
    ],
)
def test_receivers_that_cannot_be_reached_are_refused(options, message):
    with pytest.raises(BadInput, match=message):
        Receivers(**options)


def test_mail_without_sendmail_says_what_to_install(monkeypatch):
    monkeypatch.setattr("fedmerit_deploy.commands.status_output.shutil.which", lambda name: None)
    with pytest.raises(BadInput, match="this machine has no sendmail; install one"):
        Receivers(mail="it@hospital.example")
