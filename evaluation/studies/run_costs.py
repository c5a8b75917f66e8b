"""What a run will take of a machine: memory, images to train on; and so how many go side by side."""

from pathlib import Path

import torch

from fedmerit.configuration.description import plan_of
from fedmerit.machine import cores, free_memory
from fedmerit.records.results import read_run
from fedmerit.training.data import open_sites
from fedmerit.training.patches import samples_of
from fedmerit.training.place import device_of, pick_device, shared_out
from fedmerit.training.sizes import maps_of, parameters_of

BASE_MEMORY = 0.4e9  # bytes of a process that has loaded PyTorch and MONAI
GPU_CONTEXT = 0.6e9  # bytes of a GPU that a process takes before it holds any tensor there
FREE_SHARE = 0.8  # of what is free, to count on


def workers_for(folder: Path) -> int:
    """How many runs such as that of ``folder`` this machine can train at a time.

    By its cores and free memory, and by the free memory of the GPUs that the run's sites work on.
    """
    info = read_run(folder)
    config = plan_of(folder)
    rooms = [FREE_SHARE * free_memory() / memory_of(folder)]
    rooms += [FREE_SHARE * torch.cuda.mem_get_info(gpu)[0] / gpu_memory_of(folder) for gpu in _gpus(folder)]
    return max(1, min(cores() // (config.training.cpu_threads * (info["threads"] or 1)), *map(int, rooms)))


def memory_of(folder: Path) -> float:
    """Bytes that the process of a run needs in the end, estimated: models of all sites, one batch of feature maps."""
    parameters, maps, sites = _sizes(folder)
    return float(BASE_MEMORY + 4.0 * ((5 * sites + 5) * parameters + maps))


def gpu_memory_of(folder: Path) -> float:
    """Bytes of a GPU that the process of a run takes at most: every site's network, the training of one of them."""
    parameters, maps, sites = _sizes(folder)
    return float(GPU_CONTEXT + 4.0 * ((sites + 5) * parameters + maps))


def _sizes(folder: Path) -> tuple[int, float, int]:
    """Parameters of a run's network, numbers in the feature maps of one batch, and sites."""
    info = read_run(folder)
    config = plan_of(folder)
    return parameters_of(config), maps_of(config, info["image_size"]), len(info["sites"])


def _gpus(folder: Path) -> list[torch.device]:
    """The GPUs that the sites of a run work on."""
    info = read_run(folder)
    setting = shared_out(info["device"], info["sites"])
    devices = {pick_device(device_of(site, setting), site) for site in info["sites"]}
    return sorted((device for device in devices if device.type == "cuda"), key=str)


def images_of(folder: Path) -> int:
    """How many training images a run takes in all, over sites, rounds and steps: what its time goes by."""
    info = read_run(folder)
    config = plan_of(folder)
    training = config.training
    sites = open_sites(Path(info["sites_folder"]), info["sites"])
    if training.steps:
        return config.rounds * len(sites) * training.steps * training.batch_size
    per_epoch = sum(len(samples_of(site.cases("training"), config.network.patch)) for site in sites)
    return config.rounds * per_epoch * training.epochs
