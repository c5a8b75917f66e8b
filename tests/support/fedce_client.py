"""FedCE as NVFlare 2.9 wants it of a site: differences, and what the model without this site scores here."""

import nvflare.client as flare
import torch
from data import images
from model import Net
from nvflare.app_common.abstract.fl_model import ParamsType
from nvflare.app_opt.pt.fedce import PTFedCEHelper
from torch.nn.functional import binary_cross_entropy_with_logits


def mean_dice(network, pictures, masks):
    network.eval()
    with torch.no_grad():
        found = (network(pictures) > 0).float()
    both, either = (found * masks).sum((1, 2, 3)), (found + masks).sum((1, 2, 3))
    return float((2 * both / either.clamp(min=1)).mean())


flare.init()
site = flare.get_site_name()
torch.manual_seed(int(site.rpartition("-")[2] or 0))
training, validation = images(site, "training"), images(site, "validation")
network = Net()
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
mine, minus = None, []
while flare.is_running():
    received = flare.receive()
    network.load_state_dict(received.params)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    dice = mean_dice(network, *validation)
    weight = PTFedCEHelper.get_contribution_weight(received, site)
    without = 0.0 if mine is None else mean_dice(PTFedCEHelper.make_minus_model(network, mine, weight), *validation)
    minus.append(without)
    network.train()
    for pictures, masks in zip(training[0].split(4), training[1].split(4), strict=True):
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(network(pictures), masks).backward()
        optimizer.step()
    mine = {name: value.clone() for name, value in network.state_dict().items()}
    change = {
        name: value - before[name] if value.is_floating_point() else torch.zeros_like(value)
        for name, value in mine.items()
    }
    steps = {"NUM_STEPS_CURRENT_ROUND": len(training[0]) // 4}
    result = flare.FLModel(params=change, params_type=ParamsType.DIFF, metrics={"dice": dice}, meta=steps)
    flare.send(PTFedCEHelper.set_minus_model_score(result, 1 - sum(minus) / len(minus)))
