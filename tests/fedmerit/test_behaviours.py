"""What a site that misbehaves sends, compared with what it would have sent."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from data_prep.preparation import Preparation
from data_prep.prepare import prepare
from fedmerit import flat
from fedmerit.attacks.catalogue import KINDS, AttackingSite, attacking, parse, require_possible, text_of
from fedmerit.configuration.run import RunConfiguration, make_configuration
from fedmerit.errors import BadInput
from fedmerit.federation.site import Site
from fedmerit.training.data import Slices, open_sites
from fedmerit.training.networks import initial_network
from fedmerit.training.place import attack_of, attack_setting
from fedmerit.wire.messages import Evaluation, Reply, Task

LAST = 3  # rounds played: 0, 1, 2, 3


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two generated hospitals with few and small images, for one label and for two."""
    made = {}
    for task in ("prostate", "fundus"):
        root = tmp_path_factory.mktemp(task) / "sites"
        for folder in prepare(Preparation(f"synthetic-{task}", size=16, patients=5), root)[2:]:
            shutil.rmtree(folder)
        made[task] = open_sites(root)[0]
    return made


@pytest.fixture(scope="module")
def config(folders) -> RunConfiguration:
    return plan_of(folders["prostate"])


def plan_of(folder, method="fedce", **settings) -> RunConfiguration:
    network = {"in_channels": folder.channels, "labels": list(folder.labels)}
    settings = {"width": 2, "depth": 2, "residual_units": 0, "augment": False} | settings
    return make_configuration(method, folder.task, LAST + 1, 0, network, settings)


def others_update(round: int, size: int) -> torch.Tensor:
    return 0.02 * torch.randn(size, generator=torch.Generator().manual_seed(round))


def play(site, config: RunConfiguration, again: bool = False) -> tuple[list[Task], list[Reply]]:
    """A few rounds in which the model moves by half of what the site sends and some update of others.

    With ``again`` every round is answered twice, by a site that is opened anew, as after a crash.
    """
    network = initial_network(config.network, config.seed)
    model, buffers, tasks, replies = flat.get_parameters(network), flat.get_buffers(network), [], []
    for round in range(LAST + 1):
        task = Task(round, model, buffers, None if round == 0 else 0.5, None if round == 0 else 0.5)
        opened = site() if again else site
        reply = opened.answer(task)
        if again:
            same = site().answer(task)
            assert torch.equal(same.update, reply.update)
            reply = same
        assert isinstance(reply, Reply), reply
        tasks.append(task)
        replies.append(reply)
        model, buffers = model + 0.5 * reply.update + 0.5 * others_update(round, len(model)), reply.buffers
    return tasks, replies


@pytest.fixture
def played(folders, tmp_path):
    """Rounds of a site with a attack, or honest ones."""

    def make(spec=None, task="prostate", config=None):
        folder = folders[task]
        config = config or plan_of(folder)
        memory = tmp_path / str(spec) / task
        return play(attacking(Site(folder, config, memory, "cpu"), spec), config)

    return make


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other)


def steps(tasks: list[Task]) -> list[torch.Tensor]:
    """What became of the model between each task and the one before."""
    return [after.parameters - before.parameters for before, after in pairwise(tasks)]


# Specs


@pytest.mark.parametrize("kind", KINDS)
def test_a_spec_and_its_text_say_the_same(kind):
    spec = "twin:of=site2" if kind == "twin" else kind
    attack = parse(f"{spec}:from=4")
    assert type(attack) is KINDS[kind]
    assert attack.start == attack.first == 4
    assert parse(text_of(attack)) == attack
    assert text_of(attack).startswith(f"{kind}:from=4")
    assert type(attack).__doc__


