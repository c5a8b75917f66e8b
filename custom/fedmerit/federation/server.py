"""The server's half of a run, whatever the engine: tasks out, replies in, record, checkpoint. It holds no formula."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedmerit import flat
from fedmerit.configuration.run import RunConfiguration
from fedmerit.core import CandidateResults, Candidates, Layout, Reports
from fedmerit.errors import BadInput, RunFailed
from fedmerit.federation.checkpoint import CHECKPOINT, read_checkpoint
from fedmerit.federation.evaluating import evaluate_models, require_fit, weigh_neurons
from fedmerit.federation.evidence import evidence_of
from fedmerit.federation.peers import givers
from fedmerit.federation.recorder import Recorder, Replies, or_none
from fedmerit.files import write_atomically
from fedmerit.records.ciphertexts import Adder, Sealed
from fedmerit.records.ledger import digest
from fedmerit.records.signing import Signer
from fedmerit.training import neurons
from fedmerit.training.data import SERVER_SPLIT, SiteFolder
from fedmerit.training.networks import build_network, initial_network, save_network
from fedmerit.training.overlaps import mean_dice
from fedmerit.training.place import pick_device
from fedmerit.vectors import gram
from fedmerit.wire.inspection import fault_of_evaluated, fault_of_reply, fault_of_weighed
from fedmerit.wire.messages import (
    EVALUATE,
    TRAIN,
    Answers,
    Evaluated,
    Evaluation,
    Failure,
    Patch,
    PeerModel,
    Reply,
    Task,
    Weighed,
    Weighing,
    Work,
    payload,
)

NO_REPLY = Failure("no reply")
FOREIGN = "not a site that was asked"
LONGEST_REASON = 200  # characters; a site may have written them
AnswerKind = TypeVar("AnswerKind", Reply, Evaluated, Weighed)


@dataclass(frozen=True)
class _Round:
    """A round whose updates are in."""

    replies: Replies
    rejected: dict[str, str]
    tasks: Mapping[str, Work]
    updates: Tensor  # (n, d)
    reports: Reports
    seconds: float = 0.0  # of the server's work on it so far


class Federation:
    """Rounds of one run, from its last complete one.

    An engine does what `work` says, sends out `tasks` and hands the answers to `take`, until there is no work.

    Args:
        configuration: the run.
        sites: their names; the order is always the sorted one. Where a run goes on, some of its sites may be
            missing: they count as absent.
        run: the run folder. Where it holds a checkpoint, the run goes on from there.
        on_round: called with every round's ledger record, those of earlier processes included.
        server_sites: folders of the server's own images, to evaluate on what otherwise the sites evaluate on the
            images set aside for it.
        device: on which the server evaluates on its own images.
        min_sites: usable answers without which no exchange ends; those of all sites asked, where fewer are.
        signer: of the ledger's records; None: they are not signed.
        context: TenSEAL's, in which updates come encrypted; None: they come in the clear.

    Raises:
        BadInput: ``server_sites`` are of another task, there are too few or too many sites for the method, or
            others than the checkpoint's.
    """

    def __init__(
        self,
        config: RunConfiguration,
        sites: Sequence[str],
        run: Path,
        on_round: Callable[[Mapping[str, Any]], None] = lambda record: None,
        server_sites: Sequence[SiteFolder] = (),
        device: str = "auto",
        min_sites: int = 1,
        signer: Signer | None = None,
        context: bytes | None = None,
    ):
        checkpoint = read_checkpoint(run)
        self.sites = sorted(sites) if checkpoint is None else _known_sites(checkpoint, sites, run)
        self.config, self.run, self.on_round, self.min_sites = config, run, on_round, min_sites
        self.method = config.build_method()
        require_sites(config, self.sites)
        run.mkdir(parents=True, exist_ok=True)
        self.recorder = Recorder(config, self.sites, run, signer)
        self.network = initial_network(config.network, config.seed)
        for folder in server_sites:
            require_fit(config, folder)
        self.device = device
        self.server_cases = [case for folder in server_sites for cases in folder.splits.values() for case in cases]
        self.round = 0
        model, statistics = flat.get_parameters(self.network), flat.get_buffers(self.network)
        self.adder = None if context is None else Adder(context, len(model), statistics)
        self.sealed: Sealed | None = None  # the sum of all rounds' updates and the mean of statistics, encrypted
        self.blind = self.method.models_stay or self.adder is not None  # whether no model and no update is seen here
        self.models = torch.empty(0) if self.blind else model  # (d,), or (n, d)
        sizes = tuple(parameter.numel() for parameter in flat.trainable(self.network).values())
        layout = Layout(sizes, neurons.owners(self.network))
        self.state = self.method.start(self.models, len(self.sites), layout)
        self.neurons: Tensor | None = None  # (n, H) bool: which neurons each site holds; None: all
        self.buffers: list[flat.Buffers] = [{} if self.blind else statistics] * len(self.sites)
        self.weights: Tensor | None = None  # (n,) of the last aggregation; NaN for sites with no part in it
        self.data_share: Tensor | None = None  # (n,) likewise
        self.changed: Tensor | None = None  # (n, d) bool: where a site's model is not what it received last; None: all
        self.mean_update: Tensor | None = None  # (d,) weighted mean of the last round's updates
        self.num_samples: dict[str, int] = {}  # by site, what it said in its first round: it may not change
        self._tasks: Mapping[str, Work] | None = None  # of this exchange
        self._refused: dict[str, str] = {}  # by name, why messages of this exchange were not taken for answers
        self._pending: tuple[_Round, Evaluation] | None = (
            None  # waits for what the sites say of the method's candidates
        )
        self._weighing: Weighing | None = None  # waits for what the sites say of neurons
        self._weighed: tuple[int, dict[str, str]] = 0, {}  # bytes sent to each site for it, and who gave no answer
        self._resume(checkpoint)
        self._survey()

    @property
    def training(self) -> bool:
        """Whether rounds are left to train."""
        return self.round < self.config.rounds

    @property
    def finished(self) -> bool:
        """Whether the final models are tested and saved."""
        return self.round > self.config.rounds

    @property
    def work(self) -> str | None:
        """What the sites have to do now: `TRAIN`, `EVALUATE`, or nothing more."""
        if self.finished:
            return None
        return TRAIN if self.training and self._pending is None and self._weighing is None else EVALUATE

    def tasks(self) -> Mapping[str, Work]:
        """What each site that is asked receives now; made once per exchange."""
        if self._tasks is None:
            self._tasks = self._new_tasks()
        return self._tasks

    def fault_of(self, site: str, answer: object) -> str | None:
        """Why an answer to the task of ``site`` cannot be used, or None."""
        task = self.tasks().get(site)
        if task is None:
            return FOREIGN
        if isinstance(task, Task):
            fault = self._fault_of_reply(site, answer)
        elif isinstance(task, Weighing):
            fault = fault_of_weighed(answer, task, neurons.count(self.network))
        else:
            fault = fault_of_evaluated(answer, task, self.config.network.labels)
        return fault and fault[:LONGEST_REASON]

    def enough(self, usable: int) -> bool:
        """Whether an exchange may end with so many usable answers."""
        return usable >= min(self.min_sites, len(self.tasks()))

    def take(self, answers: Answers, refused: Mapping[str, str] | None = None) -> None:
        """End the exchange that `tasks` began.

        Args:
            answers: by site; a site that has none counts as absent.
            refused: by name, why some message was not even taken for an answer; for the ledger.

        Raises:
            RunFailed: too few answers can be used.
        """
        self._refused = {name: reason[:LONGEST_REASON] for name, reason in (refused or {}).items()}
        if self.work == TRAIN:
            self._aggregate(answers)
        elif self._weighing is not None:
            self._weigh(answers, self._weighing)
        elif self._pending is not None:
            self._try(answers, *self._pending)
        else:
            self._finish(answers)
        self._tasks = None

    def _aggregate(self, answers: Answers) -> None:
        """End the training of a round; then its candidates, if the method has any, or else the round."""
        began = time.perf_counter()
        usable, rejected = self._usable(answers, Reply, "reply")
        replies = [usable.get(site) for site in self.sites]
        updates, reports = self._stack(replies)
        played = _Round(replies, rejected, self.tasks(), updates, reports)
        candidates = self.method.candidates(self.state, updates, reports)
        if candidates is None:
            self._end_round(played, began)
        elif not self.server_cases:
            evaluation = self._evaluation(candidates, replies)
            self._pending = replace(played, seconds=time.perf_counter() - began), evaluation
        else:
            task = self._evaluation(candidates, replies)
            evaluated = evaluate_models(self._own_network(), self.server_cases, task, self.config)
            self._end_round(played, began, _pooled([evaluated]))

    def _finish(self, answers: Answers) -> None:
        """End the run: record the test Dice of the final models and save them."""
        test = self._final_test()
        usable, _ = self._usable(answers, Evaluated, "evaluation")
        tested = [usable.get(site) for site in self.sites]
        names = [] if self.blind else ["global"] if self.models.ndim == 1 else self.sites
        for name, model, buffers in zip(names, test.models, test.buffers, strict=bool(names)):
            flat.load(self.network, model, buffers)
            save_network(self.run / "models", name, self.network, self.config.network)
        self.recorder.final_test(self.config.rounds - 1, tested, payload(test), own_alone=self.method.models_stay)
        self.round += 1
        self._checkpoint()

    def _new_tasks(self) -> Mapping[str, Work]:
        if self._weighing is not None:
            return dict.fromkeys(self.sites, self._weighing)
        if self._pending is not None:
            played, candidates = self._pending
            return {site: candidates for site, reply in zip(self.sites, played.replies, strict=True) if reply}
        if not self.training:
            return dict.fromkeys(self.sites, self._final_test())
        told = self.recorder.ledger.last_hash
        return {
            site: Task(
                round=self.round,
                parameters=self._download(row),
                buffers=self.buffers[row],
                weight=_known(self.weights, row),
                data_share=_known(self.data_share, row),
                neurons=None if self.neurons is None else self.neurons[row],
                peers={} if self.method.models_stay else self._peers(row),
                others=self._others(row) if self.method.models_stay else {},
                ledger=told,
                sealed=self.sealed,
            )
            for row, site in enumerate(self.sites)
        }

    def _peers(self, row: int) -> dict[str, PeerModel]:
        """The models of those who share with the site at ``row``; whoever missed the last round has none to share."""
        sharing = self.method.sharing(self.state)
        if sharing is None:
            return {}
        missed = self.weights.isnan().tolist() if self.weights is not None else [False] * len(self.sites)
        models = self.models.expand(len(self.sites), -1)
        return {
            self.sites[peer]: PeerModel(models[peer], self.buffers[peer], float(sharing.weights[row, peer]))
            for peer in givers(sharing, self.config.seed, self.sites, row, self.round)
            if not missed[peer]
        }

    def _others(self, row: int) -> dict[str, float]:
        """Whom the site at ``row`` may ask for a model, and what is known here of the weights it gives them."""
        sharing = self.method.sharing(self.state)
        if sharing is None:
            return {}
        weights = zip(self.sites, sharing.weights[row].tolist(), strict=True)
        return {site: weight for site, weight in weights if site != self.sites[row]}

    def _download(self, row: int) -> Tensor | Patch:
        """A site's model: whole, or what changed where that is smaller and the site has the rest."""
        if self.models.ndim == 1:
            return self.models
        patch = None if self.changed is None else Patch.between(self.changed[row], self.models[row])
        return self.models[row] if patch is None else patch

    def _evaluation(self, candidates: Candidates, replies: Replies) -> Evaluation:
        """The method's candidates as a task: with statistics of the sites whose updates are in, or those sent out."""
        sent_out = (~candidates.shares.any(dim=1, keepdim=True)).double()
        shares = torch.cat([candidates.shares, sent_out], dim=1)
        statistics = [reply.buffers if reply else {} for reply in replies] + [self.buffers[0]]
        used = shares.any(dim=0).nonzero().flatten().tolist()
        buffers = tuple(statistics[place] for place in used)
        told = self.recorder.ledger.last_hash
        return Evaluation(
            self.round,
            SERVER_SPLIT,
            candidates.models,
            candidates.mixtures,
            buffers,
            shares[:, used],
            candidates.bins,
            told,
        )

    def _own_network(self) -> nn.Module:
        """To evaluate on the server's own images."""
        return build_network(self.config.network, pick_device(self.device, "the server"))

    def _final_test(self) -> Evaluation:
        """Every site tests every final model, its own among them: on all test splits together stands the union.

        Where models stay at the sites, each tests its own; where they are encrypted, the one that it decrypts.
        """
        told = self.recorder.ledger.last_hash
        if self.blind:
            one = torch.eye(1, dtype=torch.float64)
            return Evaluation(
                self.round, "testing", torch.empty(1, 0), one, ({},), one, ledger=told, sealed=self.sealed
            )
        models = self.models.reshape(-1, self.models.shape[-1])
        each = torch.eye(len(models), dtype=torch.float64)
        return Evaluation(self.round, "testing", models, each, tuple(self.buffers[: len(models)]), each, ledger=told)

    def _survey(self) -> None:
        """Before a round, have the neurons weighed that the method wants to know the importance of."""
        survey = self.method.survey(self.state) if self.training else None
        if survey is None:
            return
        told = self.recorder.ledger.last_hash
        task = Weighing(self.round, SERVER_SPLIT, survey.model, self.buffers[0], survey.order, survey.images, told)
        if not survey.images:
            self._allocate(torch.zeros(neurons.count(self.network), dtype=torch.float64))
        elif self.server_cases:
            self._allocate(_mean_increases([weigh_neurons(self._own_network(), self.server_cases, task)]))
        else:
            self._weighing = task

    def _weigh(self, answers: Answers, task: Weighing) -> None:
        """Allocate with what the sites said of neurons."""
        usable, faults = self._usable(answers, Weighed, "importance of neurons")
        self._weighing, self._weighed = None, (payload(task), faults)
        self._allocate(_mean_increases(list(usable.values())))

    def _allocate(self, importance: Tensor) -> None:
        """Submodels from now on; none of them is what a site received before."""
        self.state, self.models, self.neurons = self.method.allocate(self.state, importance)
        self.changed = None
        self._checkpoint()

    def _try(self, answers: Answers, played: _Round, candidates: Evaluation) -> None:
        """End a round with what the sites said of the method's candidates."""
        began = time.perf_counter()
        usable, rejected = self._usable(answers, Evaluated, "evaluation", played.rejected)
        self._pending = None
        replies = [
            reply and replace(reply, seconds=reply.seconds + (usable[site].seconds if site in usable else 0.0))
            for site, reply in zip(self.sites, played.replies, strict=True)
        ]
        played = replace(played, replies=replies, rejected=rejected)
        self._end_round(played, began, _pooled(list(usable.values())), payload(candidates))

    def _usable(
        self, answers: Answers, kind: type[AnswerKind], what: str, rejected: Mapping[str, str] | None = None
    ) -> tuple[dict[str, AnswerKind], dict[str, str]]:
        """The answers of a kind, ``what`` by name, that can be used, in site order; and by name why others cannot.

        The reasons come after those in ``rejected``. `RunFailed` with all of them where too few are usable.
        """
        usable: dict[str, AnswerKind] = {}
        faults = {name[:LONGEST_REASON]: FOREIGN for name in answers if name not in self.tasks()} | self._refused
        for site in self.tasks():
            answer = answers.get(site, NO_REPLY)
            fault = self.fault_of(site, answer)
            if isinstance(answer, kind) and not fault:
                usable[site] = answer
            elif fault and not (answer is NO_REPLY and site in faults):
                faults[site] = fault
        if self.training and kind is not Reply:  # beside those of the replies
            faults = {name: f"{what}: {fault}" for name, fault in faults.items()}
        reasons = {**(rejected or {}), **faults}
        if not self.enough(len(usable)):
            when = f"round {self.round}" if self.training else "final test"
            least = min(self.min_sites, len(self.tasks()))
            who = "no site" if least == 1 else f"{len(usable)} of {least} sites needed"
            raise RunFailed(f"{when}: {who} sent a usable {what} ({_listed(reasons)})")
        return usable, reasons

    def _fault_of_reply(self, site: str, answer: object) -> str | None:
        """Why the reply of ``site`` cannot be used, or None."""
        model = self.models if self.models.ndim == 1 else self.models[0]
        labels, others = self.config.network.labels, [other for other in self.sites if other != site]
        fault = fault_of_reply(answer, self.round, model, self.buffers[0], labels, self.method, others)
        if fault or not isinstance(answer, Reply):
            return fault
        if self.adder:
            fault = self.adder.fault(answer.sealed)
        elif answer.sealed:
            fault = "ciphertexts, expected the update in the clear"
        if fault:
            return fault
        first = self.num_samples.get(site, answer.num_samples)
        return None if answer.num_samples == first else f"num_samples {answer.num_samples}, at first it was {first}"

    def _end_round(
        self, played: _Round, began: float, candidates: CandidateResults | None = None, candidate_bytes: int = 0
    ) -> None:
        """Hand everything to the method, record, checkpoint; the server has been at work on it since ``began``."""
        reports = replace(played.reports, candidates=candidates)
        state, outcome = self.method.round(self.state, played.updates, reports)
        if not (outcome.models.isfinite().all() and outcome.weights.isfinite().all()):
            raise RunFailed(f"round {self.round}: {self.config.method} gave a model or weights that are not finite")
        self.state = state
        absent = ~reports.present
        started_from = self._digests()
        if outcome.models.ndim == 2:
            self.changed = outcome.models != self.models
            self.changed[absent] = True  # whatever such a site holds, it gets the whole model
        self.models = outcome.models
        self.weights = outcome.weights.masked_fill(absent, math.nan)
        self.data_share = reports.data_share.masked_fill(absent, math.nan)
        self._update_buffers(played.replies, reports, outcome.statistics)
        self._add_sealed(played.replies, outcome.weights, reports)
        for site, reply in zip(self.sites, played.replies, strict=True):
            if reply:
                self.num_samples.setdefault(site, reply.num_samples)
        updates = played.updates
        seconds = torch.full_like(outcome.weights, played.seconds + time.perf_counter() - began)
        quantities = {**outcome.quantities, "server_seconds": seconds}
        if not self.blind:
            assert reports.products is not None
            self.mean_update, evidence = evidence_of(
                updates, reports.products, outcome.weights, reports.present, self.mean_update
            )
            quantities |= evidence
        outcome = replace(outcome, quantities=quantities)

        weighing_bytes, faults = self._weighed
        received = [payload(task) + candidate_bytes + weighing_bytes for task in played.tasks.values()]
        rejected = faults | played.rejected
        ended_with = digest(self.sealed or outcome.models)
        self.recorder.training_round(
            self.round, played.replies, rejected, received, started_from, ended_with, updates, outcome
        )
        self.round, self._weighed = self.round + 1, (0, {})
        self._checkpoint()
        self.on_round(self.recorder.ledger.records[-1])
        self._survey()

    def _digests(self) -> list[str]:
        """Of the model that each site begins the round with, or of the ciphertexts that it is made of."""
        if self.models.ndim == 1:
            return [digest(self.sealed or self.models)] * len(self.sites)
        return [digest(model) for model in self.models]

    def _stack(self, replies: Replies) -> tuple[Tensor, Reports]:
        updates = torch.zeros(len(replies), self.models.shape[-1])
        values = {name: torch.full((len(replies),), math.nan, dtype=torch.float64) for name in self.method.asks}
        n = len(replies)
        pairs = {name: torch.full((n, n), math.nan, dtype=torch.float64) for name in self.method.asks_of_peers}
        samples = torch.zeros(n, dtype=torch.float64)
        for row, reply in enumerate(replies):
            if reply:
                updates[row] = reply.update
                samples[row] = reply.num_samples
                for name, value in reply.values.items():
                    values[name][row] = value
                for name, of_others in reply.pairs.items():
                    for site, value in of_others.items():
                        pairs[name][row, self.sites.index(site)] = value
        present = torch.tensor([reply is not None for reply in replies])
        return updates, Reports(samples, present, values, pairs=pairs, products=gram(updates))

    def _update_buffers(self, replies: Replies, reports: Reports, statistics: str | None) -> None:
        statistics = statistics or ("shared" if self.method.shares_buffers else "own")
        if statistics == "initial":
            self.buffers = [flat.get_buffers(initial_network(self.config.network, self.config.seed))] * len(replies)
        elif statistics == "shared":
            trained = [reply.buffers for reply in replies if reply]
            shares = reports.data_share[reports.present]
            if self.neurons is None:
                mean = flat.average_buffers(trained, shares)
            else:
                held, owners = self.neurons[reports.present], neurons.buffer_owners(self.network)
                mean = neurons.average_buffers(trained, shares, held, owners, self.buffers[0])
            self.buffers = [mean] * len(replies)
        else:
            self.buffers = [
                dict(reply.buffers) if reply else own for reply, own in zip(replies, self.buffers, strict=True)
            ]

    def _add_sealed(self, replies: Replies, weights: Tensor, reports: Reports) -> None:
        """What `core.aggregate` and `flat.average_buffers` do with updates and statistics in the clear."""
        if self.adder:
            rows = [row for row, reply in enumerate(replies) if reply and reply.sealed]
            sealed = [reply.sealed for reply in replies if reply and reply.sealed]
            shares = reports.data_share[rows].tolist()
            self.sealed = self.adder.add(self.sealed, sealed, weights[rows].tolist(), shares)

    def _checkpoint(self) -> None:
        content = {
            "sites": self.sites,
            "round": self.round,
            "state": dict(vars(self.state)),
            "models": self.models,
            "buffers": self.buffers,
            "weights": self.weights,
            "data_share": self.data_share,
            "changed": None if self.changed is None else torch.from_numpy(np.packbits(self.changed.numpy(), axis=1)),
            "mean_update": self.mean_update,
            "num_samples": self.num_samples,
            "complete_rounds": min(self.round, self.config.rounds),
            "neurons": self.neurons,
            "weighed": self._weighed,
            "results_size": self.recorder.results.size,
            "sealed": self.sealed and self.sealed.to_tensors(),
        }
        write_atomically(self.run / CHECKPOINT, lambda file: torch.save(content, file))

    def _resume(self, content: Mapping[str, Any] | None) -> None:
        """Go on from a checkpoint; what was recorded after it belongs to an incomplete round and is dropped."""
        if content is None:
            self.recorder.rewind(0, 0)
            return
        if set(content["state"]) != set(vars(self.state)):
            raise BadInput(
                f"{self.run}: was begun by another version of FedMerit, whose {self.config.method} remembers other "
                "things; finish it with that version, or start another run"
            )
        self.round, self.models, self.buffers = content["round"], content["models"], content["buffers"]
        self.weights, self.data_share = content["weights"], content["data_share"]
        self.mean_update = content.get("mean_update")  # checkpoints of earlier versions have none
        self.num_samples = dict(content.get("num_samples", {}))  # likewise
        self.sealed = Sealed.from_tensors(content["sealed"]) if content.get("sealed") else None
        self.neurons, self._weighed = content.get("neurons"), content.get("weighed", (0, {}))
        if content["changed"] is not None:
            bits = np.unpackbits(content["changed"].numpy(), axis=1, count=self.models.shape[1])
            self.changed = torch.from_numpy(bits.astype(bool))
        self.state = type(self.state)(**content["state"])
        self.recorder.rewind(content["results_size"], min(self.round, self.config.rounds))
        for record in self.recorder.ledger.records:
            self.on_round(record)


