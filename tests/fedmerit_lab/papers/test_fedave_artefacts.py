"""Tables of FedAVE: what is compared is what the paper printed."""

import pytest
from paper_runs import artefact_of

from fedmerit_lab.papers.artefact import KEEP_OWN
from fedmerit_lab.papers.fedave_artefacts import PAPER
from fedmerit_lab.papers.partitioned_sites import partitioned_needs, require_partition


@pytest.mark.parametrize("name", ["table2", "table3", "table4"])
def test_deals_and_methods_are_those_of_the_printed_table(name):
    artefact = artefact_of(PAPER, name)
    (printed,) = artefact.published
    for group in printed.groups:
        table = printed.of(group)
        assert table.headings[1:] == [require_partition(need).heading for need in partitioned_needs(artefact)]
        for need in partitioned_needs(artefact):
            named = [label.removesuffix(KEEP_OWN) for label in need.labels]
            assert [label for label in named if label in set(table.frame["Method"])] == table.frame["Method"].to_list()
            assert set(named) - set(table.frame["Method"]) <= {"standalone"}


def test_without_distributions_stands_beside_the_papers_number(study, pretend):
    artefact = artefact_of(PAPER, "table4")
    pretend(study, artefact)
    frame = artefact.make(study, artefact).tables[0].frame.set_index("Method")
    assert frame.loc["fedave:distributions=quota", "DIR(0.2), MNIST"] == 67.08
    assert frame.loc["fedave", "DIR(0.2), MNIST"] == 84.22
    assert list(frame.index) == [f"fedave:distributions={where}" for where in ("none", "quota", "reputation")] + [
        "fedave"
    ]
