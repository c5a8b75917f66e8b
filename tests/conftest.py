"""Three small generated hospitals, runs on them that tests share, and what it means that two runs are the same.

What takes seconds to import is imported where it is used: the process that deals the tests out reads this file too,
and none of the others begins before it has.
"""

import fcntl
import gc
import hashlib
import json
import os
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import settings
from tiny import flags

if TYPE_CHECKING:
    from torch import Tensor
    from typer.testing import Result


# Programs of this environment (python3 of start scripts, dciodvfy, dcmqi's), whether it is activated or not.
settings.register_profile("unhurried", deadline=None)  # no test depends on the clock
settings.load_profile("unhurried")
gc.disable()  # a third of the time of collecting, else
os.fsync = lambda file: None  # no test ends with the machine
serialization.load_pem_private_key = cache(serialization.load_pem_private_key)  # a check of 38 ms, once a key
KEYS = cycle([cache(partial(rsa.generate_private_key, 65537, 2048)) for _ in range(24)])  # no test has more of its own
rsa.generate_private_key = lambda public_exponent, key_size, backend=None: next(KEYS)()
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if not IS_WORKER:
    STATE = tempfile.TemporaryDirectory()  # instead of the user's; of all processes of a session
    os.environ["XDG_STATE_HOME"] = STATE.name
os.environ["PATH"] = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))

