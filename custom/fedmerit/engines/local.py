"""The local engine: all sites in one process, with the same sites and methods as on NVFlare, and no network.

Of a method that pools images (centralised training), the sites share one training a round.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from fedmerit.ciphertexts import SiteKey
from fedmerit.machine import cores, give_back_memory
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Answer, PeerModel, Reply, Task, Work
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.server.exchange import Exchange
from fedmerit.server.server import Federation
from fedmerit.site.machine_settings import SERVER
from fedmerit.site.site import Site, image_site
from fedmerit.trainers.memory import Learned, Memory
from fedmerit.trainers.monai.patches import build_samples
from fedmerit.trainers.monai.samples import Samples
from fedmerit.trainers.monai.trainer import ImageTrainer

RANDOM_STREAM = "pooled"  # part of the seeds, instead of a site's name
OnExchange = Callable[[Mapping[str, Work], Mapping[str, Answer]], None]


def run_local(
    config: RunConfiguration,
    folders: Sequence[SiteFolder],
    run: Path,
    devices: Mapping[str, str] | None = None,
    on_round: Callable[[Mapping[str, Any]], None] = lambda record: None,
    threads: int | None = None,
    server_sites: Sequence[SiteFolder] = (),
    wrap_site: Callable[[Site], Site] = lambda site: site,
    filtered: Callable[[Answer], Answer] | None = None,
    min_sites: int = 1,
    contexts: tuple[bytes, bytes] | None = None,
    on_exchange: OnExchange = lambda tasks, answers: None,
) -> None:
    """Train and test; resumes after the last complete round of ``run``.

    Args:
        devices: by site name, and that of the server's own evaluation as "server"; "auto" for those not named.
        on_round: called with every round's ledger record.
        threads: sites at work at a time; by default as many as the cores allow.
        server_sites: the server's own images, for methods that evaluate candidates; else the sites' shares.
        wrap_site: replaces every site when it is opened; the laboratory's, for simulated attacks.
        filtered: what the run's privacy filters make of an answer on its way to the server, if it has any.
        min_sites: usable answers without which the run ends.
        contexts: TenSEAL's of the sites and of the server, of an encrypted run.
        on_exchange: called with the tasks and answers of every exchange, by site, before the server makes anything of
            them.
    """
    torch.set_num_threads(config.training.cpu_threads)
    devices = devices or {}
    names = [folder.name for folder in folders]
    device, (of_sites, of_server) = devices.get(SERVER, "auto"), contexts or (None, None)
    federation = Federation(config, names, run, on_round, server_sites, device, min_sites, context=of_server)
    sites: dict[str, Site] = {}
    for folder in folders:
        name = folder.name

        def ask_peer(peer: str, round: int, name: str = name) -> PeerModel | None:
            return sites[peer].give_model(name, round)

        key = SiteKey(of_sites) if of_sites else None  # one each: sites work in threads
        own, more = devices.get(name, "auto"), {"ask_peer": ask_peer, "key": key, "participants": names}
        sites[name] = wrap_site(image_site(folder, config, run / "sites" / name, own, **more))
    if federation.can.pools_images:
        pool_sites(list(sites.values()))
    threads = threads or max(1, cores() // config.training.cpu_threads)

    def answer(name: str, task: Work) -> Answer:
        answer = sites[name].answer(task)
        if filtered is not None and isinstance(task, Task):
            answer = filtered(answer)
            if isinstance(answer, Reply):
                sites[name].sent(task, answer.update)
        return answer

    carry_out(federation, answer, threads, on_exchange)


def carry_out(
    federation: Federation, answer: Callable[[str, Work], Answer], threads: int, on_exchange: OnExchange
) -> None:
    """All exchanges of a federation: ``answer`` is a site's to a task; the others are as in `run_local`."""

    def carry(exchange: Exchange) -> None:
        """Have ``exchange`` answered; no answer is held here beyond it."""
        order = federation.largest_first(exchange.tasks)
        given = dict(zip(order, pool.map(answer, order, [exchange.tasks[name] for name in order]), strict=True))
        answers = {name: given.pop(name) for name in exchange.tasks}
        on_exchange(exchange.tasks, answers)
        for name, one in answers.items():
            exchange.take(name, one)

    with ThreadPoolExecutor(threads) as pool:
        for exchange in federation.exchanges():
            carry(exchange)
            give_back_memory()


def pool_sites(sites: Sequence[Site]) -> None:
    """Have every site train on the training images of all; they share one training a round."""
    trainers = [site.trainer for site in sites if isinstance(site.trainer, ImageTrainer)]
    cases = [case for trainer in trainers for case in trainer.folder.cases("training")]
    everything = build_samples(cases, sites[0].config.network.patch)
    training = _SharedTraining()
    for site, trainer in zip(sites, trainers, strict=True):
        site.trainer = PooledTrainer(trainer, everything, training, len(sites))


class _SharedTraining:
    """That of the last round, done by the site that comes first."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: tuple[int, Learned] | None = None

    def learn_once(self, round: int, learn: Callable[[], Learned]) -> Learned:
        with self._lock:
            if self._last is None or self._last[0] != round:
                self._last = round, learn()
            return self._last[1]


class PooledTrainer(ImageTrainer):
    """Validates and tests on a site's own images, and trains on those of all.

    Args:
        everything: all sites' training images.
        number: of sites, whose steps of a round, if the run says how many, are taken one after the other.
    """

    def __init__(self, own: ImageTrainer, everything: Samples, training: _SharedTraining, number: int):
        vars(self).update(vars(own))
        settings = self.config.training
        self.config = replace(self.config, training=replace(settings, steps=settings.steps * number))
        self._own, self.samples, self._training = own, everything, training
        self.training_seed_site = RANDOM_STREAM

    @property
    def num_samples(self) -> int:
        """Its own."""
        return self._own.num_samples

    def learn(self, task: Task, received: Tensor, memory: Memory | None, question: str) -> Learned:
        """What the one training gives."""

        def learn() -> Learned:
            return super(PooledTrainer, self).learn(task, received, memory, question)

        return self._training.learn_once(task.round, learn)
