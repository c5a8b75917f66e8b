"""Models of peers, good and spoiled, a plan in which sites learn from each other, and what a run says of pairs."""

from dataclasses import replace

import torch

from fedmerit.contract import flat
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.configuration.settings import TASKS
from fedmerit.schema.messages import PeerModel
from fedmerit.schema.results import read_results
from fedmerit.trainers.factory import initial_network

SITES = ("Alder", "Birch", "Cedar")
NAMES = ("site1", "site2", "site3")  # of generated images
EARLY = ("warmup=1", "R=2", "warmup_by=own", "score=gradients")
NAN = float("nan")


def read_plan(method="cycle", **settings):
    tiny = {"architecture": "unet", "width": 2, "depth": 2, "residual_units": 0, "warmup": 1} | (
        {"R": 3, "warmup_by": "own", "score": "gradients"} if method == "cycle" else {}
    )
    config = make_configuration(method, "prostate", 5, 0, TASKS["prostate"], tiny | settings)
    return replace(config, share_models=True)


PLAN = read_plan()
NETWORK = initial_network(PLAN.network, 0)
MODEL, BUFFERS = flat.get_parameters(NETWORK), flat.get_buffers(NETWORK)


def held(run, quantity):
    """{(round, holder, site): value}"""
    rows = read_results(run).query(f"quantity == '{quantity}'")
    return {(row.round, row.coalition, row.site): row.value for row in rows.itertuples()}


SPOILED = {
    "NaN": (lambda peer: replace(peer, parameters=peer.parameters * NAN), "NaN"),
    "infinite": (lambda peer: replace(peer, parameters=peer.parameters + float("inf")), "infinite"),
    "too short": (lambda peer: replace(peer, parameters=peer.parameters[:-1]), "shape"),
    "double precision": (lambda peer: replace(peer, parameters=peer.parameters.double()), "float64"),
    "no statistics": (lambda peer: replace(peer, buffers={}), "buffers"),
    "NaN in the statistics": (
        lambda peer: replace(peer, buffers={name: value * NAN for name, value in peer.buffers.items()}),
        "buffers",
    ),
}


def peers_of(seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {
        name: PeerModel(MODEL + 0.1 * torch.randn(MODEL.shape, generator=draw), BUFFERS, NAN)
        for name in ("site2", "site3")
    }
