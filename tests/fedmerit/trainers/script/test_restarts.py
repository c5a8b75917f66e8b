"""A script that is started again after it ended, and the reason that its end is."""

import errno
import os

import pytest

from fedmerit.engines.nvflare.client_script import explain_crash
from fedmerit.reasons import DISK_FULL, GPU_FULL, MEMORY_FULL, SCRIPT_KILLED, SCRIPT_LATE
from fedmerit.trainers.script.restarts import MOST_STARTS, TRACEBACK, RestartedScript, ScriptEnded, explain_output
from fedmerit.trainers.script.trainer import TRAIN, Question, Said

QUESTION = Question(TRAIN, {}, 1, 3, {})


def make_script(*outcomes):
    """Return a script that answers or ends in turn, and the list of its starts."""
    left, starts = list(outcomes), []

    def ask(question):
        outcome = left.pop(0)
        if isinstance(outcome, ScriptEnded):
            raise outcome
        return outcome

    return RestartedScript(ask, lambda: starts.append(len(left))), starts


def test_script_that_ended_once_answers_the_same_question():
    script, starts = make_script(Said(), ScriptEnded("crash", ""), Said(), Said())
    assert [script(QUESTION).restarts for _ in range(3)] == [0, 1, 0]
    assert len(starts) == 1


def test_script_that_ends_at_each_question_is_given_up():
    script, starts = make_script(*[ScriptEnded("crash", "")] * 50)
    for _ in range(10):
        with pytest.raises(ScriptEnded):
            script(QUESTION)
    assert len(starts) == MOST_STARTS


def test_script_that_is_late_is_started_for_the_next_question_only():
    script, starts = make_script(ScriptEnded("late", SCRIPT_LATE, is_late=True), Said())
    with pytest.raises(ScriptEnded):
        script(QUESTION)
    assert not starts
    assert script(QUESTION).restarts == 1


FRAMES = 'warning\nTraceback (most recent call last):\n  File "client.py", line 3, in <module>\n    work()\n'


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        (f"{FRAMES}ZeroDivisionError: division by zero\n", 1, "its script ended with ZeroDivisionError"),
        (f"{FRAMES}torch.OutOfMemoryError: CUDA out of memory\n", 1, GPU_FULL),
        (f"{FRAMES}MemoryError\n", 1, MEMORY_FULL),
        (f"{FRAMES}OSError: [Errno 28] No space left on device: 'x'\n", 1, DISK_FULL),
        (f"{FRAMES}RuntimeError: [enforce fail] PytorchStreamWriter failed writing file data/3\n", 1, DISK_FULL),
        (f"{FRAMES}jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory\n", 1, GPU_FULL),
        (
            f"{FRAMES}MemoryError\n{FRAMES}torch.distributed.elastic.errors.ChildFailedError: \nclient.py FAILED\n",
            1,
            MEMORY_FULL,
        ),
        ("training\n", -9, SCRIPT_KILLED),
        ("training\n", 3, "its script ended with code 3"),
        ("", 0, "its script ended with code 0"),
    ],
)
def test_explain_output_finds_the_reason(text, code, reason):
    lines, found = explain_output(text, code)
    assert found.startswith(reason)
    assert ("ZeroDivisionError" in lines) == ("ZeroDivisionError" in text)
    assert ("ended by itself" in lines) == (code == 0)
    assert ("it was killed" in lines) == (code == -9)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), DISK_FULL),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), MEMORY_FULL),
        (SystemExit(3), "its script ended with code 3"),
        (KeyError("a"), "its script ended with KeyError"),
        (None, "its script ended with code 0"),
    ],
)
def test_explain_crash_finds_the_reason(error, reason):
    assert explain_crash(error)[1].startswith(reason)


def test_explain_output_leaves_out_the_frames_that_start_a_script():
    start = '  File "runner.py", line 95, in run\n    run_path()\n  File "<frozen runpy>", line 88, in _run_code\n'
    text = f'{FRAMES.splitlines()[1]}\n{start}  File "client.py", line 6, in <module>\n    work()\nKeyError: 3\n'
    assert explain_output(text, 1)[0] == '  File "client.py", line 6, in <module>\n    work()\nKeyError: 3'
    within = "".join(f'  File "lib/python3.11/loop.py", line {line}, in fit\n    run()\n' for line in range(9))
    lines = explain_output(text.replace("KeyError", f"{within}KeyError"), 1)[0].splitlines()
    assert [lines[0], lines[2], lines[-1], len(lines)] == [
        '  File "client.py", line 6, in <module>',
        "  ...",
        "KeyError: 3",
        12,
    ]


def test_explain_output_takes_the_scripts_own_traceback_not_that_of_a_thread_of_nvflare():
    foreign = (
        f"{TRACEBACK}\n"
        + '  File "/lib/python3.11/site-packages/nvflare/cell.py", line 3, in call\nRuntimeError: stream\n'
    )
    lines, reason = explain_output(f"{FRAMES}KeyError: 3\n{foreign}", 1)
    assert lines.endswith("KeyError: 3")
    assert reason.startswith("its script ended with KeyError")
    lines, reason = explain_output(f"trained\n{foreign}", 0)
    assert lines.splitlines() == [
        "trained",
        "it ended by itself or by sys.exit: its loop has to go on while flare.is_running()",
    ]
    assert reason.startswith("its script ended with code 0")
    assert explain_output(foreign, 1)[0].endswith("RuntimeError: stream")
