"""The local engine: all sites in one process, with the same sites and methods as on NVFlare, and no network.

Of a method that pools images (centralised training), the sites share one training a round.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack

import torch

from fedmerit.ciphertexts import SiteKey
from fedmerit.engines.engine import OnExchange, OpenRun
from fedmerit.errors import RunFailed
from fedmerit.machine import cores, give_back_memory
from fedmerit.schema.configuration.specs import filter_names
from fedmerit.schema.messages import Answer, PeerModel, Reply, Task, Work
from fedmerit.server.exchange import Exchange
from fedmerit.server.server import Federation
from fedmerit.site.machine_settings import SERVER
from fedmerit.site.site import Site
from fedmerit.trainers.factory import build_network, pool_trainers

log = logging.getLogger(__name__)


def run_local(run: OpenRun) -> None:
    """Carry out a run in this process, its sites in threads."""
    config, at_sites = run.config, run.sites
    if not config.script:  # a script has processes of its own
        torch.set_num_threads(1)
    key_of_sites, key_of_server = run.contexts or (None, None)
    federation = Federation(
        config,
        at_sites.names,
        run.folder,
        run.on_round,
        at_sites.server_folders,
        at_sites.device(SERVER),
        run.waiting.min_sites,
        context=key_of_server,
    )
    apply_filters = _build_filter(run)
    sites: dict[str, Site] = {}

    def answer(name: str, task: Work) -> Answer:
        """Have a site answer, and apply the run's privacy filters to what it trained, as on its way to the server."""
        reply = sites[name].answer(task)
        if apply_filters is not None and isinstance(task, Task):
            reply = apply_filters(reply)
            if isinstance(reply, Reply):
                sites[name].sent(task, reply.update)
        return reply

    # of a run that is stopped the sites end first, so that no thread waits for them
    with ThreadPoolExecutor(run.threads or cores()) as pool, ExitStack() as stack:
        for name in at_sites.names:

            def ask_peer(peer: str, round: int, name: str = name) -> PeerModel | None:
                return sites[peer].give_model(name, round)

            key = SiteKey(key_of_sites) if key_of_sites else None  # one each: sites work in threads
            memory = run.folder / "sites" / name
            site = stack.enter_context(at_sites.open_site(name, config, memory, ask_peer, key))
            site.filters = tuple(filter_names(run.privacy))
            sites[name] = run.laboratory.wrap_site(site)
        if federation.can.pools_images:
            pooled = pool_trainers([site.trainer for site in sites.values()])
            for site, trainer in zip(sites.values(), pooled, strict=True):
                site.trainer = trainer
        failures = at_sites.failures
        try:
            carry_out(federation, answer, pool, run.on_exchange)
        except RunFailed as error:
            raise RunFailed("\n".join([str(error), *(failures[name] for name in sorted(failures))])) from error
        for name in sorted(failures):
            log.warning("%s", failures[name])


def carry_out(
    federation: Federation, answer: Callable[[str, Work], Answer], pool: Executor, on_exchange: OnExchange
) -> None:
    """Carry out every exchange of a federation.

    Args:
        federation: the server's half of the run.
        answer: called with the name of a site and its task; returns the answer of the site.
        pool: has sites answer side by side.
        on_exchange: called before the server makes anything of the answers.
    """

    def carry(exchange: Exchange) -> None:
        """Have ``exchange`` answered; no answer is held here beyond it."""
        order = federation.largest_first(exchange.tasks)
        replies = dict(zip(order, pool.map(answer, order, [exchange.tasks[name] for name in order]), strict=True))
        answers = {name: replies.pop(name) for name in exchange.tasks}
        on_exchange(exchange.tasks, answers)
        for name, reply in answers.items():
            exchange.take(name, reply)

    for exchange in federation.exchanges():
        carry(exchange)
        give_back_memory()


def _build_filter(run: OpenRun) -> Callable[[Answer], Answer] | None:
    """Return a function that applies the privacy filters to an answer; None if there are none, or it is encrypted."""
    if run.contexts or not run.privacy:
        return None
    from fedmerit.engines.nvflare.privacy import build_answer_filter  # NVFlare takes seconds to import

    return build_answer_filter(run.privacy, build_network(run.config.network))
