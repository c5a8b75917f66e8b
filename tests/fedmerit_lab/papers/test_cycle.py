"""Tables and figures of CYCle: partitions as in the paper, collaboration gain, reputations, wrong masks."""

import math

import numpy as np
import pytest
import torch
from paper_runs import artefact_of, write_paper_run

from fedmerit.errors import BadInput
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.attack import parse_attack
from fedmerit_lab.attacks.attacked_runs import AttackedRun
from fedmerit_lab.attacks.faults import Inverted, Shifted
from fedmerit_lab.papers.cycle import PAPER, WRONG, gains
from fedmerit_lab.papers.partitioned_sites import partitioned_needs, site_dice
from fedmerit_lab.papers.study import WrongMasks
from fedmerit_lab.partitioning.scheme import Scheme


@pytest.mark.parametrize("name", [one.name for one in PAPER.artefacts if one.make is gains])
def test_partitions_are_the_papers_columns(name):
    artefact = artefact_of(PAPER, name)
    columns = [need.where.heading for need in partitioned_needs(artefact)]
    for printed in artefact.published:
        assert list(dict.fromkeys(group.split(", CIFAR")[0] for group in printed.groups)) == columns


def test_every_partition_leaves_patients_for_every_site():
    for need in {need for artefact in PAPER.artefacts for need in partitioned_needs(artefact)}:
        one = need.where
        sites = one.into or 5
        scheme = Scheme(one.by, sites, alpha=one.alpha, kappa=one.kappa, holders=one.holders)
        assert (scheme.holders or 0) * (scheme.kappa or 0) < 1
        assert {site for site, _ in one.noise} <= {f"site-{number}" for number in range(1, sites + 1)}


def test_wrong_masks_are_the_papers():
    attacks = [Shifted(share=0.2), Shifted(share=0.5), Shifted(share=1.0)]
    assert [parse_attack(spec) for spec in WRONG] == attacks + [Inverted(share=attack.share) for attack in attacks]
    noise = [need.where.noise for need in artefact_of(PAPER, "figure12").needs]
    assert noise == [(("site-4", share), ("site-5", share)) for share in (0.2, 0.5, 1.0)]


def test_gains_over_local_only_training(study, make):
    artefact = artefact_of(PAPER, "table1")
    ours, *theirs = make(artefact).tables
    dice = site_dice(study.results(artefact.needs[0]))
    found = [100 * (dice.loc[("cycle", seed)] - dice.loc[("standalone", seed)]) for seed in (0, 1)]
    row = ours.frame.set_index("Method").loc["cycle"]
    assert row["MVA [%], Homogeneous"] == pytest.approx(100 * dice.loc["cycle"].to_numpy().mean())
    assert row["MCG [points], Homogeneous"] == pytest.approx(np.mean([gain.mean() for gain in found]))
    assert row["CGS [points], Homogeneous"] == pytest.approx(np.mean([gain.std(ddof=1) for gain in found]))
    assert [table.name for table in theirs] == [f"table1-published-{number}" for number in (1, 2, 3)]
    uniform = make(artefact_of(PAPER, "table9")).tables[0].frame.set_index("Method")
    both = sum(found) / 2
    assert uniform.loc["cycle"].drop("Worse than local-only").to_list() == pytest.approx(both.to_list())
    lost = [site for site in both.index if both[site] < 0]
    assert uniform.loc["cycle", "Worse than local-only"] == (", ".join(lost) or "none")


def test_the_site_with_wrong_masks_has_its_own_columns(study, tmp_path, make):
    artefact = artefact_of(PAPER, "table7")
    (need,) = (need for need in artefact.needs if isinstance(need, WrongMasks))
    names = [f"site-{number}" for number in range(1, 6)]
    study.trainings[need] = []
    for kind in ("honest", *need.kinds):
        write_paper_run(tmp_path / kind, "cycle", 0, names)
        torch.save({"round": 99, "complete_rounds": 99}, tmp_path / kind / "checkpoint.pt")
        study.trainings[need].append(
            AttackedRun("cycle", kind, "" if kind == "honest" else "site-5", 0, tmp_path / kind)
        )
    ours, theirs = make(artefact).tables
    frame = ours.frame.set_index("Masks")
    assert list(frame.index) == ["standalone", "honest", *(kind.replace(":share=", ", ") for kind in need.kinds)]
    row = frame.loc["honest"]
    assert row["Mean of the others"] == pytest.approx(row[names[:-1]].mean())
    assert row["Reputation of site-5"] == pytest.approx(0.8 + 0.03)
    assert row["Reputation of the others"] == pytest.approx(0.3 + 0.03)
    assert math.isnan(frame.loc["standalone", "Reputation of site-5"])
    assert theirs.frame.loc[4, "5"] == 10.75


def test_two_sites_with_wrong_masks(study, make):
    artefact = artefact_of(PAPER, "table8")
    ours, theirs = make(artefact).tables
    frame = ours.frame.set_index("Masks")
    wrong = [f"cycle, Two wrong ({share})" for share in (0.2, 0.5, 1)]
    assert sorted(frame.index) == sorted(["standalone, Homogeneous", "cycle, Homogeneous", *wrong])
    dice = site_dice(study.results(artefact.needs[1])).loc["cycle"].mean()
    row = frame.loc[wrong[0]]
    assert row["site-4"] == pytest.approx(100 * dice["site-4"])
    assert row["Mean of the first three"] == pytest.approx(100 * (dice["site-1"] + dice["site-2"] + dice["site-3"]) / 3)
    assert theirs.frame.set_index("Labels").loc["1.0 flipped", "4"] == 3.40


def test_reputations_are_a_map_for_each_partition(study, make):
    """The reputation of the site at place p is 0.2 p + 0.01 in round 1, and 0.01 higher in each round after it."""
    artefact = artefact_of(PAPER, "figure4")
    first, second = make(artefact).drawn
    assert (first.name, second.name) == ("figure4-imbalanced_0.8_1", "figure4-imbalanced_0.35_2")
    row = first.numbers[(first.numbers["round"] == 2) & (first.numbers["rater"] == "site-1")]
    assert row["site-4"].to_list() == pytest.approx([0.62])  # the mean over seeds
    assert row["site-1"].isna().all()
    rows = study.results(artefact.needs[0]).rows
    without = Results(rows[rows["quantity"] != "peer_reputation"])
    study.results = lambda need: without
    with pytest.raises(BadInput, match="train more rounds than `warmup`"):
        make(artefact)
