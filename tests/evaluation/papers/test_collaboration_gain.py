"""What sites gain by collaborating, of made-up runs."""

import numpy as np
import pytest

from evaluation.papers.cycle_artefacts import PAPER
from evaluation.papers.dealt_sites import site_dice_of

ARTEFACTS = {one.name: one for one in PAPER.artefacts}


def test_gains_over_training_alone_by_hand(study, pretend):
    artefact = ARTEFACTS["table1"]
    pretend(study, artefact)
    ours, *theirs = artefact.make(study, artefact).tables
    dice = site_dice_of(study.results(artefact.needs[0]))
    gains = [100 * (dice.loc[("cycle", seed)] - dice.loc[("standalone", seed)]) for seed in (0, 1)]
    row = ours.frame.set_index("Method").loc["cycle"]
    assert row["MVA [%], Homogeneous"] == pytest.approx(100 * dice.loc["cycle"].to_numpy().mean())
    assert row["MCG [points], Homogeneous"] == pytest.approx(np.mean([gain.mean() for gain in gains]))
    assert row["CGS [points], Homogeneous"] == pytest.approx(np.mean([gain.std(ddof=1) for gain in gains]))
    assert [table.name for table in theirs] == [f"table1-published-{number}" for number in (1, 2, 3)]
    by_site = ARTEFACTS["table9"]
    pretend(study, by_site)
    uni = by_site.make(study, by_site).tables[0].frame.set_index("Method")
    both = sum(gains) / 2
    assert uni.loc["cycle"].drop("Worse off than alone").to_list() == pytest.approx(both.to_list())
    lost = [site for site in both.index if both[site] < 0]
    assert uni.loc["cycle", "Worse off than alone"] == (", ".join(lost) or "nobody")
