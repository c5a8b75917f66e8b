"""The terminal: how errors and signals end commands, and what is printed."""

import errno
import os
import signal
import time

import pytest
import typer
from typer.testing import CliRunner

from fedmerit.errors import BadInput, RunFailed
from fedmerit_cli.printing import resumable
from fedmerit_cli.terminal import Group, console, plain_table

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (BadInput("no site"), 2, "no site"),
        (RunFailed("no reply,\nlogs: here"), 1, "no reply,\nlogs: here"),
        (RunFailed("a\x1b[2J"), 1, r"a\x1b[2J"),
        (FULL, 1, f"the disk is full ({FULL}); make room, then give the same command again"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/out/run.json"),
            2,
            "/out/run.json: Permission denied; check the path and its permissions, or name another",
        ),
    ],
)
def test_errors_end_as_a_message_and_an_exit_code(error, code, message):
    app = typer.Typer(cls=Group)
    group = typer.Typer()
    app.add_typer(group, name="group")

    @group.command()
    def fail() -> None:
        raise error

    @app.command()
    def other() -> None: ...

    result = CliRunner().invoke(app, ["group", "fail"])
    assert (result.exit_code, result.stderr, result.stdout) == (code, f"error: {message}\n", "")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_a_command_as_ctrl_c_does(sent, request):
    before = signal.signal(sent, signal.SIG_DFL)  # the tests' caller may ignore it
    request.addfinalizer(lambda: signal.signal(sent, before))
    app, cleared = typer.Typer(cls=Group), []

    @app.command()
    def work() -> None:
        with resumable():
            try:
                os.kill(os.getpid(), sent)
                time.sleep(60)
            finally:
                cleared.append(True)

    @app.command()
    def other() -> None: ...

    result = CliRunner().invoke(app, ["work"])
    assert (result.exit_code, cleared) == (130, [True])
    assert "the same command resumes" in result.stderr
    assert signal.getsignal(sent) is signal.SIG_DFL


def test_names_that_others_chose_do_not_control_the_terminal():
    """Such as those of jobs in `fedmerit job status`: their submitters name them."""
    table = plain_table("job")
    table.add_row("[red]\x1b]0;owned\x07")
    with console.capture() as printed:
        console.print(table)
        console.print(":smile: [/b]\x1b[2J")
    assert r"[red]\x1b]0;owned\x07" in printed.get()
    assert r":smile: [/b]\x1b[2J" in printed.get()
    assert "\x1b]" not in printed.get()
    assert "\x1b[2J" not in printed.get()
