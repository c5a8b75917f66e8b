"""Findings: every kind is found somewhere, and what may be shared has no name; digests of sites."""

import ast
import shutil
from itertools import chain
from pathlib import Path

import numpy as np
from site_folders import edit, load

from fedmerit_data.check import examine
from fedmerit_data.checking import findings
from fedmerit_data.checking.findings import KINDS

ROOM = Path(findings.__file__).parent
SOURCES = [file for file in (*ROOM.glob("*.py"), ROOM.parent / "check.py") if file.name != "findings.py"]


def texts_in(node):
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def test_kinds_are_those_that_are_found():
    trees = [ast.parse(file.read_text()) for file in SOURCES]
    assert set(KINDS) <= set().union(*map(texts_in, trees))
    calls = [node for node in chain.from_iterable(map(ast.walk, trees)) if isinstance(node, ast.Call)]
    found = [call for call in calls if getattr(call.func, "id", getattr(call.func, "attr", "")).lower() == "finding"]
    assert len(found) > 20
    assert set().union(*(texts_in(call.args[0]) for call in found)) - {"image", "label"} <= set(KINDS)


def test_a_digest_tells_whether_anything_changed(sites, tmp_path):
    before = {site.name: site for site in examine(sites).sites}
    assert before["HK"].unchanged
    assert before["HK"].digest != before["UCL"].digest
    assert before["HK"].short_digest == " ".join(before["HK"].digest[at : at + 4] for at in (0, 4, 8, 12))
    moved = shutil.copytree(sites, tmp_path / "elsewhere")
    assert {site.name: site for site in examine(moved).sites} == before
    np.save(sites / "HK" / "cases" / "Secrettraining0_image.npy", load(sites, "HK", "training0", "image") * 1.0001)
    after = {site.name: site for site in examine(sites).sites}
    assert not after["HK"].unchanged
    assert after["HK"].digest != before["HK"].digest
    assert after["UCL"] == before["UCL"]
    edit(moved / "UCL" / "datalist.json", lambda lists: lists["training"].reverse())
    assert examine(moved).sites[1].digest != before["UCL"].digest
