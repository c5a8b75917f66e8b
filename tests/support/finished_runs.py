"""What a finished run tells of a site."""

from pathlib import Path
from typing import Any

import torch

from fedmerit.schema.results import read_results


def by_site(run: Path, quantity: str, round: int) -> dict[str, float]:
    rows = read_results(run).query(f"quantity == '{quantity}' and split == '' and round == {round}")
    return dict(zip(rows["site"], rows["value"], strict=True))


def remembered(run: Path, site: str, round: int) -> dict[str, Any]:
    memory: dict[str, Any] = torch.load(run / "sites" / site / f"round_{round:05d}.pt", weights_only=True)
    return memory


def buffer_bytes(run: Path) -> int:
    return sum(value.numel() * value.element_size() for value in remembered(run, "site1", 1)["buffers"].values())
