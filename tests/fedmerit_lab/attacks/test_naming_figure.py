"""The picture of how often riders are named."""

import pandas as pd

from fedmerit_evaluation.figures.drawing import png
from fedmerit_lab.attacks.detection_rules import FALSELY, RIGHTLY
from fedmerit_lab.attacks.figures import detection_rate_figures


def test_a_figure_for_each_behaviour_and_a_panel_for_each_method():
    rows = [
        {
            "Method": method,
            "Behaviour": kind,
            "After rounds": after,
            "Rule": rule,
            RIGHTLY: after * share,
            FALSELY: share,
        }
        for method in ("fedce", "fedce:augment=false")
        for kind in ("repeat", "zero")
        for after in (10, 30)
        for share, rule in enumerate(("free-rider value", "training loss"), start=1)
    ]
    drawn = detection_rate_figures(pd.DataFrame(rows))
    assert list(drawn) == ["naming_repeat", "naming_zero"]
    figure = drawn["naming_repeat"]
    assert [panel.get_title() or panel.get_title(loc="left") for panel in figure.axes] == [
        "fedce",
        "fedce:augment=false",
    ]
    lines = [line.get_ydata().tolist() for line in figure.axes[0].get_lines()]
    assert lines == [[10, 30], [1, 1], [20, 60], [2, 2]]
    assert [text.get_text() for text in figure.legends[0].get_texts()][2:] == ["free-rider value", "training loss"]
    assert png(figure).startswith(b"\x89PNG")
    assert detection_rate_figures(pd.DataFrame()) == {}
