"""The local engine: all sites in one process. The same sites, the same methods, no network."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from fedmerit.attacks.attacker_site import wrap_attacker
from fedmerit.configuration.run import RunConfiguration
from fedmerit.engines.pooled_training import pool_sites
from fedmerit.federation.exchange import Exchange
from fedmerit.federation.server import Federation
from fedmerit.federation.site import Site
from fedmerit.machine import cores, give_back_memory
from fedmerit.records.ciphertexts import SiteKey
from fedmerit.trainers.monai_trainer.data import SiteFolder
from fedmerit.trainers.monai_trainer.machine_settings import SERVER
from fedmerit.wire.messages import Answer, PeerModel, Reply, Task, Work

OnExchange = Callable[[Mapping[str, Work], Mapping[str, Answer]], None]


def run_local(
    config: RunConfiguration,
    folders: Sequence[SiteFolder],
    run: Path,
    devices: Mapping[str, str] | None = None,
    on_round: Callable[[Mapping[str, Any]], None] = lambda record: None,
    threads: int | None = None,
    server_sites: Sequence[SiteFolder] = (),
    attacks: Mapping[str, str] | None = None,
    filtered: Callable[[Answer], Answer] | None = None,
    min_sites: int = 1,
    contexts: tuple[bytes, bytes] | None = None,
    on_exchange: OnExchange = lambda tasks, answers: None,
) -> None:
    """Train and test; goes on from the last complete round of ``run``.

    Args:
        config: the run.
        folders: the sites.
        run: the run folder.
        devices: by site name, and that of the server's own evaluation as "server"; "auto" for those not named.
        on_round: called with every round's ledger record.
        threads: sites at work at a time; as many as there are cores for by default.
        server_sites: the server's own images, for methods that have candidates evaluated; else the sites' shares.
        attacks: by site name, the spec of what it does in the place of honest rounds; the others are honest.
        filtered: what the run's privacy filters make of an answer on its way to the server, where it has any.
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
    attacks = attacks or {}
    sites: dict[str, Site] = {}
    for folder in folders:
        name = folder.name

        def ask_peer(peer: str, round: int, name: str = name) -> PeerModel | None:
            return sites[peer].give_model(name, round)

        key = SiteKey(of_sites) if of_sites else None  # one each: sites work in threads
        site = Site(folder, config, run / "sites" / name, devices.get(name, "auto"), ask_peer, key, names)
        sites[name] = wrap_attacker(site, attacks.get(name))
    if federation.can.pools_images:
        sites = dict(zip(sites, pool_sites(list(sites.values())), strict=True))
    threads = threads or max(1, cores() // config.training.cpu_threads)

    def answer(name: str, task: Work) -> Answer:
        answer = sites[name].answer(task)
        if filtered is not None and isinstance(task, Task):
            answer = filtered(answer)
            if isinstance(answer, Reply):
                sites[name].sent(task, answer.update)
        return answer

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
