"""What the terminal shows of running runs, and how commands end that were stopped or failed."""

from contextlib import nullcontext

import pytest
import typer
from rich.cells import cell_len
from run_factory import make_run

from fedmerit.files import read_json, write_json
from fedmerit_cli.printing import RunBars, counting, exit_if_failed, progress, resumable, run_with_progress
from fedmerit_cli.terminal import console, last_round


def record(number):
    return {
        "round": number, "validation_dice": {"A": 0.5, "B": 0.6}, "weights": dict.fromkeys("ABCDEFGH", 1.0),
        "rejected": {"A": "no answer"}, "flagged": [],
    }  # fmt: skip


def test_scores_that_are_not_known_are_not_shown_as_zero(tmp_path):
    assert last_round(record(3) | {"validation_dice": {"A": None, "B": None}}) == "weights 100-100%"
    assert last_round(record(3) | {"validation_dice": {"A": None, "B": 0.5}}, is_weighted=False) == "Dice 50.0%"
    with progress() as bars, console.capture() as shown:
        RunBars(bars).on_round(make_run(tmp_path / "run"), record(0) | {"notes": ["scores are of auc"]})
    assert "round 0: scores are of auc" in shown.get()


@pytest.mark.parametrize("rounds", [12, 400])
def test_bars_with_the_time_left_fit_80_columns(tmp_path, rounds):
    folder = make_run(tmp_path / "run", rounds=rounds, done=1)
    bars = progress()
    each = RunBars(bars)
    each.begin(folder, "fedce (combine=plus, error=relative), seed 12")
    each.on_round(folder, record(rounds // 2))
    with console.capture() as shown:
        previous, console.width = console.width, 80
        console.print(bars.get_renderable())
        console.width = previous
    text = shown.get()
    assert max(map(cell_len, text.splitlines())) <= 80
    assert text.count("\n") == 1
    assert "Dice 55.0%, weights 100-100%" in text
    assert "-:--" in text or "0:" in text


def test_a_run_of_another_process_has_a_bar_until_it_is_removed(tmp_path, capsys):
    folder = make_run(tmp_path / "run", rounds=4)
    bars = progress()
    each = RunBars(bars)
    each.on_round(folder, record(2) | {"flagged": ["[/B]"]}, "fedce, seed 1")
    (task,) = bars.tasks
    assert (task.description, task.completed, task.total) == ("fedce, seed 1 (local)", 3, 4)
    each.remove(folder)
    each.remove(folder)
    assert bars.tasks == []
    assert capsys.readouterr().out.splitlines() == [
        "fedce, seed 1, round 2: A rejected: no answer", "fedce, seed 1, round 2: [/B] flagged by the method",
    ]  # fmt: skip


def interrupted(block):
    with block:
        raise KeyboardInterrupt


@pytest.mark.parametrize("block", [resumable, lambda: counting("trainings", 3)])
def test_ctrl_c_says_that_the_command_resumes(block, capsys):
    with pytest.raises(typer.Exit) as stopped:
        interrupted(block())
    assert stopped.value.exit_code == 130
    assert capsys.readouterr().err == "stopped; the same command resumes from what is finished\n"


@pytest.mark.parametrize(("more", "trust"), [({}, ""), ({"script": {"file": "client.py"}}, "--trust ")])
def test_ctrl_c_prints_the_command_that_resumes_a_run(more, trust, tmp_path, capsys):
    folder = make_run(tmp_path / "my run")
    write_json(folder / "run.json", read_json(folder / "run.json") | more)
    with pytest.raises(typer.Exit):
        run_with_progress(folder, lambda run, on_round: interrupted(nullcontext()))
    assert f"resume with: fedmerit run --resume {trust}--out '{folder}'\n" in capsys.readouterr().err


def test_what_failed_is_reported_and_ends_the_command(capsys):
    exit_if_failed({}, "never said")
    assert capsys.readouterr() == ("", "")
    with pytest.raises(typer.Exit) as ended:
        exit_if_failed({"run1": "no reply,\nlogs: here", "run2": "a\x1b[2J"}, "again")
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == "failed: run1: no reply,\nlogs: here\nfailed: run2: a\\x1b[2J\nagain\n"
