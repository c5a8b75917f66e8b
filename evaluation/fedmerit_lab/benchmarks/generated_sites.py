"""Generated sites for benchmarks, of any number and size."""

import shutil
from pathlib import Path

from fedmerit.files import read_json, write_json
from fedmerit_data.preparation import Preparation
from fedmerit_data.prepare import prepare


def generated_sites(out: Path, size: int, number: int | None = None, server_share: float = 0.0) -> Path:
    """Return the folder of six generated prostate sites of ``size`` pixels, or of ``number`` copies of the first.

    Copies are equal, so that time grows only with their number. ``server_share`` of the training patients is set aside
    for the server.
    """
    kind = f"{size}px-server{server_share:g}" if server_share else f"{size}px"
    six = out / "sites" / kind
    if not six.exists():
        prepare(Preparation("synthetic-prostate", size=size, server_share=server_share), six)
    if number is None:
        return six
    root = out / "sites" / f"{kind}-{number}-alike"
    for place in range(number):
        name = f"site{place + 1:03d}"
        if not (root / name / "site.json").exists():
            skip = shutil.ignore_patterns("site.json")  # written last: the copy is complete
            shutil.copytree(six / "site1", root / name, ignore=skip, dirs_exist_ok=True)
            write_json(root / name / "site.json", {**read_json(six / "site1" / "site.json"), "name": name})
    return root
