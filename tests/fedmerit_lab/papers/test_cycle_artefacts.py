"""Tables and figures of CYCle: the deals that the paper names, and its two sites that estimate a mean."""

import pytest
from paper_runs import artefact_of

from fedmerit.attacks.catalogue import parse
from fedmerit.attacks.faulty_masks import Inverted, Shifted
from fedmerit_data.partitioning.scheme import Scheme
from fedmerit_lab.papers import mean_estimation
from fedmerit_lab.papers.collaboration import gains
from fedmerit_lab.papers.cycle_artefacts import BY_TAU, PAPER, WRONG, imbalanced
from fedmerit_lab.papers.partitioned_sites import parameters_of, partitioned_needs, require_partition
from fedmerit_lab.papers.study import Partition


def test_an_imbalanced_deal_is_named_by_its_share_and_holders():
    assert imbalanced(0.35, 2) == Partition("Imbalanced (0.35, 2)", "imbalanced", kappa=0.35, holders=2)


@pytest.mark.parametrize("name", [one.name for one in PAPER.artefacts if one.make is gains])
def test_sites_are_dealt_as_the_papers_columns_say(name):
    artefact = artefact_of(PAPER, name)
    columns = [require_partition(need).heading for need in partitioned_needs(artefact)]
    for printed in artefact.published:
        assert list(dict.fromkeys(group.split(", CIFAR")[0] for group in printed.groups)) == columns


def test_every_deal_leaves_something_for_every_site():
    """Holders of a share each leave the others some, and there is a site for every noise."""
    for need in {need for artefact in PAPER.artefacts for need in partitioned_needs(artefact)}:
        deal = require_partition(need)
        sites = deal.into or 5
        scheme = Scheme(deal.by, sites, alpha=deal.alpha, kappa=deal.kappa, holders=deal.holders)
        assert (scheme.holders or 0) * (scheme.kappa or 0) < 1
        assert {site for site, _ in deal.noise} <= {f"site-{number}" for number in range(1, sites + 1)}


def test_the_figure_over_both_taus_asks_for_every_pair():
    pairs = [parameters_of(label) for label in BY_TAU[1:]]
    found = {(float(pair["tau_opt"]), float(pair["tau_max"])) for pair in pairs}
    assert found == {(opt, most) for opt in (0.1, 0.25, 0.4) for most in (0.6, 0.75, 0.9)}
    assert len(pairs) == 9
    assert all(opt < most for opt, most in found)  # what CYCle asks for


def test_wrong_masks_are_attacks_that_there_are():
    attacks = [Shifted(share=0.2), Shifted(share=0.5), Shifted(share=1.0)]
    assert [parse(spec) for spec in WRONG] == attacks + [Inverted(share=attack.share) for attack in attacks]


def test_the_last_two_of_five_sites_have_the_wrong_masks():
    noise = [require_partition(need).noise for need in artefact_of(PAPER, "figure12").needs]
    assert noise == [(("site-4", share), ("site-5", share)) for share in (0.2, 0.5, 1.0)]


def test_deviations_are_drawn_where_the_paper_has_them(study, monkeypatch):
    few = mean_estimation.over_ratios(runs=20)
    monkeypatch.setattr(mean_estimation, "over_ratios", lambda: few)
    artefact = artefact_of(PAPER, "figure7")
    means, deviations = artefact.make(study, artefact).drawn
    assert (means.name, deviations.name) == ("figure7", "figure7-deviation")
    assert list(deviations.numbers) == ["ratio", "deviation, site 1", "deviation, site 2"]
    assert len(deviations.figure.axes[0].get_lines()) == 2
    assert len(means.figure.axes[0].get_lines()) == len(few.columns) - 3
