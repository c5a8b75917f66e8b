"""What sites are sent: by default nothing from which the update of another single site follows."""

from dataclasses import replace

import pytest
import torch
from one_in import one_in
from pretending import tiny_plan
from rounds import SETTINGS
from run_factory import make_sites
from stepping import Stepped as Federation

from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.run import make_configuration, with_sharing
from fedmerit.schema.configuration.settings import TASKS
from fedmerit.schema.messages import (
    ClosingReceipt,
    ClosingTask,
    Enrolment,
    EnrolmentTask,
    Evaluated,
    Evaluation,
    ImportanceTask,
    Reply,
    Task,
)
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS, Overlap
from fedmerit.schema.site_folder import images_digest, open_sites
from fedmerit.trainers.monai.trainer import ServerImages

SITES = ("Alder", "Birch", "Cedar", "Dogwood", "Elm")
IMAGES = dict(zip(SITES, (10, 14, 9, 21, 12), strict=True))
ROUNDS = 4
NEEDS_SHARING = {"fedsac", "cycle", "vpdl", "krum", "rr"}
NEEDS_IMAGES = {"cffl", "cffl_released", "fedave", "fedci", "eci", "fedvalue", "innovation"}
DECENTRALISED = [name for name in METHODS.ours if name != "pooled"]


class Recorded:
    """The run of a plan, whose sites train at random, and what each of them was sent."""

    def __init__(self, config, run, server_sites=()):
        config = replace(config, server_images=images_digest(server_sites))
        self.federation = federation = Federation(config, SITES, run, server_sites=server_sites)
        self.size = federation.models.parameters.shape[-1]
        self.random = torch.Generator().manual_seed(5)
        self.updates, self.trained_from = {site: [] for site in SITES}, {}
        self.sent = {site: [federation.models.parameters.reshape(-1, self.size)[0]] for site in SITES}
        while federation.work:
            federation.take({site: self.answer(site, task) for site, task in federation.tasks().items()})

    def answer(self, site, task):
        if isinstance(task, EnrolmentTask):
            splits = dict.fromkeys((*SPLITS, SERVER_SPLIT), 1)
            return Enrolment(
                task.round, splits, splits | {"training": IMAGES[site]}, (f"{IMAGES[site]:032}",), seal="5" * 32
            )
        if isinstance(task, ClosingTask):
            return ClosingReceipt(task.round)
        assert not isinstance(task, ImportanceTask)
        if isinstance(task, Evaluation):
            self.sent[site] += [model for model in task.models if len(model)]
            overlap = (Overlap("000", "prostate", 50 + int(torch.randint(20, (), generator=self.random)), 5, 5),)
            return Evaluated(task.round, (overlap,) * len(task.mixtures), torch.ones(len(task.mixtures), task.bins))
        assert isinstance(task, Task)
        model = task.changes.apply(self.trained_from[site]) if task.changes else task.parameters
        self.sent[site] += [model, *task.vectors.values()]
        self.trained_from[site] = model
        update = 0.01 * torch.randn(self.size, generator=self.random)
        self.updates[site].append(update)
        values = dict.fromkeys(self.federation.method.asks, 0.5) if task.weight is not None else {}
        overlaps = (Overlap("000", "prostate", 50, 5, 5),)
        vectors = dict.fromkeys(task.vectors, -update)
        return Reply(task.round, update, task.buffers, IMAGES[site], overlaps, values=values, vectors=vectors)

    def known(self, site):
        """(k, d) what it was sent, less the first model, and what it trained itself."""
        first, *sent = self.sent[site]
        return torch.stack([*(one - first for one in sent), *self.updates[site]])

    def parts(self, site):
        """(d,) each: its updates, and their sum."""
        return [*self.updates[site], torch.stack(self.updates[site]).sum(dim=0)]

    def revealed(self):
        """The sites of whose updates a combination, or a part, follows from what another was sent and trained itself.

        An entry of a median is some site's, but nobody can tell whose.
        """
        pairs = [(one, other) for one in SITES for other in SITES if one != other]
        in_parts = self.federation.config.method != "median"
        return {
            (one, other)
            for one, other in pairs
            if share_direction(self.known(one), torch.stack(self.updates[other]))
            or (in_parts and any(copies(self.sent[one], part) for part in self.parts(other)))
        }


