"""The shell blocks of README and manual run as printed, but on small images, for two rounds, at three hospitals."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TRAINS = re.compile(r"fedmerit (?:run|compare|value (?:leave-one-out|shapley)|lab (?:run|attacks)) ")
# What a reader has and this machine has not, by a word of the block; and a listing.
ELSEWHERE = ("KIT", "make install", "scan.nii.gz", "DOWNLOAD", "HOST", "ws/", "benchmarks/", "IMAGES/Basel")
SMALLER = {
    r"--size \d+": "--size 32",
    r"--seeds 0,1,2": "--seeds 0,1",
    r"--into 5": "--into 3",
    r"(fedmerit verify .*)": r"\1 || test $? = 3",  # without the hospitals' logs not all is shown
}
PLACEHOLDERS = {
    "README.md": {},
    "data_quality.md": {},
    "partitions.md": {},
    "models.md": {"RUN": "runs/fedce-0"},
    "report.md": {"RUN...": "runs/fedce-0 runs/standalone-0", "NAME": "site1"},
    "tutorial.md": {},
    "running.md": {"DIR": "comparison"},
    "add_method.md": {},
    "free_riders.md": {"site4": "site3", "from=5": "from=1"},
    "valuation.md": {"RUN...": "local", "RUN": "local"},
}  # fmt: skip


def commands(page: str, placeholders: Mapping[str, str]) -> str:
    """Return the shell blocks of a page as a script for small images."""
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    blocks = [text for language, text in BLOCK.findall(path.read_text()) if not language]
    script = re.sub(r" +#.*", "", "\n".join(one for one in blocks if not any(word in one for word in ELSEWHERE)))
    for name, value in placeholders.items():
        script = script.replace(name, value)
    for printed, small in SMALLER.items():
        script = re.sub(printed, small, script)
    lines = script.splitlines()
    return "\n".join(
        line.rstrip() + " --recipe quick --rounds 2" if TRAINS.search(line) else line
        for line in lines
        if "activate" not in line
    )


def run(folder: Path, script: str) -> None:
    """Run a script in a folder, each line until the first that fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reader: IMAGES of two hospitals, prepared sites of three, two methods' runs of two seeds."""
    folder = tmp_path_factory.mktemp("hospitals")
    run(folder, "fedmerit prepare synthetic-prostate --out sites --size 32 --patients 8 --no-pictures")
    for name in ("site4", "site5", "site6"):
        shutil.rmtree(folder / "sites" / name)
    for file in (*(folder / "sites-raw" / "site1").iterdir(), *(folder / "sites-raw" / "site2").iterdir()):
        kind, name = ("masks", "_seg") if "_segmentation" in file.name else ("images", "")
        to = folder / "IMAGES" / {"site1": "Basel", "site2": "Bern"}[file.parent.name] / kind
        to.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to / file.name.replace("_segmentation", name))
    run(folder, "for seed in 0 1; do for method in fedce standalone; do fedmerit run --method $method --sites sites "
        "--engine local --rounds 2 --recipe quick --seed $seed --out runs/$method-$seed; done; done")  # fmt: skip
    return folder


@pytest.mark.parametrize("page", PLACEHOLDERS)
def test_commands_of_a_page_run_to_their_end(page: str, hospitals: Path, tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    for part in ["IMAGES"] if page in ("README.md", "tutorial.md") else ["sites", "runs"]:
        shutil.copytree(hospitals / part, folder / part)
    script = commands(page, PLACEHOLDERS[page])
    if re.search(r"prepare synthetic-\S+ --out sites\b", script):  # the page makes its own
        shutil.rmtree(folder / "sites")
    if mine := re.search(r"FEDMERIT_PARTS=(\S+)", script):
        (python,) = [
            text for language, text in BLOCK.findall((ROOT / "docs" / page).read_text()) if language == "python"
        ]
        (folder / mine[1]).write_text(python)
    assert "fedmerit" in script
    run(folder, script)
