"""Faulty updates, compared with the honest ones."""

import pytest
import torch
from playing import config_of, copy_site, play, same_statistics

from fedmerit.attacks.attacker_site import wrap_attacker
from fedmerit.federation.site import Site
from fedmerit.wire.messages import EnrolmentTask


@pytest.mark.parametrize(("spec", "by"), [("sign-flip", -1.0), ("scaled", 10.0), ("scaled:by=0.5", 0.5)])
def test_scaled_updates_are_the_honest_ones_times_a_factor(played, spec, by):
    honest, acted = played()[1][0], played(spec)[1][0]
    assert torch.equal(acted.update, by * honest.update)
    assert same_statistics(acted, honest)


def test_a_twin_sends_the_very_update_of_the_site_it_copies(played, folders, tmp_path):
    copy = copy_site(folders["prostate"], tmp_path / "copy")

    def updates(spec):
        site = wrap_attacker(Site(copy, config_of(copy), tmp_path / str(spec), "cpu"), spec)
        assert site.name == "copy"
        return [reply.update for reply in play(site)[1]]

    original = [reply.update for reply in played()[1]]
    assert all(torch.equal(*pair) for pair in zip(original, updates("twin:of=A"), strict=True))
    assert not torch.equal(original[0], updates(None)[0])


def test_half_of_the_signs_are_reversed(played):
    honest, acted = played()[1][0].update, played("half-flip")[1][0].update
    assert torch.equal(acted[::2], honest[::2])
    assert torch.equal(acted[1::2], -honest[1::2])


def test_a_near_twin_adds_noise_and_has_digests_of_its_own(played, folders, tmp_path):
    copy = copy_site(folders["prostate"], tmp_path / "copy")
    original = Site(folders["prostate"], config_of(folders["prostate"]), tmp_path / "original", "cpu")
    twin = wrap_attacker(Site(copy, config_of(copy), tmp_path / "twin", "cpu"), "near-twin:of=A:noise=0.5")
    sent, honest = play(twin)[1][0].update, played()[1][0].update
    assert float((sent - honest).norm() / honest.norm()) == pytest.approx(0.5, rel=1e-3)
    told = [site.answer(EnrolmentTask(0)).fingerprint for site in (original, twin)]
    assert len(told[0]) == len(told[1])
    assert not set(told[0]) & set(told[1])
