"""A site that plays a few rounds of FedCE, as if others took part beside it."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from fedmerit.contract import flat
from fedmerit.files import write_json
from fedmerit.schema.configuration.run import RunConfiguration, make_configuration
from fedmerit.schema.messages import Reply, Task
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.site.site import Site
from fedmerit.trainers.factory import initial_network
from fedmerit_lab.attacks.attacker_site import wrap_attacker

LAST = 3  # rounds played: 0, 1, 2, 3
SIDE = 16  # of images
LABELS = {"prostate": ("prostate",), "fundus": ("disc", "cup")}


def write_site(path: Path, task: str) -> SiteFolder:
    """A site folder with a case of 8 images to train on and one of 2 for each other split; squares with noise."""
    random, labels, channels = np.random.default_rng(0), LABELS[task], 1 if task == "prostate" else 3
    info = {"name": path.name, "task": task, "labels": labels, "channels": channels, "image_size": [SIDE, SIDE]}
    lists = {}
    path.mkdir(parents=True)
    for split, number in (("training", 8), ("validation", 2), ("testing", 2)):
        masks = np.zeros((number, len(labels), SIDE, SIDE), np.uint8)
        for image in masks[1:]:  # the first shows nothing
            down, right = random.integers(1, SIDE // 2, 2)
            for label, plane in enumerate(image):
                plane[down + label : down + 7 - label, right + label : right + 7 - label] = 1
        noise = random.normal(0, 0.3, (number, channels, SIDE, SIDE))
        np.save(path / f"{split}_image.npy", (noise + masks.sum(1, keepdims=True)).astype(np.float32))
        np.save(path / f"{split}_label.npy", masks)
        files = {kind: f"{split}_{kind}.npy" for kind in ("image", "label")}
        lists[split] = [{"case": split, "patient": split, **files}]
    write_json(path / "site.json", info)
    write_json(path / "datalist.json", lists)
    return SiteFolder(path)


def copy_site(folder: SiteFolder, path: Path) -> SiteFolder:
    """The same images under another name."""
    shutil.copytree(folder.path, path)
    write_json(path / "site.json", {**folder.info, "name": path.name})
    return SiteFolder(path)


def config_of(folder: SiteFolder, **settings: object) -> RunConfiguration:
    """FedCE with a tiny network."""
    network = {"in_channels": folder.channels, "labels": list(folder.labels)}
    tiny = {"architecture": "unet", "width": 2, "depth": 2, "residual_units": 0, "augmentation": "none"}
    return make_configuration("fedce", folder.task, LAST + 1, 0, network, tiny | settings)


def following(site: Site, spec: str | None) -> Site:
    """Return the site, which follows the attack of a spec, or is honest."""
    return wrap_attacker(site, {} if spec is None else {site.name: spec})


def play(*sites: Site) -> tuple[list[Task], list[Reply]]:
    """Rounds in which the model moves by half of what the site sends and half of some update of others.

    Of several sites each answers every task; the last one's answer counts.
    """
    config = sites[0].config
    network = initial_network(config.network, config.seed)
    model, buffers, tasks, replies = flat.get_parameters(network), flat.get_buffers(network), [], []
    for round in range(LAST + 1):
        task = Task(round, model, buffers, None if round == 0 else 0.5, None if round == 0 else 0.5)
        for site in sites:
            reply = site.answer(task)
        assert isinstance(reply, Reply), reply
        tasks.append(task)
        replies.append(reply)
        others = 0.02 * torch.randn(len(model), generator=torch.Generator().manual_seed(round))
        model, buffers = model + 0.5 * reply.update + 0.5 * others, reply.buffers
    return tasks, replies


def steps(tasks: list[Task]) -> list[torch.Tensor]:
    """What became of the model between each task and the one before."""
    return [after.parameters - before.parameters for before, after in pairwise(tasks)]


def same_statistics(one: Reply | Task, other: Reply | Task) -> bool:
    """Whether the BatchNorm statistics of two messages agree bit for bit."""
    return all(torch.equal(one.buffers[name], value) for name, value in other.buffers.items())


def without_update(reply: Reply) -> Reply:
    """What a site says beside its update."""
    return replace(reply, update=None, buffers=None, seconds=0)
