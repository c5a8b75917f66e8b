"""What a user would run instead: NVFlare's own FedCERecipe on its simulator, the peer of the benchmarks.

``python -m fedmerit_lab.benchmarks.nvflare_peer RUN ENDS WORKSPACE THREADS`` trains the run's network on its sites;
THREADS is what it gives torch, 0: torch's default. As the sites' training script the same file is a client after
NVFlare's documentation of FedCERecipe: all arrays are in memory; it trains the network, loss, optimiser, batches and
precision of the run, without augmentation, and validates the model it receives and the one without its own update in
batches of 8.
"""

import argparse
import copy
import json
import sys
import time
from pathlib import Path

import nvflare.client as flare
import torch
from nvflare.app_opt.pt.fedce import PTFedCEHelper
from nvflare.app_opt.pt.recipes.fedce import FedCERecipe
from nvflare.recipe.sim_env import SimEnv
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.settings import Network
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import Case, open_sites
from fedmerit.trainers.factory import build_network
from fedmerit.trainers.monai.local_training import build_loss, build_optimizer


class PeerNetwork(nn.Module):
    """The run's network, as NVFlare builds it from text."""

    def __init__(self, description: str):
        super().__init__()
        self.description = description
        self.network = build_network(Network.from_dict(json.loads(description)))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (batch, labels, h, w)."""
        logits: Tensor = self.network(images)
        return logits if logits.ndim == 4 else logits[:, 0]


def in_memory(cases: tuple[Case, ...]) -> TensorDataset:
    """Return all images and masks of some cases."""
    images = torch.cat([torch.tensor(case.image).float() for case in cases])
    masks = torch.cat([torch.tensor(case.label).float() for case in cases])
    return TensorDataset(images, masks)


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader[tuple[Tensor, ...]]) -> float:
    """Return Dice over all images."""
    model.eval()
    inside, total = 0.0, 0.0
    for images, masks in loader:
        predicted = (model(images) > 0).float()
        inside += float((predicted * masks).sum())
        total += float(predicted.sum() + masks.sum())
    return 2 * inside / total if total else 1.0


def take_part() -> None:
    """Take part as a site until the job ends."""
    parser = argparse.ArgumentParser()
    for name in ("run", "ends", "threads"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    if int(given.threads):
        torch.set_num_threads(int(given.threads))
    info = read_run(Path(given.run))
    config = RunConfiguration.from_dict(info["plan"])
    flare.init()
    name = flare.get_site_name()
    (site,) = open_sites(Path(info["sites_folder"]), [name])
    training = DataLoader(in_memory(site.cases("training")), batch_size=config.training.batch_size, shuffle=True)
    validation = DataLoader(in_memory(site.cases("validation")), batch_size=8)
    model = PeerNetwork(json.dumps(info["plan"]["network"]))
    loss_function = build_loss(config.training.loss)
    precision = torch.autocast("cpu", torch.bfloat16, enabled=config.training.amp)
    previous: dict[str, Tensor] | None = None
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        if name == info["sites"][0] and previous is not None:
            _note(given.ends)
        model.load_state_dict({key: torch.as_tensor(value) for key, value in received.params.items()})
        start = copy.deepcopy(model.state_dict())
        with precision:
            dice = validate(model, validation)
        score = dice
        if previous is not None:
            weight = PTFedCEHelper.get_contribution_weight(received, name)
            minus = PTFedCEHelper.make_minus_model(model, previous, weight)
            with precision:
                score = 1 - validate(minus, validation)
        model.train()
        optimizer = build_optimizer(model, config.training, config.training.lr)
        for _ in range(config.training.epochs):
            for images, masks in training:
                optimizer.zero_grad()
                with precision:
                    logits = model(images)
                loss_function(logits.float(), masks).backward()
                optimizer.step()
        previous = copy.deepcopy(model.state_dict())
        difference = {key: previous[key] - start[key] for key in start}
        answer = flare.FLModel(params=difference, params_type=flare.ParamsType.DIFF, metrics={"dice": dice})
        flare.send(PTFedCEHelper.set_minus_model_score(answer, score))
    if name == info["sites"][0]:
        _note(given.ends)


def _note(ends: str) -> None:
    with Path(ends).open("a") as file:
        file.write(f"{time.time()}\n")


def main(run: str, ends: str, workspace: str, threads: str) -> None:
    """Run the job to its end."""
    from fedmerit_lab.benchmarks import nvflare_peer as module  # the job names the class by its module, not by __main__

    info = read_run(Path(run))
    sites = info["sites"]
    model = module.PeerNetwork(json.dumps(info["plan"]["network"]))
    recipe = FedCERecipe(
        model=model,
        min_clients=len(sites),
        num_rounds=info["rounds"],
        train_script=__file__,
        train_args=f"--run {Path(run).resolve()} --ends {Path(ends).resolve()} --threads {threads}",
        fedce_mode="times",
    )
    recipe.execute(SimEnv(clients=list(sites), num_threads=len(sites), workspace_root=str(Path(workspace).resolve())))


if __name__ == "__main__":
    take_part() if sys.argv[1].startswith("--") else main(*sys.argv[1:])