def test_parameters_of_a_spec_have_the_types_of_their_defaults():
    shifted = parse("shifted:from=3:share=0.5:by=0.1")
    assert (shifted.start, shifted.share, shifted.by) == (3, 0.5, 0.1)
    assert text_of(shifted) == "shifted:from=3:share=0.5:by=0.1"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", ["''", "repeat, zero"]),
        ("lazy", ["'lazy'", "sign-flip"]),
        ("zero:share=0.5", ["'share=0.5'", "from"]),
        ("zero:from", ["'from'", "NAME=VALUE"]),
        ("zero:from=1:from=2", ["'from=2'", "once"]),
        ("zero:from=soon", ["from='soon'"]),
        ("zero:from=-1", ["from=-1", "0 or more"]),
        ("shifted:share=0", ["share=0"]),
        ("shifted:share=nan", ["share=nan"]),
        ("shifted:by=1", ["by=1"]),
        ("label-noise:level=1.5", ["level=1.5"]),
        ("scaled:by=inf", ["by=inf"]),
        ("noise:times=0", ["times=0"]),
        ("delta:noise=-1", ["noise=-1"]),
        ("inflated:what=dice", ["what='dice'", "num_samples"]),
        ("twin", ["of: missing", "twin:of=SITE"]),
    ],
)
def test_an_unusable_spec_is_told(spec, words):
    with pytest.raises(BadInput) as caught:
        parse(spec)
    assert all(word in str(caught.value) for word in words), caught.value


def test_specs_are_for_sites_that_there_are():
    assert require_possible({"B": "zero"}, ["A", "B"]) == {"B": "zero:from=0"}
    with pytest.raises(BadInput, match="no site C; there are A, B"):
        require_possible({"C": "zero"}, ["A", "B"])
    with pytest.raises(BadInput, match="no site C; there are A, B"):
        require_possible({"A": "twin:of=C"}, ["A", "B"])


def test_a_machine_tells_its_sites_by_its_environment(monkeypatch):
    monkeypatch.delenv("FEDMERIT_BEHAVIOURS", raising=False)
    assert attack_of("A") is None
    monkeypatch.setenv("FEDMERIT_BEHAVIOURS", attack_setting({"A": "noise:from=3:times=2", "B": "zero"}))
    assert [attack_of(site) for site in "ABC"] == ["noise:from=3:times=2", "zero", None]
    monkeypatch.setenv("FEDMERIT_BEHAVIOURS", "zero")
    with pytest.raises(BadInput, match="expected SITE=SPEC"):
        attack_of("A")


# Updates


def test_an_honest_site_is_left_as_it_is(folders, config, tmp_path):
    site = Site(folders["prostate"], config, tmp_path, "cpu")
    assert attacking(site, None) is site


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "twin"])
def test_rounds_before_the_first_are_honest_bit_for_bit(played, kind):
    honest, acted = played()[1], played(f"{kind}:from=2")[1]
    for round in (0, 1):
        assert same(acted[round].update, honest[round].update)
        assert replace(acted[round], update=None, buffers=None, seconds=0) == replace(
            honest[round], update=None, buffers=None, seconds=0
        )
    lies_alone = kind == "inflated"
    flat_of_one_label = acted[2].update
    assert same(flat_of_one_label, honest[2].update) == lies_alone
    assert (acted[2].num_samples == honest[2].num_samples) != lies_alone


def test_zero_sends_nothing_and_the_statistics_it_received(played):
    tasks, replies = played("zero")
    for task, reply in zip(tasks, replies, strict=True):
        assert not reply.update.any()
        assert all(same(reply.buffers[name], value) for name, value in task.buffers.items())
        assert np.isnan(reply.train_loss)


def test_delta_sends_the_last_step_back(played):
    tasks, replies = played("delta")
    assert same(replies[0].update, played()[1][0].update)
    for step, reply in zip(steps(tasks), replies[1:], strict=True):
        assert same(reply.update, step)


@pytest.mark.parametrize(("spec", "noise"), [("delta-noise", 0.5), ("delta:noise=2.0", 2.0)])
def test_delta_with_noise_has_the_cosine_that_it_states(played, spec, noise):
    tasks, replies = played(spec)
    for step, reply in zip(steps(tasks), replies[1:], strict=True):
        added = reply.update - step
        assert float(added.norm() / step.norm()) == pytest.approx(noise, rel=1e-5)
        cosine = float(torch.cosine_similarity(reply.update, step, dim=0))
        assert cosine == pytest.approx(1 / (1 + noise**2) ** 0.5, abs=3 / len(step) ** 0.5)


