"""Faulty updates, compared with the honest ones."""

import pytest
import torch
from playing import config_of, copy_site, play, same_statistics

from fedmerit.attacks.attacking_site import attacking
from fedmerit.federation.site import Site


@pytest.mark.parametrize(("spec", "by"), [("sign-flip", -1.0), ("scaled", 10.0), ("scaled:by=0.5", 0.5)])
def test_scaled_updates_are_the_honest_ones_times_a_factor(played, spec, by):
    honest, acted = played()[1][0], played(spec)[1][0]
    assert torch.equal(acted.update, by * honest.update)
    assert same_statistics(acted, honest)


def test_a_twin_sends_the_very_update_of_the_site_it_copies(played, folders, tmp_path):
    copy = copy_site(folders["prostate"], tmp_path / "copy")

    def updates(spec):
        site = attacking(Site(copy, config_of(copy), tmp_path / str(spec), "cpu"), spec)
        assert site.name == "copy"
        return [reply.update for reply in play(site)[1]]

    original = [reply.update for reply in played()[1]]
    assert all(torch.equal(*pair) for pair in zip(original, updates("twin:of=A"), strict=True))
    assert not torch.equal(original[0], updates(None)[0])