def share_direction(known, updates):
    """Whether the rows of ``known`` (k, d) and of ``updates`` (m, d) have a combination in common, in float32."""
    bases = []
    for rows in (known, updates):
        rows = torch.nn.functional.normalize(rows.double())
        _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
        bases.append(directions[sizes > 1e-4 * sizes[0]])
    return float(torch.linalg.svdvals(bases[0] @ bases[1].T)[0]) > 0.99


def copies(sent, update, least=8):
    """Whether two models differ in ``least`` entries or more by the same multiple of ``update`` (d,)."""
    models = torch.stack(sent).double()
    ratios = ((models[:, None] - models) / update.double()).flatten(0, 1).sort(dim=1).values
    near = (ratios[:, least - 1 :] - ratios[:, : 1 - least]).abs() < 1e-3 * ratios[:, least - 1 :].abs()
    return bool((near & (ratios[:, least - 1 :].abs() > 0.02)).any())


def deployed(method, has_server_images=False, asked=None, **settings):
    """The plan of an exported job, its guard on."""
    tiny = {"architecture": "unet", "width": 2, "depth": 2, "residual_units": 0, "norm": "group", "guard": "on"}
    chosen = tiny | SETTINGS.get(method, {}) | settings
    config = make_configuration(method, "prostate", ROUNDS, 0, TASKS["prostate"], chosen)
    return with_sharing(config, asked, False, has_server_images)


@pytest.mark.parametrize("method", one_in(8, [name for name in DECENTRALISED if name not in NEEDS_SHARING]))
def test_no_site_is_sent_what_another_trained(tmp_path, monkeypatch, method):
    own = open_sites(make_sites(tmp_path / "own", ["hub"]))
    if method in NEEDS_IMAGES:

        def evaluate_here(self, task):
            rows = range(len(task.mixtures))
            overlaps = tuple(
                (
                    Overlap.of_score("000", "prostate", 0.5 + row / 100)
                    if task.soft
                    else Overlap("000", "prostate", 50 + row, 5, 5),
                )
                for row in rows
            )
            return Evaluated(task.round, overlaps, torch.ones(len(task.mixtures), task.bins))

        monkeypatch.setattr(ServerImages, "evaluate", evaluate_here)
        with pytest.raises(BadInput, match=r"single sites are evaluated; .*--server-sites, or add --share-models"):
            deployed(method)
        with pytest.raises(BadInput, match=r"--server-sites, or add --share-models"):
            Federation(deployed(method, True), SITES, tmp_path / "none")
    plan = deployed(method, method in NEEDS_IMAGES)
    assert not plan.share_models
    run = Recorded(plan, tmp_path / "run", own if method in NEEDS_IMAGES else ())
    assert len(run.updates["Elm"]) == ROUNDS
    assert run.revealed() == set()


@pytest.mark.parametrize("method", sorted(NEEDS_SHARING))
def test_what_sends_sites_the_update_of_another_is_refused(method):
    with pytest.raises(BadInput, match=rf"method {method}: .*; add --share-models if all sites agree$"):
        deployed(method, has_server_images=True)
    assert deployed(method, asked=True).share_models


@pytest.mark.parametrize("method", ["fedce", "standalone", "fedbn", "krum", "rr", "shapfed", "eci"])
def test_with_sharing_the_updates_follow(tmp_path, method):
    """What the test above looks for is there."""
    assert Recorded(deployed(method, asked=True), tmp_path / "run").revealed()


@pytest.mark.parametrize(
    ("method", "values", "shares", "rate_every"),
    [
        ("fedavg", (), False, 5),
        ("fedce", (), False, 5),
        ("fedce", ("multi_round",), True, 0),  # an observer changes nothing: still no site rates another
        ("cffl", (), True, 5),
        ("cycle", (), True, 5),
        ("standalone", (), True, 5),  # for the final test
        ("dw", (), False, 5),
    ],
)
def test_on_one_machine_a_run_shares_models_if_it_uses_them(method, values, shares, rate_every):
    plan = tiny_plan(method, 4, values=values, guard="on")
    assert (plan.share_models, plan.guard.rate_every) == (shares, rate_every)
    assert tiny_plan(method, 4, share=True, values=values, guard="on").guard.rate_every == 5
