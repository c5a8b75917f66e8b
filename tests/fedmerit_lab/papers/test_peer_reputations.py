"""What sites hold of each other, and what becomes of those with wrong masks, of made-up runs."""

import math

import pytest
import torch
from paper_runs import artefact_of, made_up_run

from fedmerit.errors import BadInput
from fedmerit_evaluation.results.views import Results
from fedmerit_lab.attacks.attacked_runs import Attack
from fedmerit_lab.papers.cycle_artefacts import PAPER
from fedmerit_lab.papers.partitioned_sites import site_dice
from fedmerit_lab.papers.required_trainings import WrongMasks


def test_the_site_with_wrong_masks_stands_apart(study, tmp_path, pretend):
    artefact = artefact_of(PAPER, "table7")
    pretend(study, artefact)
    (need,) = (need for need in artefact.needs if isinstance(need, WrongMasks))
    names = [f"site-{number}" for number in range(1, 6)]
    attacks = []
    for kind in ("honest", *need.kinds):
        folder = tmp_path / kind
        made_up_run(folder, "cycle", 0, names)
        attacks.append(Attack("cycle", kind, "" if kind == "honest" else "site-5", 0, folder))
    for attack in attacks:
        torch.save({"round": 99}, attack.folder / "checkpoint.pt")
    study.trainings[need] = attacks
    ours, theirs = artefact.make(study, artefact).tables
    frame = ours.frame.set_index("Masks")
    assert list(frame.index) == ["standalone", "honest", *(kind.replace(":share=", ", ") for kind in need.kinds)]
    row = frame.loc["honest"]
    assert row["Mean of the others"] == pytest.approx(row[names[:-1]].mean())
    assert row["Reputation of site-5"] == pytest.approx(0.8 + 0.03)
    assert row["Reputation of the others"] == pytest.approx(0.3 + 0.03)
    assert math.isnan(frame.loc["standalone", "Reputation of site-5"])
    assert theirs.frame.loc[4, "5"] == 10.75
    maps = artefact_of(PAPER, "figure5")
    (drawn,) = maps.make(study, maps).drawn
    assert len([panel for panel in drawn.figure.axes if panel.images]) == 3 * (1 + len(need.kinds))


def test_the_first_three_of_five_stand_beside_two_with_wrong_masks(study, pretend):
    artefact = artefact_of(PAPER, "table8")
    pretend(study, artefact)
    ours, theirs = artefact.make(study, artefact).tables
    frame = ours.frame.set_index("Masks")
    wrong = [f"cycle, Two wrong ({share})" for share in (0.2, 0.5, 1)]
    assert sorted(frame.index) == sorted(["standalone, Homogeneous", "cycle, Homogeneous", *wrong])
    dice = site_dice(study.results(artefact.needs[1])).loc["cycle"].mean()
    row = frame.loc[wrong[0]]
    assert row["site-4"] == pytest.approx(100 * dice["site-4"])
    assert row["Mean of the first three"] == pytest.approx(100 * (dice["site-1"] + dice["site-2"] + dice["site-3"]) / 3)
    assert theirs.frame.set_index("Labels").loc["1.0 flipped", "4"] == 3.40


def test_a_map_is_drawn_of_each_deal_with_what_it_shows(study, pretend):
    """A site at place p is held at 0.2 p + 0.01 in round 1, and 0.01 higher in each round after it."""
    artefact = artefact_of(PAPER, "figure4")
    pretend(study, artefact)
    first, second = artefact.make(study, artefact).drawn
    assert (first.name, second.name) == ("figure4-imbalanced_0.8_1", "figure4-imbalanced_0.35_2")
    told = first.numbers[(first.numbers["round"] == 2) & (first.numbers["holder"] == "site-1")]
    assert told["site-4"].to_list() == pytest.approx([0.62])  # the mean over seeds
    assert told["site-1"].isna().all()


def test_runs_that_hold_nothing_of_each_other_are_told(study, pretend):
    artefact = artefact_of(PAPER, "figure4")
    pretend(study, artefact)
    recorded = [study.results(need).rows for need in artefact.needs]
    silent = Results(recorded[0][recorded[0]["quantity"] != "peer_reputation"])
    study.results = lambda need: silent
    with pytest.raises(BadInput, match="do not go beyond `warmup`"):
        artefact.make(study, artefact)
