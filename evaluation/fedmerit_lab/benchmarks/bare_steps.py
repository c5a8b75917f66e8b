"""The steps of a FedCE round and nothing else: ``python -m fedmerit_lab.benchmarks.bare_steps RUN ENDS``.

Forward, backward and optimiser over every site's training images, and two validations, of the received model and of
the one without the site; as many sites at a time as there are cores. It is the minimum of a round.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from fedmerit.machine import cores
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.monai.local_training import train
from fedmerit.trainers.monai.prediction import evaluate
from fedmerit.trainers.monai.samples import Slices


def main(run: str, ends: str) -> None:
    """Execute the steps of as many rounds as the run has."""
    info = read_run(Path(run))
    config = RunConfiguration.from_dict(info["plan"])
    torch.set_num_threads(config.training.cpu_threads)
    sites = open_sites(Path(info["sites_folder"]), info["sites"])
    networks = {site.name: initial_network(config.network, config.seed) for site in sites}

    def steps(site: SiteFolder) -> None:
        network = networks[site.name]
        train(network, Slices(site.cases("training")), config.training, config.training.lr, seed=0)
        for _ in range(2):
            evaluate(network, site.cases("validation"), site.labels, config.training.amp)

    with Path(ends).open("a", buffering=1) as file, ThreadPoolExecutor(cores()) as threads:
        for _ in range(config.rounds):
            list(threads.map(steps, sites))
            file.write(f"{time.time()}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
