"""A site whose process ends within a round: the next one continues at its step, and sends the same bits."""

import random
import signal
import time
from dataclasses import replace
from multiprocessing import get_context

import pytest
import torch
from pretending import tiny_plan

from fedmerit.contract import flat
from fedmerit.errors import Refused
from fedmerit.schema.messages import PeerModel, Task
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.site.site import image_site
from fedmerit.trainers import training_checkpoint
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.monai import local_training
from fedmerit.trainers.monai.neurons import count
from fedmerit.trainers.monai.trainer import ImageTrainer

ADAM = {"steps": 7, "batch_size": 4, "optimizer": "adamw", "augmentation": "strong"}
PLAIN = {"steps": 7, "batch_size": 4, "optimizer": "sgd"}
SGD = {"steps": 7, "batch_size": 4, "optimizer": "sgd", "momentum": 0.9, "organ_share": 0.5, "clip_norm": 1.0}


class Killed(BaseException):
    """The process ends here."""


def build(sites, folder, method="fedavg", **settings):
    config = tiny_plan(method, share=True, **settings)
    return image_site(SiteFolder(sites / "site1"), config, folder, "cpu", participants=("site1", "site2"))


def make_task(site, round=1):
    network = initial_network(site.config.network, 0)
    model, buffers = flat.get_parameters(network), flat.get_buffers(network)
    task = Task(round, model, buffers, weight=0.3, data_share=0.4)
    if site.can.peers:
        task = replace(task, peers={"site2": PeerModel(model + 0.01, buffers, 0.5)})
    if site.can.neurons:
        task = replace(task, neurons=torch.arange(count(network)) % 2 == 0)
    vectors = {name: torch.full_like(model, 0.01) for name in site.can.vectors}
    return replace(task, vectors=vectors)


def bits(reply):
    vectors = {name: value.tobytes() for name, value in ((n, v.numpy()) for n, v in reply.vectors.items())}
    buffers = {name: value.numpy().tobytes() for name, value in reply.buffers.items()}
    said = reply.train_loss, reply.values, reply.pairs, reply.overlaps, reply.trained_overlaps, reply.num_samples
    return reply.update.numpy().tobytes(), buffers, vectors, said


@pytest.fixture
def every_step(monkeypatch):
    """A checkpoint after every step."""
    monkeypatch.setattr(training_checkpoint, "INTERVAL", 0.0)
    monkeypatch.setattr(training_checkpoint, "MOST_SHARE", 1e9)


@pytest.fixture
def warned(monkeypatch):
    """What the site's log warns of."""
    said = []
    monkeypatch.setattr(training_checkpoint.log, "warning", lambda text, *rest: said.append(text))
    return said


@pytest.fixture
def kill(monkeypatch):
    """Ends the training before one of the batches from now on; gives the number of batches read since."""
    draw = local_training.draw_batches

    def at(step):
        read = [0]

        def drawn(*arguments):
            for batch in draw(*arguments):
                read[0] += 1
                if read[0] == step:
                    raise Killed
                yield batch

        monkeypatch.setattr(local_training, "draw_batches", drawn)
        return read

    return at


@pytest.mark.parametrize(
    ("method", "settings", "trainings"),
    [("fedavg", ADAM, 1), ("scaffold", PLAIN, 1), ("ditto", ADAM, 2), ("cycle", ADAM, 1), ("fedsac", SGD, 1)],
)
def test_a_training_cut_short_continues_at_its_step(sites, tmp_path, every_step, kill, method, settings, trainings):
    site = build(sites, tmp_path / "whole", method, **settings)
    task = make_task(site)
    whole = bits(site.train(task))
    left = 7 * trainings
    for step in (3, 1, 2):  # before whose batch the process ends; before the first of a process, too
        kill(step)
        with pytest.raises(Killed):
            build(sites, tmp_path / "cut", method, **settings).train(task)
        left -= step - 1
    read = kill(0)
    assert bits(build(sites, tmp_path / "cut", method, **settings).train(task)) == whole
    assert read == [left]
    assert not list((tmp_path / "cut").glob("training_*"))


def test_a_checkpoint_of_something_else_is_not_used(sites, tmp_path, every_step, kill, warned):
    """Another round, another model, other settings, a spoiled file: the training begins again."""
    site = build(sites, tmp_path / "whole", **ADAM)
    task = make_task(site)
    whole, folder = bits(site.train(task)), tmp_path / "cut"
    cut = folder / "training_1.pt"
    others = [
        (make_task(site, round=0), ADAM),
        (replace(task, parameters=task.parameters + 1), ADAM),
        (task, ADAM | {"lr": 0.5}),
    ]
    for other, settings in others:
        kill(4)
        with pytest.raises(Killed):
            build(sites, folder, **settings).train(other)
        assert cut.exists()
    read = kill(5)
    with pytest.raises(Killed):
        build(sites, folder, **ADAM).train(task)
    cut.write_bytes(cut.read_bytes()[:-100])
    read = kill(0)
    assert bits(build(sites, folder, **ADAM).train(task)) == whole
    assert read == [7]
    assert "begins again" in warned[0]


def test_a_full_disk_costs_the_checkpoint_and_not_the_round(sites, tmp_path, every_step, monkeypatch, warned):
    def full(path, write):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(training_checkpoint, "write_atomically", full)
    site = build(sites, tmp_path, **ADAM)
    assert bits(site.train(make_task(site)))
    assert len(warned) == ADAM["steps"]


def test_short_trainings_write_none(sites, tmp_path, monkeypatch):
    monkeypatch.setattr(training_checkpoint, "write_atomically", pytest.fail)
    site = build(sites, tmp_path, **ADAM)
    site.train(make_task(site))


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "cycle", "fedce"])
def test_a_reply_that_was_not_delivered_is_sent_again_without_training(sites, tmp_path, monkeypatch, method):
    settings = PLAIN if method == "scaffold" else ADAM
    site = build(sites, tmp_path, method, **settings)
    task = make_task(site)
    whole = bits(site.train(task))
    monkeypatch.setattr(ImageTrainer, "train", pytest.fail)
    again = build(sites, tmp_path, method, **settings)
    assert bits(again.train(task)) == whole
    again.sent(task, torch.ones_like(task.parameters))  # what a privacy filter made of it is of no account
    assert bits(build(sites, tmp_path, method, **settings).train(task)) == whole
    monkeypatch.undo()
    with pytest.raises(Refused, match="a second training in round 1"):
        again.train(replace(task, parameters=task.parameters + 0.1))


@pytest.mark.slow
def test_twenty_kills_at_random_batches_change_no_bit(sites, tmp_path, every_step):
    settings = ADAM | {"steps": 150}

    def train(folder):
        site = build(sites, folder, **settings)
        (folder / "sent").write_text(repr(bits(site.train(make_task(site)))))

    def start(folder):
        folder.mkdir(exist_ok=True)
        process = get_context("fork").Process(target=train, args=(folder,))
        process.start()
        return process

    start(tmp_path / "whole").join()
    draws, file = random.Random(0), tmp_path / "cut" / "training_1.pt"
    for _ in range(20):
        before = file.stat().st_mtime_ns if file.exists() else 0
        process = start(file.parent)
        while process.is_alive() and not (file.exists() and file.stat().st_mtime_ns > before):
            time.sleep(0.001)
        time.sleep(draws.uniform(0, 0.05))  # some batches on, wherever that is
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the training ended before 20 kills; give it more steps"
    start(file.parent).join()
    assert (file.parent / "sent").read_text() == (tmp_path / "whole" / "sent").read_text()
