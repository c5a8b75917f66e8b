"""How long the server's work takes, as a ratio within one run: absolute times say little on a shared machine."""

import math
import time

import pytest
import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_opt.pt.fedce import FedCEConstants, FedCEModelAggregator

from fedmerit.configuration.run import TASKS, Network
from fedmerit.core import Layout, Reports
from fedmerit.games import cosine_game, shapley
from fedmerit.methods.cgsv import CGSV
from fedmerit.methods.fedce import FedCE
from fedmerit.training import neurons
from fedmerit.training.networks import build_network
from fedmerit.training.prediction import soft_dice_losses
from fedmerit.vectors import gram

SITES, PARAMETERS, TENSORS, REPEATS = 6, 7_800_000, 60, 7  # the U-Net of the FedCE paper has some 7.8 million
NAMES = [f"layer{number:02d}.weight" for number in range(TENSORS)]

pytestmark = pytest.mark.slow  # times depend on what else the machine does


@pytest.fixture(scope="module")
def updates():
    return torch.randn(SITES, PARAMETERS, generator=torch.Generator().manual_seed(0))


def nvflare_seconds(updates):
    """One aggregation by NVFlare's FedCE aggregator, of updates that lie there by name."""
    aggregator = FedCEModelAggregator(mode="times")
    messages = [
        FLModel(
            ParamsType.DIFF,
            params=dict(zip(NAMES, torch.tensor_split(update, TENSORS), strict=True)),
            meta={"client_name": f"site-{site}", FedCEConstants.MINUS_MODEL_SCORE: 0.5},
            current_round=1,
        )
        for site, update in enumerate(updates)
    ]
    started = time.perf_counter()
    for message in messages:
        aggregator.accept_model(message)
    aggregator.aggregate_model()
    return time.perf_counter() - started


def our_seconds(method, updates):
    """One round of ours, of the same updates; the second, since the first of FedCE knows no errors yet."""
    everyone = torch.ones(SITES, dtype=torch.bool)
    values = {name: torch.full((SITES,), 0.5, dtype=torch.float64) for name in method.asks}
    reports = Reports(torch.full((SITES,), 10.0, dtype=torch.float64), everyone, values)
    state = method.start(
        torch.zeros(PARAMETERS), SITES, Layout.of(*(len(part) for part in updates[0].tensor_split(TENSORS)))
    )
    state, _ = method.round(state, updates, reports)
    started = time.perf_counter()
    _, outcome = method.round(state, updates, reports)
    seconds = time.perf_counter() - started
    assert math.isclose(float(outcome.weights.sum()), 1)
    return seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [FedCE(), CGSV(reward="global"), CGSV(reward="global", contribution="exact")],
    ids=["fedce", "cgsv", "cgsv exact"],
)
def test_aggregation_takes_at_most_a_quarter_of_nvflares_time(method, updates):
    """The best of runs in turn, six updates of 7.8 million parameters each; one model comes out, as of NVFlare's."""
    ours, theirs = zip(*((our_seconds(method, updates), nvflare_seconds(updates)) for _ in range(REPEATS)), strict=True)
    assert min(ours) <= min(theirs) / 4


def test_exact_shapley_values_of_twenty_sites_take_two_seconds_at_most():
    """Beyond the Gram matrix."""
    updates = torch.nn.functional.normalize(torch.randn(20, 1000, generator=torch.Generator().manual_seed(0)), dim=1)
    products, weights = gram(updates), torch.full((20,), 1 / 20)
    started = time.perf_counter()
    values = shapley(cosine_game(products, weights))
    seconds = time.perf_counter() - started
    assert float(values.sum()) == pytest.approx(1)  # the value of all sites together
    assert seconds <= 2


@pytest.mark.slow
def test_exact_importance_takes_at_most_three_quarters_of_a_naive_loops_time():
    """Of processor time: on one image, the default network once for each of its 1712 neurons, here for some of them."""
    network = build_network(Network(**TASKS["prostate"]), torch.device("cpu")).eval()
    random = torch.Generator().manual_seed(0)
    image = torch.randn(1, 64, 64, generator=random), (torch.rand(1, 64, 64, generator=random) > 0.5).float()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        started = time.process_time()
        neurons.loss_increases(network, [image], "exact")
        ours = time.process_time() - started
        started = time.process_time()
        with torch.no_grad():
            for _ in range(100):
                soft_dice_losses(network(image[0][None]), image[1][None])
        naive = (time.process_time() - started) / 100 * neurons.count(network)
    finally:
        torch.set_num_threads(threads)
    assert ours <= 0.75 * naive