def test_noise_has_the_norm_that_an_honest_update_had_for_a_step_of_that_length(played):
    tasks, replies = played("noise")
    honest = played()[1][0].update
    assert same(replies[0].update, honest)
    moved = steps(tasks)
    ratio = float(honest.double().norm() / moved[0].double().norm())
    for step, reply in zip(moved, replies[1:], strict=True):
        assert float(reply.update.norm()) == pytest.approx(ratio * float(step.norm()), rel=1e-5)
        assert abs(float(torch.cosine_similarity(reply.update, step, dim=0))) < 4 / len(step) ** 0.5
    assert not same(replies[1].update / replies[1].update.norm(), replies[2].update / replies[2].update.norm())


def test_replay_sends_its_last_honest_update_again_and_again(played):
    for start in (0, 2):
        replies = played(f"replay:from={start}")[1]
        honest = replies[max(start, 1) - 1]
        for reply in replies[max(start, 1) :]:
            assert same(reply.update, honest.update)
            assert all(same(reply.buffers[name], value) for name, value in honest.buffers.items())


@pytest.mark.parametrize(("spec", "by"), [("sign-flip", -1.0), ("scaled", 10.0), ("scaled:by=0.5", 0.5)])
def test_scaled_updates_are_the_honest_ones_times_a_factor(played, spec, by):
    honest, acted = played()[1][0], played(spec)[1][0]
    assert same(acted.update, by * honest.update)
    assert all(same(acted.buffers[name], value) for name, value in honest.buffers.items())


def test_a_twin_sends_the_very_update_of_the_site_it_copies(folders, config, tmp_path):
    original = folders["prostate"]
    copied = Path(shutil.copytree(original.path, tmp_path / "copies" / "copy"))
    text = (copied / "site.json").read_text()
    (copied / "site.json").write_text(text.replace(f'"name": "{original.name}"', '"name": "copy"'))
    folder = open_sites(copied.parent)[0]

    def updates(spec, folder):
        site = attacking(Site(folder, config, tmp_path / str(spec) / folder.name, "cpu"), spec)
        return [reply.update for reply in play(site, config)[1]]

    own = updates(None, original)
    assert all(same(*pair) for pair in zip(own, updates(f"twin:of={original.name}", folder), strict=True))
    assert not same(own[0], updates(None, folder)[0])


# Data


def trained_on(site: AttackingSite) -> Slices:
    return site._acting._slices


def acting(folders, spec, task="prostate", tmp_path=Path()) -> AttackingSite:
    folder = folders[task]
    return attacking(Site(folder, plan_of(folder), tmp_path, "cpu"), spec)


def test_repeat_trains_on_one_image_as_often_as_it_has_images(folders, tmp_path):
    honest = Slices(folders["prostate"].cases("training"))
    slices = trained_on(acting(folders, "repeat", tmp_path=tmp_path))
    assert len(slices) == len(honest)
    first = slices[0]
    assert first[1].any()
    assert all(same(part, other) for pair in slices for part, other in zip(pair, first, strict=True))
    assert any(all(same(part, other) for part, other in zip(pair, first, strict=True)) for pair in honest)


def masks_of(slices: Slices) -> np.ndarray:
    return np.stack([mask.numpy() for _, mask in slices])


@pytest.mark.parametrize("task", ["prostate", "fundus"])
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("inverted", lambda masks: 1 - masks),
        ("swapped", lambda masks: masks[:, ::-1] if masks.shape[1] == 2 else 1 - masks),
        ("shifted:by=0.25", lambda masks: np.pad(masks, ((0, 0), (0, 0), (4, 0), (4, 0)))[:, :, :16, :16]),
        ("label-noise:level=1", lambda masks: 1 - masks),
    ],
)
def test_masks_are_wrong_in_the_way_stated_and_images_as_they_were(folders, tmp_path, task, spec, expected):
    honest = Slices(folders[task].cases("training"))
    slices = trained_on(acting(folders, spec, task, tmp_path))
    assert (masks_of(slices) == expected(masks_of(honest))).all()
    assert all(same(image, other) for (image, _), (other, _) in zip(slices, honest, strict=True))


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_share_of_the_images_has_wrong_masks(folders, tmp_path, share):
    honest = masks_of(Slices(folders["prostate"].cases("training")))
    site = acting(folders, f"inverted:share={share}", tmp_path=tmp_path)
    wrong = (masks_of(trained_on(site)) != honest).any(axis=(1, 2, 3))
    assert wrong.sum() == round(share * len(honest))
    again = masks_of(trained_on(acting(folders, f"inverted:share={share}", tmp_path=tmp_path)))
    assert (again == masks_of(trained_on(site))).all()


