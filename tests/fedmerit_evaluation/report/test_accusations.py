"""Whom a report names: flagged, rejected, suspected, planted."""

from fedmerit_evaluation.report import phrases


def test_of_marks_and_suspicions() -> None:
    assert phrases.describe_flags([], []) == "The server flagged no hospital and rejected no reply."
    assert phrases.describe_flags(["A"], ["A", "B"]) == (
        "Look at these first: A flagged in at least one round; A and B with a reply missing or rejected in at least "
        "one round."
    )
    assert phrases.describe_suspicions({}) == ""
    assert phrases.describe_suspicions({"small norm": ["A", "B"]}).startswith(
        "Free-rider detectors flag: small norm (A, B)."
    )


def test_of_planted_attackers() -> None:
    text = phrases.describe_simulated_attacks(
        "fedce (attacked)", {"A": "zero", "B": "noise"}, {"A": ["small norm"]}, ["C"]
    )
    assert "A (zero) was flagged by small norm and nothing flagged B (noise)" in text
    assert text.endswith("Honest, and flagged by some detector as well: C.")
    assert phrases.describe_simulated_attacks("x", {"A": "zero"}, {}, []).endswith("No honest one was flagged.")
