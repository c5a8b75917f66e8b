"""Old jobs in a startup kit: what is deleted, and what stays as evidence."""

import os
import time
from uuid import uuid4

import pytest

from fedmerit_deploy.kit_files import delete_files, find_prunable


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """A kit with an old and a new job."""
    kit, old = tmp_path / "kit", time.time() - 100 * 86400

    def write(path, is_old):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * 10)
        if is_old:
            os.utime(path, (old, old))
            os.utime(path.parent, (old, old))

    for is_old in (True, False):
        job = str(uuid4())
        site = kit / "runs" / job / "sites" / "A"
        for name in ("round_00000.pt", "site_log.jsonl", "errors.log", "certificate.pem", "enrolled_cases.json"):
            write(site / name, is_old)
        write(kit / job / "log.txt", is_old)
        write(kit / f"log.txt.{1 + is_old}", is_old)
        if is_old:
            os.utime(kit / job, (old, old))
            os.utime(site, (old, old))
    return kit


@pytest.mark.parametrize("kind", ["client", "server"])
def test_find_prunable_leaves_evidence_and_results(kit, kind, monkeypatch):
    monkeypatch.setattr("fedmerit_deploy.kit_files.read_kind", lambda kit: kind)
    found = find_prunable(kit, 90)
    names = sorted(path.name for path in found)
    assert ("round_00000.pt" in names) == (kind == "client")
    assert "log.txt.2" in names
    assert "log.txt.1" not in names
    assert len(names) == (3 if kind == "client" else 2)
    assert delete_files(found) == 10 * len(names)
    assert find_prunable(kit, 90) == []
    assert len(list(kit.glob("runs/*/sites/A/site_log.jsonl"))) == 2
