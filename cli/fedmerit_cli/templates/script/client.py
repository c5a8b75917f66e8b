"""Trains at one hospital, with NVFlare's Client API; nothing in here knows of FedMerit."""

import nvflare.client as flare
import torch
from data import images
from model import Net
from torch.nn.functional import binary_cross_entropy_with_logits


def dice_by_case(network, pictures, masks):
    """Return the Dice of the network on every image."""
    network.eval()
    with torch.no_grad():
        found = (network(pictures) > 0).float()
    both, either = (found * masks).sum((1, 2, 3)), (found + masks).sum((1, 2, 3))
    return (2 * both / either.clamp(min=1)).tolist()


def main():
    """Train at one hospital, round by round."""
    flare.init()
    site = flare.get_site_name()
    torch.manual_seed(sum(site.encode()))
    training, validation = images(site, "training"), images(site, "validation")
    network = Net()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        network.load_state_dict(received.params)
        dice = dice_by_case(network, *validation)
        metrics = {"dice": sum(dice) / len(dice), "dice_by_case": dice}
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics=metrics))
            continue
        network.train()
        batches = list(zip(training[0].split(4), training[1].split(4), strict=True))
        for pictures, masks in batches:
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(network(pictures), masks).backward()
            optimizer.step()
        steps = {"NUM_STEPS_CURRENT_ROUND": len(batches)}
        flare.send(flare.FLModel(params=network.state_dict(), metrics=metrics, meta=steps))


if __name__ == "__main__":
    main()
