"""Sites that join a run: every part of its state gets a number for them, as before a first round; sites that leave it.

Nothing that is known of the other sites changes. The history of those that join begins with their first round, of those
that leave it ends.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedmerit.contract.method import Layout, Method, grow, joining_model
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.records import DepartureRecord, RoundRecord
from fedmerit.server.requirements import check_sites

STARTED_AGAIN = ("changed", "best_round", "best_dice")  # of a checkpoint: what does not reach back behind a join


def admit_sites(
    config: RunConfiguration, checkpoint: Mapping[str, Any] | None, sites: Collection[str]
) -> tuple[list[str], str]:
    """Return all sites of a run, sorted, with those of ``sites`` that join it, and why others cannot."""
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
    """Return a checkpoint with more sites; its entry "joined" names them."""
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


def departures(records: Sequence[RoundRecord], gone: Collection[str]) -> dict[str, DepartureRecord]:
    """Return what each site of ``gone`` contributed until it left, if the ledger's ``records`` do not have it yet.

    Weight and contribution are means over the rounds in which the site took part.
    """
    left = dict[str, DepartureRecord]()
    for site in sorted(gone):
        present = [record for record in records if site in record.participants]
        since = present[-1].round if present else -1
        if any(site in record.left for record in records[since + 1 :]):
            continue
        means = dict[str, float]()
        for name in ("weight", "contribution"):
            known = [value for record in present if (value := getattr(record, f"{name}s").get(site)) is not None]
            means |= {name: math.fsum(known) / len(known)} if known else {}
        left[site] = DepartureRecord(rounds=len(present), **means)
    return left


def grow_all(old: Any, fresh: Any, rows: Sequence[int]) -> Any:
    """Grow the tensors in nested mappings, each by `grow`; entries that are new in ``old`` are by site name already."""
    if isinstance(old, Mapping):
        return {name: grow_all(value, fresh[name], rows) if name in fresh else value for name, value in old.items()}
    return grow(old, fresh, rows)


def _padded(values: Tensor | None, rows: Sequence[int], sites: int, value: float) -> Tensor | None:
    """Return (n, ...) values of all sites, with ``value`` for those that join."""
    if values is None:
        return None
    padded: Tensor = grow(values, values.new_full((sites, *values.shape[1:]), value), rows)
    return padded