NAMES = ("site1", "site2", "site3")
ROUNDS = 3
# Files that take half a minute, or wait for processes: first, so that no process is left with one at the end.
LONGEST = (
    "tests/test_wheel.py",
    "fedmerit_deploy/test_session.py",
    "engines/test_local.py",
    "report/test_redaction.py",
    "studies/test_cluster.py",
    "nvflare/test_simulator.py",
    "verification/test_outcomes.py",
    "report/test_browser.py",
    "fedmerit_deploy/test_audit.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; runs of several files at a time keep that order."""

    def place(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((i for i, name in enumerate(LONGEST) if path.endswith(name)), len(LONGEST))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """What there is by now, a million objects, is no garbage: it is looked through no more."""
    gc.freeze()
    gc.enable()


def generate(root: Path, names: Sequence[str], **changes: Any) -> None:
    """Site folders of some of the generated hospitals: volumes of five slices, and as few of them as can be."""
    from fedmerit_data.preparation import Preparation
    from fedmerit_data.prepare import prepare
    from fedmerit_data.synthetic import prostate

    scanners = {
        name: replace(one, thickness=7.0, pixels=one.pixels // 3, spacing=3 * one.spacing)
        for name, one in prostate.SITES.items()
        if name in names
    }
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(prostate, "SLICES", 5)
        changed.setattr(prostate, "SITES", scanners)
        prepare(Preparation("synthetic-prostate", size=32, **{"seed": 2, **changes}), root)  # three to train on each


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """What a test, or the product's `follow_manifest`, sets for its process ends with the test."""
    before = dict(os.environ)
    yield
    if os.environ != before:  # setting all again would take a third of a quick test's time
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def fresh_versions() -> Iterator[None]:
    """Versions of packages are looked up again, in the test and after it."""
    from fedmerit.version import package_version

    package_version.cache_clear()
    yield
    package_version.cache_clear()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """A folder for all processes of a session, made by the first that asks for its name: never change it."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if IS_WORKER else base) / "shared"
    root.mkdir(exist_ok=True)

    def made(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = root / name, root / f"{name}.done"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def sites(once: Callable[..., Path]) -> Path:
    """Site folders of three hospitals, 15 training slices of 32 x 32 pixels each."""
    return once("data", lambda folder: generate(folder / "sites", NAMES, patients=5)) / "sites"


@pytest.fixture(scope="session")
def folded_sites(once: Callable[..., Path]) -> Path:
    """Site folders of two hospitals in three folds."""
    return once("folded_data", lambda folder: generate(folder / "sites", NAMES[:2], patients=5, folds=3)) / "sites"


@pytest.fixture(scope="session")
def server_sites_data(once: Callable[..., Path]) -> Path:
    """As `sites`, with images set aside for the server; beside it ``server/site4``, a folder of the server's own."""

    def make(folder: Path) -> None:
        generate(folder / "sites", (*NAMES, "site4"), patients=6, server_share=0.2)
        (folder / "server").mkdir()
        (folder / "sites" / "site4").rename(folder / "server" / "site4")

    return once("server_data", make) / "sites"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Real images where they lie beside the checkout: never part of the project."""
    default = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("FEDMERIT_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no real images at {folder} (set FEDMERIT_DATA)")
    return folder


@pytest.fixture(scope="session")
def small() -> tuple[str, ...]:
    """Options of the smallest network, without augmentation."""
    return flags(augmentation="none")


@pytest.fixture
def own_sites(sites: Path, tmp_path: Path) -> Path:
    """A copy of `sites` that a test may spoil."""
    return Path(shutil.copytree(sites, tmp_path / "own_sites"))


@pytest.fixture(scope="session")
def fedmerit() -> "Iterator[Callable[..., Result]]":
    """The command, in this process: ``fedmerit("run", "--out", folder, ...)``."""
    from typer.main import get_command
    from typer.testing import CliRunner

    from fedmerit_cli.main import app

    def invoke(*arguments: object) -> "Result":
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("typer.testing._get_command", cache(get_command))  # a command line is taken apart once
        yield invoke


@pytest.fixture(scope="session")
def scripts() -> Path:
    """Folder of the installed commands, ``fedmerit`` and ``nvflare`` among them."""
    return Path(sysconfig.get_path("scripts"))


@pytest.fixture(scope="session")
def options(sites: Path) -> Callable[..., tuple[str, ...]]:
    """The options of ``fedmerit run`` for a tiny run; settings and keywords replace or add, ``None`` removes."""

    def build(*settings: str, **changes: object) -> tuple[str, ...]:
        chosen = {"method": "fedce", "sites": sites, "rounds": ROUNDS, "engine": "local"} | changes
        guard = [f"guard={chosen.pop('guard')}"] if "guard" in chosen else []
        given = [text for name, value in chosen.items() if value is not None for text in (f"--{name}", str(value))]
        named = {setting.partition("=")[0]: setting for setting in (*flags()[1::2], *guard, *settings)}
        return *given, *(text for setting in named.values() for text in ("--set", setting))

    return build


@pytest.fixture(scope="session")
def trained(
    fedmerit: "Callable[..., Result]", options: Callable[..., tuple[str, ...]], once: Callable[..., Path]
) -> Callable[..., Path]:
    """A whole run with these options, made at first use and shared from then on: never change it."""
    from fedmerit.server.checkpoint import is_finished

    def train(run: Path, given: tuple[str, ...]) -> None:
        with pytest.MonkeyPatch.context() as changed:  # what is printed of it takes a fifth of its time
            changed.setattr("fedmerit_cli.printing.print_cost", lambda folder: None)
            changed.setattr("fedmerit_cli.printing.print_runs", lambda folders: None)
            command = ("lab", "run") if "--attack" in given else ("run",)
            result = fedmerit(*command, "--out", run, *given)
        assert is_finished(run, json.loads((run / "run.json").read_text())["rounds"]), result.output

    def build(*settings: str, again: int = 0, **changes: object) -> Path:
        changes = {"rounds": ROUNDS, "method": "fedce", "engine": "local", "guard": "off"} | changes
        given = options(*settings, **changes)
        key = hashlib.sha256(repr((again, given)).encode()).hexdigest()[:16]
        return once(f"trained-{key}", lambda folder: train(folder / "run", given)) / "run"

    return build


@pytest.fixture
def own_run(trained: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of a whole local FedCE run that a test may spoil."""
    return Path(shutil.copytree(trained(), tmp_path / "run"))


@pytest.fixture(scope="session")
def model() -> "Callable[..., dict[str, Tensor]]":
    """The state of a finished run's model."""
    import torch

    def load(run: Path, name: str = "global") -> "dict[str, Tensor]":
        state: dict[str, Tensor] = torch.load(run / "models" / f"{name}.pt", weights_only=True)
        return state

    return load


def recorded(run: Path) -> list[str]:
    """What the records of a run's ledger say, without what only runs with certificates have."""
    from fedmerit.evidence.ledger import Ledger

    signed = ("logs", "hash", "previous", "signature")
    return [
        json.dumps({name: value for name, value in record.items() if name not in signed})
        for record in Ledger(run / "ledger.jsonl").records
    ]


@pytest.fixture(scope="session")
def assert_same_rounds() -> Callable[[Path, Path], None]:
    """Two runs, local or deployed, did the same in every round."""
    from fedmerit.evidence.ledger import Ledger

    def compare(one: Path, other: Path) -> None:
        done, same = (Ledger(run / "ledger.jsonl").records for run in (one, other))
        assert done
        for field in ("round", "participants", "updates", "weights", "contributions", "model"):
            assert [record[field] for record in done] == [record[field] for record in same]

    return compare


@pytest.fixture(scope="session")
def assert_same_model() -> Callable[[Path, Path], None]:
    """Two files of models agree bit for bit."""
    import torch

    def compare(one: Path, other: Path) -> None:
        first, second = torch.load(one, weights_only=True), torch.load(other, weights_only=True)
        assert first.keys() == second.keys()
        different = [name for name in first if not torch.equal(first[name], second[name])]
        assert not different

    return compare


@pytest.fixture(scope="session")
def assert_same_run(assert_same_model: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    """Two runs agree: models bit for bit, ledgers, and all of results.csv but the seconds."""
    from measured import rows

    def compare(one: Path, other: Path) -> None:
        models = sorted(path.name for path in (one / "models").glob("*.pt"))
        assert models
        assert models == sorted(path.name for path in (other / "models").glob("*.pt"))
        for name in models:
            assert_same_model(one / "models" / name, other / "models" / name)
        assert rows(one) == rows(other)
        assert recorded(one) == recorded(other)

    return compare


@pytest.fixture(scope="session")
def processes_of() -> Callable[[Path], list[psutil.Process]]:
    """Processes at work on a run, known by the run folder in their environment or on their command line."""

    def find(run: Path) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("FEDMERIT_RUN") == str(run.resolve()) or str(run) in process.cmdline()
                if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    return find


@pytest.fixture
def kill(processes_of: Callable[[Path], list[psutil.Process]]) -> Iterator[Callable[[Path], None]]:
    """Kill every process of a run with SIGKILL; once more when the test is over, so that none is left behind."""
    runs: list[Path] = []

    def end(run: Path) -> None:
        runs.append(run)
        deadline = time.monotonic() + 30
        while family := processes_of(run):
            assert time.monotonic() < deadline, family
            for member in family:
                if member.is_running():
                    member.kill()
            psutil.wait_procs(family, timeout=5)

    yield end
    for run in list(runs):
        end(run)


@pytest.fixture(scope="session")
def wait_for() -> Callable[[Callable[[], bool], float], None]:
    """Wait until a condition holds; fails after ``seconds``."""

    def wait(condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds} seconds"
            time.sleep(0.01)

    return wait
