"""Tables and figures of FedCE, of made-up runs."""

import numpy as np
import pytest
from paper_runs import Made_up, artefact_of, made_up_run
from run_factory import SITES

from fedmerit.records.results import read_results
from fedmerit_lab.papers.fedce_artefacts import PAPER


def test_table_1_stands_beside_the_papers_means(study, pretend):
    artefact = artefact_of(PAPER, "table1")
    pretend(study, artefact)
    ours, *theirs = artefact.make(study, artefact).tables
    assert ours.headings == ["Method", *SITES, "Avg.", "Std."] + [
        f"{what}, {task}" for task in ("retinal fundus", "prostate MRI") for what in ("Avg.", "Std.")
    ]
    row = ours.frame.set_index("Method").loc["fedce:combine=plus"]
    assert row[["Avg., retinal fundus", "Avg., prostate MRI"]].to_list() == [82.92, 88.22]
    assert row["Avg."] == pytest.approx(row[list(SITES)].mean())
    assert [table.name for table in theirs] == ["table1-published-1", "table1-published-2"]


def test_figure_5_compares_renormalised_weights(study, tmp_path, pretend):
    artefact = artefact_of(PAPER, "figure5")
    pretend(study, artefact)
    fewer = []
    for left_out in SITES:
        rest = [site for site in SITES if site != left_out]
        folder = tmp_path / f"without-{left_out}"
        made_up_run(folder, "fedce", 0, rest)
        fewer.append(coalition(frozenset(rest), folder))
    study.trainings[artefact.needs[1]] = fewer
    made = artefact.make(study, artefact)
    frame = made.tables[0].frame
    assert frame.groupby("Without")[["Share with all [%]", "Share without it [%]"]].sum().to_numpy() == pytest.approx(
        np.full((4, 2), 100.0)
    )
    assert (frame["Without"] != frame["Site"]).all()
    runs = [read_results(one.folder) for one in study.trainings[artefact.needs[0]]]
    weights = [run[(run["quantity"] == "weight") & (run["round"] == 3)].set_index("site")["value"] for run in runs]
    mean = (weights[0] + weights[1]) / 2
    row = frame[(frame["Without"] == "Alder") & (frame["Site"] == "Birch")].iloc[0]
    assert row["Share with all [%]"] == pytest.approx(100 * mean["Birch"] / mean.drop("Alder").sum())


def coalition(members, folder):
    made = Made_up("fedce", 0, folder)
    object.__setattr__(made, "coalition", members)
    return made
