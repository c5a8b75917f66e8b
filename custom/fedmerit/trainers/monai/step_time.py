"""How long this machine takes to train, by a few batches; and whether it takes less in mixed precision."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from fedmerit.machine import computes_bfloat16
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.settings import Training
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.trainers.monai.local_training import count_steps, train
from fedmerit.trainers.monai.networks import build_network
from fedmerit.trainers.monai.samples import build_samples

WORTH = 0.85  # of float32's time; what saves less is not worth other bits
_measured: dict[str, dict[str, float]] = {}  # in this process, so that all runs of a study compute alike


def seconds_per_image(
    config: RunConfiguration,
    folder: SiteFolder,
    device: torch.device,
    trainings: Mapping[str, Training],
    batches: int = 4,
    tries: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Measure training in each of several ways: the shortest of some tries, in turn; what they train is thrown away."""
    samples = build_samples(folder.cases("training"), config.network.patch)
    del samples.index[batches * config.training.batch_size :]
    threads, took = torch.get_num_threads(), {name: list[float]() for name in trainings}
    torch.set_num_threads(1)
    try:
        for name, training in [*trainings.items()] * tries:
            started = clock()
            train(build_network(config.network, device), samples, training, training.lr, seed=0)
            took[name].append((clock() - started) / (count_steps(samples, training) * training.batch_size))
    finally:
        torch.set_num_threads(threads)
    return {name: min(seconds) for name, seconds in took.items()}


def measure_precision(
    config: RunConfiguration, folder: SiteFolder, device: torch.device
) -> tuple[RunConfiguration, dict[str, float]]:
    """Return the run in mixed precision if training on ``device`` takes at most `WORTH` of its time in float32.

    Returns:
        The configuration, and seconds per image by precision; none of a processor without instructions for bfloat16.
    """
    on_cpu = device.type == "cpu"
    if on_cpu and not computes_bfloat16():
        return config, {}
    few = replace(config.training, epochs=1, steps=0, amp=False)
    asked = f"{config.network} {few} {folder.path} {device}"
    if asked not in _measured:
        clock = time.process_time if on_cpu else time.perf_counter  # beside other work as on an idle machine
        ways = {"float32": few, "mixed": replace(few, amp=True)}
        _measured[asked] = seconds_per_image(config, folder, device, ways, batches=2, tries=4, clock=clock)
    took = _measured[asked]
    is_faster = took["mixed"] <= WORTH * took["float32"]
    return replace(config, training=replace(config.training, amp=is_faster)), took
