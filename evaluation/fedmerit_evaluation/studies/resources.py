"""What a run will take of a machine: memory, images to train on; and so how many go side by side."""

from pathlib import Path

import torch

from fedmerit.configuration.description import read_plan
from fedmerit.machine import cores, free_memory
from fedmerit.records.results import read_run
from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit.trainers.monai_trainer.machine_settings import assign_devices, configured_device, pick_device
from fedmerit.trainers.monai_trainer.network_checks import count_feature_maps, count_parameters
from fedmerit.trainers.monai_trainer.patches import build_samples

BASE_MEMORY = 0.4e9  # bytes of a process that has loaded PyTorch and MONAI
GPU_CONTEXT = 0.6e9  # bytes of a GPU that a process takes before it holds any tensor there
FREE_SHARE = 0.8  # of what is free, to count on


def choose_worker_count(folder: Path) -> int:
    """How many runs such as that of ``folder`` this machine can train at a time.

    By its cores and free memory, and by the free memory of the GPUs that the run's sites work on.
    """
    info = read_run(folder)
    config = read_plan(folder)
    rooms = [FREE_SHARE * free_memory() / estimate_memory(folder)]
    rooms += [FREE_SHARE * torch.cuda.mem_get_info(gpu)[0] / estimate_gpu_memory(folder) for gpu in _gpus(folder)]
    return max(1, min(cores() // (config.training.cpu_threads * (info["threads"] or 1)), *map(int, rooms)))


def estimate_memory(folder: Path) -> float:
    """Bytes that the process of a run needs in the end, estimated: models of all sites, one batch of feature maps."""
    parameters, maps, sites = _sizes(folder)
    return float(BASE_MEMORY + 4.0 * ((5 * sites + 5) * parameters + maps))


def estimate_gpu_memory(folder: Path) -> float:
    """Bytes of a GPU that the process of a run takes at most: every site's network, the training of one of them."""
    parameters, maps, sites = _sizes(folder)
    return float(GPU_CONTEXT + 4.0 * ((sites + 5) * parameters + maps))


def _sizes(folder: Path) -> tuple[int, float, int]:
    """Parameters of a run's network, numbers in the feature maps of one batch, and sites."""
    info = read_run(folder)
    config = read_plan(folder)
    return count_parameters(config), count_feature_maps(config, info["image_size"]), len(info["sites"])


def _gpus(folder: Path) -> list[torch.device]:
    """The GPUs that the sites of a run work on."""
    info = read_run(folder)
    setting = assign_devices(info["device"], info["sites"])
    devices = {pick_device(configured_device(site, setting), site) for site in info["sites"]}
    return sorted((device for device in devices if device.type == "cuda"), key=str)


def images_of(folder: Path) -> int:
    """How many training images a run takes in all, over sites, rounds and steps: what its time goes by."""
    info = read_run(folder)
    config = read_plan(folder)
    training = config.training
    sites = open_sites(Path(info["sites_folder"]), info["sites"])
    if training.steps:
        return config.rounds * len(sites) * training.steps * training.batch_size
    per_epoch = sum(len(build_samples(site.cases("training"), config.network.patch)) for site in sites)
    return config.rounds * per_epoch * training.epochs
