"""In which order a site answers: rounds go forward alone, a round is trained before it is judged, tests come last.

A site cannot know where the run really is: it may have been away, so that any later round may be next. But what it
skipped is gone, and once it has answered in the final test, no round is left that could make use of it.
"""

from collections.abc import Collection

from fedmerit.errors import Refused
from fedmerit.wire.messages import OUT_OF_ORDER, Evaluation, Purpose, WithModels


def require_round_order(task: WithModels, rounds: int, latest: int, trained: Collection[int]) -> None:
    """`Refused` where a task's round is over for the site, or what it asks for comes after a training still to be done.

    A round is repeated as often as a crash of the server has it.

    Args:
        task: the server's.
        rounds: of the run; the final test is in the round of that number.
        latest: the last round that the site answered anything in; -1: none yet.
        trained: the rounds that it trained in.
    """
    if task.round < latest:
        raise Refused(OUT_OF_ORDER, f"round {task.round}, after answers in round {latest}; submit the job anew")
    if not isinstance(task, Evaluation) or task.purpose is Purpose.ESTIMATE:
        return
    if task.round >= rounds:
        if not trained:
            raise Refused(OUT_OF_ORDER, f"the final test on the {task.split} split, before any training")
    elif task.purpose is not Purpose.ROUND:
        raise Refused(OUT_OF_ORDER, f"the final test in round {task.round}, expected after round {rounds - 1}")
    elif task.round not in trained:
        raise Refused(OUT_OF_ORDER, f"models on the {task.split} split in round {task.round}, before its training")
