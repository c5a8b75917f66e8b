"""Figures of runs in which each site in turn rides."""

from fedmerit_evaluation.figures.drawing import png
from fedmerit_lab.attacks import figures


def test_figures_are_drawn_of_sites_that_ride_in_turn(study):
    drawn = figures.figures(*study)
    assert set(drawn) == {"figure4_fedavg_zero", "figure7_fedavg_zero"}
    assert all(png(figure).startswith(b"\x89PNG") for figure in drawn.values())
    heat = drawn["figure4_fedavg_zero"].axes
    assert [panel.get_title(loc="left") for panel in heat[:6]] == [f"Round {round}" for round in (0, 2, 4, 7, 9, 11)]
    assert [text.get_text() for text in heat[5].texts] == ["0.14", "0.00", "0.00", "0.00", "0.14", "0.00"]
