"""The measured processes: a command with its children, a run, its bare steps, and NVFlare's own FedCE."""

import json
import sys
import time
from dataclasses import asdict
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import numpy as np
import pytest
import torch
from run_factory import make_sites
from tiny import TINY
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedmerit.engines import runs
from fedmerit.errors import RunFailed
from fedmerit.schema.configuration.settings import Network
from fedmerit.schema.site_folder import open_sites
from fedmerit.trainers.factory import build_network
from fedmerit_lab.benchmarks import bare_steps, one_run
from fedmerit_lab.benchmarks.benchmark import measure_command
from fedmerit_lab.benchmarks.nvflare_peer import PeerNetwork, in_memory, validate

PROGRAM = '''
import subprocess, sys, time
busy = """
import time
data = bytearray(80_000_000)
while time.process_time() < 0.5: pass
print("worked", flush=True)
time.sleep(600)
"""
child = subprocess.Popen([sys.executable, "-c", busy], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
time.sleep(1.5)
with open(sys.argv[1], "a") as file:
    for _ in range(3):
        print(time.time(), file=file)
        time.sleep(0.2)
'''


@pytest.mark.slow
def test_processes_in_a_session_of_their_own_count_and_end(tmp_path):
    used = measure_command([sys.executable, "-c", PROGRAM, str(tmp_path / "ends.txt")], tmp_path / "ends.txt")
    assert used.processes == 2
    assert used.memory > 80e6
    assert used.cpu > 0.4  # of the child
    assert len(used.ends) == 3
    quantities = used.quantities
    assert quantities["seconds per round"] == pytest.approx((used.ends[-1] - used.ends[0]) / 2)
    assert quantities["seconds to the first round's end"] >= 1.5
    assert used.wall >= used.ends[-1]


def test_a_command_that_fails_says_why(tmp_path):
    with pytest.raises(RunFailed, match=r"(?s)ended with 1 after 0 rounds.*ZeroDivisionError"):
        measure_command([sys.executable, "-c", "1 / 0"], tmp_path / "ends.txt")


def test_a_line_for_every_round_has_its_end_and_memory(tmp_path, monkeypatch):
    """The second round leaks 30 MB."""
    asked, left = [], []

    def execute(run, on_round):
        asked.append(run)
        for number in range(3):
            if number == 1:
                left.append(mmap(-1, 30_000_000, MAP_PRIVATE | MAP_ANONYMOUS))  # new memory
                for _ in range(30):
                    left[0].write(b"x" * 1_000_000)
            on_round({"round": number})
            assert len((tmp_path / "ends.txt").read_text().splitlines()) == number + 1  # at once

    monkeypatch.setattr(one_run.runs, "execute", execute)
    began = time.time()
    one_run.main(str(tmp_path / "run"), str(tmp_path / "ends.txt"))
    assert asked == [tmp_path / "run"]
    ends = [[float(word) for word in line.split()] for line in (tmp_path / "ends.txt").read_text().splitlines()]
    times, used, own = zip(*ends, strict=True)
    assert began <= times[0] <= times[1] <= times[2] <= time.time()
    assert used[1] - used[0] == pytest.approx(30e6, rel=0.2)
    assert own[1] - own[0] == pytest.approx(30e6, rel=0.2)
    assert own[2] - own[1] < 5e6


def test_every_site_trains_once_and_validates_twice_a_round(tmp_path, monkeypatch):
    """Two of three sites take part, three rounds."""
    sites = make_sites(tmp_path / "sites", ("Alder", "Birch", "Cedar"), size=16)
    settings = TINY | {"depth": "3", "residual_units": "2", "lr": "0.02"}
    only = ["Alder", "Birch"]
    runs.create(tmp_path / "run", "fedce", sites, 3, engine="local", threads=1, settings=settings, only=only)
    done = []
    monkeypatch.setattr(
        bare_steps,
        "train",
        lambda network, slices, training, lr, seed: done.append((id(network), "train", len(slices), lr)),
    )
    monkeypatch.setattr(
        bare_steps,
        "evaluate",
        lambda network, cases, labels, amp: done.append((id(network), "evaluate", len(cases), labels)),
    )
    bare_steps.main(str(tmp_path / "run"), str(tmp_path / "ends.txt"))
    ends = [float(line) for line in (tmp_path / "ends.txt").read_text().splitlines()]
    assert len(ends) == 3
    assert ends == sorted(ends)
    networks = {network for network, *_ in done}
    assert len(networks) == 2  # a site's own, round for round
    a_round = [("train", 15, 0.02), ("evaluate", 5, ("prostate",)), ("evaluate", 5, ("prostate",))]
    for one in networks:
        assert [(what, number, how) for network, what, number, how in done if network == one] == 3 * a_round


def test_the_peer_has_the_network_of_the_run():
    description = Network(in_channels=1, labels=("disc", "cup"), architecture="unet", width=2, depth=2)
    peer, own = PeerNetwork(json.dumps(asdict(description))), build_network(description)
    own.load_state_dict({name.removeprefix("network."): tensor for name, tensor in peer.state_dict().items()})
    images = torch.randn(3, 1, 16, 16)
    logits = peer.eval()(images)
    assert logits.shape == (3, 2, 16, 16)
    torch.testing.assert_close(logits, own.eval()(images))


def test_all_slices_of_a_split_are_in_memory(tmp_path):
    (site,) = open_sites(make_sites(tmp_path / "sites", ("Alder",), size=16))
    images, masks = in_memory(site.cases("training")).tensors
    assert images.shape == masks.shape == (15, 1, 16, 16)
    np.testing.assert_array_equal(images[3:6], np.load(site.path / "training1_image.npy"))
    np.testing.assert_array_equal(masks[3:6], np.load(site.path / "training1_label.npy"))


def test_dice_is_of_all_images_together():
    """Above 0 is predicted: 3 pixels of which 2 are in masks of 4 in all, over two batches: 4 / 7."""
    images = torch.tensor([[1.0, 2.0, -1.0], [-1.0, -1.0, 0.5], [-1.0, -1.0, -1.0]])[:, None, None]
    masks = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])[:, None, None]
    network = nn.Identity().train()
    assert validate(network, DataLoader(TensorDataset(images, masks), batch_size=2)) == pytest.approx(4 / 7)
    assert not network.training
    nothing = TensorDataset(-images.abs(), torch.zeros_like(masks))
    assert validate(network, DataLoader(nothing, batch_size=2)) == 1
