"""What runs take of a machine, estimated, and so how many go side by side."""

import resource

import pytest
import torch
from run_factory import make_sites
from tiny import TINY

from fedmerit.engines import runs
from fedmerit_evaluation.studies import execution
from fedmerit_evaluation.studies.execution import Workers, execute_all

SITES = ("Alder", "Birch", "Cedar")
MEMORY_FILE = "peak.txt"


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    return make_sites(tmp_path_factory.mktemp("costs") / "sites", SITES, size=32)


def create(folder, sites, rounds=2, settings=(), **options):
    settings = TINY | dict(settings)
    runs.create(folder, method="fedavg", sites=sites, rounds=rounds, engine="local", settings=settings, **options)
    return folder


@pytest.fixture
def machine(monkeypatch):
    """A machine of so many free cores and bytes."""

    def have(cores, memory):
        monkeypatch.setattr(execution, "cores", lambda: cores)
        monkeypatch.setattr(execution, "free_memory", lambda: memory)

    return have


def test_choose_worker_count_uses_cores_and_memory(sites, tmp_path, machine):
    run = create(tmp_path / "run", sites)
    need = execution.estimate_memory(run)
    for cores, memory, expected in ((8, 100 * need, 8), (8, 5 * need, 4), (1, 100 * need, 1), (8, need / 2, 1)):
        machine(cores, memory)
        assert execution.choose_worker_count(run) == expected
    machine(8, 100 * need)
    assert execution.choose_worker_count(create(tmp_path / "sites", sites, threads=4)) == 2
    assert execution.choose_worker_count(create(tmp_path / "more", sites, threads=16)) == 1


def test_choose_worker_count_uses_gpu_memory(sites, tmp_path, machine, monkeypatch):
    run = create(tmp_path / "run", sites)
    need = execution.estimate_gpu_memory(run)
    free = {"cuda:0": 100 * need, "cuda:1": 4 * need}
    monkeypatch.setattr(execution, "_gpus", lambda folder: list(free))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (free[gpu], 0))
    machine(8, 100 * execution.estimate_memory(run))
    assert execution.choose_worker_count(run) == 3
    free["cuda:1"] = need / 2
    assert execution.choose_worker_count(run) == 1


def test_gpus_are_those_of_its_sites(sites, tmp_path, monkeypatch):
    run = create(tmp_path / "run", sites)
    assert execution._gpus(run) == ([] if not torch.cuda.is_available() else [torch.device("cuda")])
    monkeypatch.setattr(execution, "pick_device", lambda device, site: torch.device(device))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert execution._gpus(run) == [torch.device("cuda:0"), torch.device("cuda:1")]
    mixed = create(tmp_path / "mixed", sites, device="Alder=cpu,Birch=cpu,Cedar=cpu")
    assert execution._gpus(mixed) == []


def test_estimate_memory_grows_with_network_batch_and_sites(sites, tmp_path):
    least = execution.estimate_memory(create(tmp_path / "least", sites))
    assert least > execution.BASE_MEMORY
    for name, options in {
        "wider": {"settings": {"width": "16"}},
        "deeper": {"settings": {"depth": "4"}},
        "batches": {"settings": {"batch_size": "64"}},
    }.items():
        assert execution.estimate_memory(create(tmp_path / name, sites, **options)) > least
    assert execution.estimate_memory(create(tmp_path / "fewer", sites, only=["Alder", "Birch"])) < least


def note_peak(folder, sites):
    """The largest resident set of this process so far, in bytes, into a file of the run."""
    (folder / MEMORY_FILE).write_text(str(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="tiny"),
        pytest.param(
            {"architecture": "unet", "width": "16", "depth": "4", "batch_size": "16"}, id="wide", marks=pytest.mark.slow
        ),
    ],
)
def test_estimate_memory_is_near_measured(sites, tmp_path, settings):
    run, other = (create(tmp_path / name, sites, rounds=1, settings=settings) for name in ("run", "other"))
    with Workers(2) as workers:
        assert execute_all([run, other], workers, after=note_peak) == {}
    taken = int((run / MEMORY_FILE).read_text())
    assert 0.7 * taken < execution.estimate_memory(run) < 1.5 * taken, f"{taken:.3g} bytes"


def test_count_training_images_counts_steps_or_epochs(sites, tmp_path):
    run = create(tmp_path / "run", sites, rounds=3, settings={"epochs": "2"}, only=["Alder", "Birch"])
    assert execution.count_training_images(run) == 2 * 15 * 3 * 2  # sites, images, rounds, epochs
    run = create(tmp_path / "steps", sites, rounds=3, settings={"steps": "30", "batch_size": "2"})
    assert execution.count_training_images(run) == 3 * 30 * 2 * 3  # sites, steps, images of a batch, rounds
