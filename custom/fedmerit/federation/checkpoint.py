"""The checkpoint of a run folder: the server's state after its last complete round, also for sites that join then.

Nothing that is known of the other sites changes by a join. The history of those that join begins with their first
round.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedmerit.configuration.run import RunConfiguration
from fedmerit.core import Layout, Method, grow, joining_model
from fedmerit.errors import BadInput
from fedmerit.federation.requirements import check_sites
from fedmerit.files import write_durably
from fedmerit.records.tensor_files import load_tensors

CHECKPOINT = "checkpoint.pt"


def is_finished(run: Path, rounds: int) -> bool:
    """Whether a run folder holds a complete run: trained, tested, models saved."""
    content = read_checkpoint(run)
    return content is not None and content["round"] > rounds


def complete_rounds(run: Path) -> int | None:
    """The number of complete rounds of a run folder's checkpoint; None: it has none."""
    content = read_checkpoint(run)
    return None if content is None else content["complete_rounds"]


def read_checkpoint(run: Path) -> dict[str, Any] | None:
    """The content of a run folder's checkpoint, None if it has none; `BadInput` if it cannot be read."""
    path = run / CHECKPOINT
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = load_tensors(path)
    except BadInput as error:
        raise BadInput(f"{error}; not readable as a checkpoint, start another run") from None
    counts = (content.get("round"), content.get("complete_rounds")) if isinstance(content, dict) else (None,)
    if not all(isinstance(count, int) for count in counts):
        raise BadInput(f"{path}: not a checkpoint of FedMerit; start another run")
    return content


def write_checkpoint(run: Path, content: Mapping[str, Any]) -> None:
    """Write a run folder's checkpoint, durably: sites learn the round and refuse tasks of earlier ones."""
    write_durably(run / CHECKPOINT, lambda file: torch.save(dict(content), file))


STARTED_AGAIN = ("changed", "best_round", "best_dice")  # of a checkpoint: what does not reach back behind a join


def admit_sites(
    config: RunConfiguration, checkpoint: Mapping[str, Any] | None, sites: Collection[str]
) -> tuple[list[str], str]:
    """All sites of a run, sorted, with those of ``sites`` that join it; why others cannot join, "" if all can.

    ``checkpoint``: of the run; None: it begins with ``sites``.
    """
    if checkpoint is None:
        return sorted(sites), ""
    known: list[str] = checkpoint["sites"]
    together = sorted({*known, *sites})
    why = None
    if together == known:
        return known, ""
    if checkpoint["round"] >= config.rounds:
        why = f"its {config.rounds} rounds are over"
    elif config.keep_updates:
        why = "it keeps the updates of the same sites in all rounds"
    why = why or check_sites(config.method, config.build_method(), together)
    joining = ", ".join(sorted(set(sites) - set(known)))
    return (known, f"{joining} cannot join the run: {why}") if why else (together, "")


def join_sites(
    content: Mapping[str, Any], fresh: Mapping[str, Any], method: Method, state: Any, layout: Layout
) -> dict[str, Any]:
    """A checkpoint with more sites; these are "joined" then.

    Args:
        content: of the checkpoint.
        fresh: that of a run of all sites, before round 0.
        method: of the run.
        state: the method's, of the sites before.
        layout: of its vector.
    """
    sites: list[str] = fresh["sites"]
    joined, rows = sorted(set(sites) - set(content["sites"])), [sites.index(site) for site in content["sites"]]
    grown_state = method.join(state, rows, len(sites), layout)
    models, buffers = content["models"], [content.get("statistics", {})] * len(sites)
    for row, one in zip(rows, content["buffers"], strict=True):
        buffers[row] = one
    parts = {name: fresh[name] for name in STARTED_AGAIN if name in fresh}
    parts |= {name: _padded(content[name], rows, len(sites), torch.nan) for name in ("weights", "data_share")}
    parts["neurons"] = _padded(content["neurons"], rows, len(sites), 1)  # all of them
    parts |= {name: grow_all(content[name], fresh[name], rows) for name in ("guard", "observers") if name in fresh}
    if models.ndim == 2:
        parts["models"] = grow(models, joining_model(grown_state).repeat(len(sites), 1), rows)
    separate = [rows[row] for row in content["separate"]]
    members = {"sites": sites, "joined": sorted({*joined, *content["joined"]})}
    return {**content, **parts, **members, "state": vars(grown_state), "buffers": buffers, "separate": separate}


def grow_all(old: Any, fresh: Any, rows: Sequence[int]) -> Any:
    """Tensors in mappings, each by `grow`; what is new in ``old`` is by site name already."""
    if isinstance(old, Mapping):
        return {name: grow_all(value, fresh[name], rows) if name in fresh else value for name, value in old.items()}
    return grow(old, fresh, rows)


def _padded(values: Tensor | None, rows: Sequence[int], sites: int, value: float) -> Tensor | None:
    """(n, ...) of all sites; ``value`` for those that join."""
    if values is None:
        return None
    padded: Tensor = grow(values, values.new_full((sites, *values.shape[1:]), value), rows)
    return padded
