"""Train a federation and each hospital by itself, compare them, and write the report."""

from pathlib import Path

import fedmerit

SITES = Path("sites")  # one folder per hospital, as `fedmerit prepare` writes them
COMPARISON = Path("comparison")

if __name__ == "__main__":
    if not SITES.exists():  # no images yet: six synthetic hospitals
        fedmerit.prepare("synthetic-prostate", SITES, size=32, patients=12)
    results = fedmerit.compare(
        COMPARISON, SITES, ["fedce", "standalone"], seeds=(0, 1), folds=False, rounds=5, settings={"recipe": "quick"}
    )
    print(results.dice_and_contributions)
    runs = sorted(path.parent for path in COMPARISON.rglob("run.json"))
    print("Report:", fedmerit.report(runs, COMPARISON / "report.html"))
