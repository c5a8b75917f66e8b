"""The example's script with NVFlare's and FedMerit's helpers: what the server asks for decides which it uses."""

import copy
import tempfile
from pathlib import Path

import nvflare.client as flare
import torch
from data import images
from model import Net
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.app_opt.pt.fedproxloss import PTFedProxLoss
from nvflare.app_opt.pt.scaffold import PTScaffoldHelper
from torch.nn.functional import binary_cross_entropy_with_logits

import fedmerit.client as merit

RATE = 0.05


def dice_by_case(network, pictures, masks):
    network.eval()
    with torch.no_grad():
        found = (network(pictures) > 0).float()
    both, either = (found * masks).sum((1, 2, 3)), (found + masks).sum((1, 2, 3))
    return (2 * both / either.clamp(min=1)).tolist()


def train(network, batches, near=None, mu=0.0, after_step=lambda: None):
    network.train()
    optimizer, proximal = torch.optim.SGD(network.parameters(), lr=RATE), PTFedProxLoss(mu) if mu else None
    for pictures, masks in batches:
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(network(pictures), masks)
        (loss + (proximal(network, near) if proximal else 0)).backward()
        optimizer.step()
        after_step()


def files(site, training, folder):
    for number, picture in enumerate(training[0]):
        file = Path(folder, f"{number}.raw")
        file.write_bytes(picture.numpy().tobytes())
        yield file


def main():
    flare.init()
    site = flare.get_site_name()
    torch.manual_seed(sum(site.encode()))
    training, validation = images(site, "training"), images(site, "validation")
    batches = list(zip(training[0].split(4), training[1].split(4), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        merit.enrol_cases(files(site, training, folder), evaluated=validation[0])
    network, own, scaffold = Net(), None, PTScaffoldHelper()
    scaffold.init(network)
    while flare.is_running():
        received = merit.receive()
        if received is None:
            break
        network.load_state_dict(received.params)
        before, meta = copy.deepcopy(network), received.meta or {}
        dice = dice_by_case(network, *validation)
        metrics = {"dice": sum(dice) / len(dice), "dice_by_case": dice}
        if flare.is_evaluate():
            losses = [1 - one for one in dice]
            flare.send(merit.with_losses(flare.FLModel(metrics=metrics), losses))
            continue
        losses = [1 - one for one in dice_by_case(network, *training)]
        controls = meta.get(AlgorithmConstants.SCAFFOLD_CTRL_GLOBAL)
        if controls is None:
            train(network, batches, before, meta.get("fedprox_mu", 0.0))
        else:
            scaffold.load_global_controls(controls)
            both = scaffold.get_params()
            train(network, batches, after_step=lambda terms=both: scaffold.model_update(network, RATE, *terms))
            scaffold.terms_update(network, RATE, *both, before)
        result = flare.FLModel(params=network.state_dict(), metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": 6})
        if controls is not None:
            result.meta[AlgorithmConstants.SCAFFOLD_CTRL_DIFF] = scaffold.get_delta_controls()
        if "ditto_lambda" in meta:
            own = own or copy.deepcopy(before)
            train(own, batches, before, meta["ditto_lambda"])
            merit.with_own_model(result, own.state_dict())
        flare.send(merit.with_losses(result, losses))


if __name__ == "__main__":
    main()