def _known_sites(checkpoint: Mapping[str, Any], sites: Sequence[str], run: Path) -> list[str]:
    """The sites of a run that goes on with ``sites``, or some of them."""
    known: list[str] = checkpoint["sites"]
    if unknown := sorted(set(sites) - set(known)):
        raise BadInput(
            f"{run}: its sites are {', '.join(known)}, and {', '.join(unknown)} is none of them; "
            "continue with the same sites or start another run"
        )
    return known


def _pooled(evaluated: Sequence[Evaluated]) -> CandidateResults:
    """All sites' images as one validation set."""
    models = range(len(evaluated[0].overlaps))
    dice = [mean_dice(overlap for answer in evaluated for overlap in answer.overlaps[model]) for model in models]
    return CandidateResults(
        torch.tensor(dice, dtype=torch.float64), torch.stack([e.losses for e in evaluated]).sum(dim=0)
    )


def _mean_increases(weighed: Sequence[Weighed]) -> Tensor:
    """(H,) of all sites' images as one validation set."""
    return torch.stack([one.increases for one in weighed]).sum(dim=0) / sum(one.images for one in weighed)


def _listed(rejected: Mapping[str, str]) -> str:
    return "; ".join(f"{site}: {reason}" for site, reason in rejected.items())


def require_sites(config: RunConfiguration, sites: Sequence[str]) -> None:
    """`BadInput` where a method cannot work with so many sites, or has fewer than two to share models."""
    method = config.build_method()
    if len(sites) < 2 and method.needs_others:
        raise BadInput(
            f"sites {', '.join(sites) or '(none)'}: {config.method} needs at least two; "
            "add a site, or train alone with --method standalone"
        )
    try:
        method.start(torch.zeros(1), len(sites), Layout.of(1))
    except ValueError as error:
        raise BadInput(f"method {config.method}: {error}") from error


def require_patience(min_sites: int, round_timeout: float, num_sites: int | None = None) -> None:
    """`BadInput` where a server cannot wait so long, or for so many of its sites."""
    if not 1 <= min_sites <= (num_sites or min_sites):
        raise BadInput(f"min_sites={min_sites}: expected 1 to the number of sites")
    if not 0 <= round_timeout < math.inf:
        raise BadInput(f"round_timeout={round_timeout:g}: expected a number of seconds, or 0 for no limit")


def _known(values: Tensor | None, row: int) -> float | None:
    return None if values is None else or_none(values[row])