def test_label_noise_flips_pixels_with_its_probability(folders, tmp_path):
    honest = masks_of(Slices(folders["fundus"].cases("training")))
    noisy = masks_of(trained_on(acting(folders, "label-noise:level=0.2", "fundus", tmp_path)))
    flipped = (noisy != honest).mean()
    assert flipped == pytest.approx(0.2, abs=4 * (0.16 / honest.size) ** 0.5)


def test_wrong_masks_leave_validation_and_tests_alone(folders, tmp_path):
    site = acting(folders, "inverted", tmp_path=tmp_path)
    network = initial_network(site._acting.config.network, 0)
    models, each = flat.get_parameters(network)[None], torch.eye(1, dtype=torch.float64)
    for split in ("validation", "testing"):
        told = site.answer(Evaluation(0, split, models, each, (flat.get_buffers(network),), each))
        voxels = [one.true_positives + one.false_negatives for one in told.overlaps[0]]
        assert voxels == [int(case.label.sum()) for case in folders["prostate"].cases(split)]


# Claims


def test_inflated_claims_are_at_their_best_and_the_update_is_honest(played):
    honest, lying = played()[1], played("inflated")[1]
    for truth, lie in zip(honest, lying, strict=True):
        assert same(truth.update, lie.update)
        assert lie.num_samples == 10 * truth.num_samples
        assert lie.values.keys() == truth.values.keys()
    assert lying[0].values == {}
    assert all(reply.values == {"cosine": -1.0, "minus_error": 1.0} for reply in lying[1:])


def test_one_claim_alone(played):
    honest, lying = played()[1][1], played("inflated:what=minus_error")[1][1]
    assert lying.num_samples == honest.num_samples
    assert lying.values == {"cosine": honest.values["cosine"], "minus_error": 1.0}


# Memory


@pytest.mark.parametrize("spec", ["noise", "delta-noise", "replay", "replay:from=2", "repeat", "label-noise:share=0.5"])
def test_a_site_that_is_opened_anew_and_asked_twice_sends_the_same(played, folders, config, tmp_path, spec):
    replies = played(spec)[1]

    def opened():
        return attacking(Site(folders["prostate"], config, tmp_path / "again", "cpu"), spec)

    again = play(opened, config, again=True)[1]
    assert all(same(one.update, other.update) for one, other in zip(replies, again, strict=True))


def test_what_a_rider_remembers_is_what_it_sent(played, folders, tmp_path):
    """FedCE's site half of the next round works with it: its claims are then true of the update it sent."""
    tasks, replies = played("sign-flip")
    memory = torch.load(tmp_path / "sign-flip" / "prostate" / f"round_{LAST:05d}.pt", weights_only=True)
    assert same(memory["trained"], tasks[-1].parameters + replies[-1].update)


@pytest.mark.parametrize("spec", ["delta", "noise", "replay"])
def test_a_rider_that_lost_its_memory_trains(folders, config, tmp_path, spec):
    folder = folders["prostate"]
    network = initial_network(config.network, 0)
    task = Task(2, flat.get_parameters(network), flat.get_buffers(network), 0.5, 0.5)
    honest = Site(folder, config, tmp_path / "one", "cpu").answer(task)
    assert same(attacking(Site(folder, config, tmp_path / "two", "cpu"), spec).answer(task).update, honest.update)


# What the trained model is worth on the site's own validation images


def test_the_trained_model_is_validated_where_the_plan_asks_for_it(folders, played):
    config = plan_of(folders["prostate"], validate_trained=True)
    replies = played("zero", config=config)[1]
    assert all(reply.trained_overlaps == reply.overlaps for reply in replies)
    honest = played(config=config)[1]
    assert [len(reply.trained_overlaps) for reply in honest] == [len(reply.overlaps) for reply in honest]
    assert honest[0].trained_overlaps != honest[0].overlaps
    assert played("delta")[1][0].trained_overlaps == ()
