"""What commands share."""

import errno
import os
import signal
import time

import pytest
import typer
from typer.testing import CliRunner

from fedmerit.configuration import run
from fedmerit.errors import BadInput, RunFailed
from fedmerit.methods import registry
from fedmerit_cli.progress import resumable
from fedmerit_cli.terminal import (
    METHODS,
    TASKS,
    Commands,
    assignments,
    console,
    ended_as_by_ctrl_c,
    given,
    parse_names,
    plain_table,
    require_jobs,
)


def test_help_names_the_methods_and_tasks_that_there_are():
    assert tuple(registry.METHODS) == METHODS
    assert tuple(run.TASKS) == TASKS


def test_names_of_sites_may_stand_apart():
    assert parse_names("site1, site2", "--riding") == ["site1", "site2"]


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (BadInput("no site"), 2, "no site"),
        (RunFailed("no reply,\nlogs: here"), 1, "no reply,\nlogs: here"),
        (RunFailed("a\x1b[2J"), 1, r"a\x1b[2J"),
        (FULL, 1, f"the disk is full ({FULL}); make room, then give the same command again"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/out/run.json"),
            2,
            "/out/run.json: Permission denied; check the path and who may use it, or name another",
        ),
    ],
)
def test_errors_end_as_a_message_and_an_exit_code(error, code, told):
    app = typer.Typer(cls=Commands)
    group = typer.Typer()
    app.add_typer(group, name="group")

    @group.command()
    def fail() -> None:
        raise error

    @app.command()
    def other() -> None: ...

    result = CliRunner().invoke(app, ["group", "fail"])
    assert (result.exit_code, result.stderr, result.stdout) == (code, f"error: {told}\n", "")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_a_command_as_ctrl_c_does(sent, request):
    before = signal.signal(sent, signal.SIG_DFL)  # whatever runs the tests may ignore it
    request.addfinalizer(lambda: signal.signal(sent, before))
    app, cleared = typer.Typer(cls=Commands), []

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
    assert "the same command goes on" in result.stderr
    assert signal.getsignal(sent) is signal.SIG_DFL


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_as_by_ctrl_c():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_error_of_no_file_stays_what_it_is():
    app = typer.Typer(cls=Commands)

    @app.command()
    def fail() -> None:
        raise TimeoutError("no answer")

    @app.command()
    def other() -> None: ...

    assert isinstance(CliRunner().invoke(app, ["fail"]).exception, TimeoutError)


def test_options_with_a_value():
    assert given(rounds=0, device=None, only="") == {"rounds": 0, "only": ""}


def test_assignments():
    assert assignments(["lr=0.1", "loss=a=b"]) == {"lr": "0.1", "loss": "a=b"}
    assert assignments(None) == {}
    with pytest.raises(BadInput, match="--attack zero: expected NAME=VALUE"):
        assignments(["zero"], "--attack")
    with pytest.raises(BadInput, match="--set lr: given twice, 1 and 2; give it once"):
        assignments(["lr=1", "depth=3", "lr=2"])


def test_a_number_of_runs_at_a_time():
    require_jobs(None)
    require_jobs(1)
    with pytest.raises(BadInput, match="--jobs 0: expected 1 or more"):
        require_jobs(0)


def test_paths_are_shown_whole_and_as_they_are():
    path = "runs/x[b]y[/]/" + 80 * "z"
    table = plain_table("kit", "what was found")
    table.add_row("site1", f"{path}: not there")
    with console.capture() as shown:
        console.print(path, soft_wrap=True)
        console.print(table, width=60)
    first, *rows = shown.get().splitlines()
    assert first == path
    assert f"{path}:notthere" in "".join(rows).replace("site1", "").replace(" ", "")


def test_names_that_others_chose_are_printed_as_they_are_and_command_no_terminal():
    """Such as those of jobs in `fedmerit job status`: whoever submits one names it."""
    table = plain_table("job")
    table.add_row("[red]\x1b]0;owned\x07")
    with console.capture() as printed:
        console.print(table)
        console.print(":smile: [/b]\x1b[2J")
    assert r"[red]\x1b]0;owned\x07" in printed.get()
    assert r":smile: [/b]\x1b[2J" in printed.get()
    assert "\x1b]" not in printed.get()
    assert "\x1b[2J" not in printed.get()
