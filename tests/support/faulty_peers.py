"""Sites that once give a peer what is no model, or do not answer it; in this process, or in those that it starts."""

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fedmerit.schema.messages import PeerModel
from fedmerit.site.site import Site

ROUND = 1
FAULTS: Mapping[tuple[str, str], str] = {  # by giver and receiver, what comes of it in that round
    ("site2", "site1"): "NaN",
    ("site2", "site3"): "another shape",
    ("site3", "site1"): "vanished",
}
honest = Site.give_model


def give_model(site: Site, receiver: str, round: int) -> PeerModel | None:
    """Instead of `Site.give_model`."""
    model = honest(site, receiver, round)
    fault = FAULTS.get((site.name, receiver)) if round == ROUND else None
    if model is None or fault is None:
        return model
    if fault == "NaN":
        return replace(model, parameters=model.parameters * math.nan)
    if fault == "another shape":
        return replace(model, buffers={name: value.reshape(-1)[:1] for name, value in model.buffers.items()})
    raise ConnectionError("/data/Mueller: gone")


def install_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """For sites in this process."""
    monkeypatch.setattr(Site, "give_model", give_model)


def install_in_children(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """For sites in processes that this one starts; ``folder`` is new, for what makes Python do so."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "if any('worker_process' in word or 'simulator' in word for word in sys.orig_argv):\n"
        "    import faulty_peers\n"
        "    faulty_peers.Site.give_model = faulty_peers.give_model\n"
    )
    path = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
