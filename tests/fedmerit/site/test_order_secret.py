"""The order of images by a secret of the site: two jobs that differ by one step no longer differ by one image."""

import stat

import pytest
import torch
from pretending import tiny_plan

from fedmerit.contract import flat
from fedmerit.schema.messages import Task
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.site.order_secret import FILE, make_secret, read_secret, secret_arguments
from fedmerit.trainers.factory import build_trainer, initial_network
from fedmerit.trainers.step_commitments import WORK

ONE = {"optimizer": "sgd", "lr": 0.1, "batch_size": 1, "augmentation": "none", "guard": "off"}
IMAGES = 15


def test_secret_is_drawn_once_a_job_and_only_the_owner_reads_it(tmp_path):
    first, other = make_secret(tmp_path / "A"), make_secret(tmp_path / "B")
    assert make_secret(tmp_path / "A") == read_secret(tmp_path / "A") == first != other
    assert len(first) == 64
    assert stat.S_IMODE((tmp_path / "A" / FILE).stat().st_mode) == 0o600
    assert [path.name for path in (tmp_path / "A").iterdir()] == [FILE]
    assert read_secret(tmp_path / "C") == ""


def train_job(sites, folder, secret, **settings):
    """Return the images in the order of the steps, and the update."""
    config, site = tiny_plan("fedavg", **ONE, **settings), SiteFolder(sites / "site1")
    trainer = build_trainer(config, site, folder, "cpu", secret=secret)
    seen, draw = [], trainer.samples.draw

    def note(places, *more):
        seen.extend(places.tolist())
        return draw(places, *more)

    trainer.samples.draw = note
    network = initial_network(config.network, 0)
    start, buffers = flat.get_parameters(network), flat.get_buffers(network)
    return seen, trainer.learn(Task(0, start, buffers), start, None, "").update


@pytest.mark.parametrize("secrets", [("", ""), ("a", "b")])
def test_two_jobs_that_differ_by_one_step(sites, tmp_path, secrets):
    """By the seed of the plan, all images but one come in the same order; by secrets they do not."""
    whole, _ = train_job(sites, tmp_path / "A", secrets[0], epochs=1)
    without, _ = train_job(sites, tmp_path / "B", secrets[1], steps=IMAGES - 1)
    assert sorted(whole) == list(range(IMAGES))  # each once
    assert len({*without}) == IMAGES - 1
    assert (whole[: IMAGES - 1] == without) == (secrets == ("", ""))


def test_order_without_a_secret_follows_from_the_seed(sites, tmp_path):
    first, second = (train_job(sites, tmp_path / name, "") for name in "AB")
    assert first[0] == second[0]
    assert torch.equal(first[1], second[1])
    assert not torch.equal(train_job(sites, tmp_path / "C", "secret")[1], first[1])


def test_job_without_a_secret_still_commits_to_its_steps(sites, tmp_path):
    folder = SiteFolder(sites / "site1")
    arguments = secret_arguments(tmp_path, folder)
    assert arguments["secret"] == ""
    assert arguments["work"].salt == folder.digest
    assert arguments["work"].path == tmp_path / WORK
