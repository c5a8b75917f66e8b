"""The local engine: all sites in one process, with the same sites and methods as on NVFlare, and no network.

Of a method that pools images (centralised training), the sites share one training a round.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from fedmerit.ciphertexts import SiteKey
from fedmerit.machine import cores, give_back_memory
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.messages import Answer, PeerModel, Reply, Task, Work
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.server.exchange import Exchange
from fedmerit.server.server import Federation
from fedmerit.site.machine_settings import SERVER
from fedmerit.site.site import Site, image_site
from fedmerit.trainers.factory import pool_trainers

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
        for site, trainer in zip(sites.values(), pool_trainers([site.trainer for site in sites.values()]), strict=True):
            site.trainer = trainer
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
