"""Verification of the runs behind a report: of the files of each run folder, against each other."""

from collections.abc import Sequence

import pandas as pd

from fedmerit_evaluation.results.runs import Run

WORD = "Rests on the server's word [weight]"


def verify_runs(runs: Sequence[Run], site: str | None = None) -> pd.DataFrame:
    """Verify runs, each with the sites' logs in its folder: `fedmerit verify` with all of them.

    Args:
        runs: opened runs.
        site: the hospital that the report is for: no labels, which may hold names, no weights of others. None: all.

    Returns:
        A row for each run: Method, Seed, Ledger signed by, Logs of sites, and Rests on the server's word, the largest
        change of a weight that what is not shown could have caused.

    Raises:
        Contradiction: files of a run contradict each other.
        BadInput: a run has no ledger, or a file cannot be read.
    """
    from fedmerit.evidence.verification.run import verify_run  # loads PyTorch

    rows = []
    for run in runs:
        logs = sorted((run.path / "sites").glob("*/site_log.jsonl"))
        found = verify_run(run.path, logs)
        rows.append(
            {
                "Method": run.label if site is None else run.info["method"],
                "Seed": run.seed,
                "Ledger signed by": found.signer or "nobody",
                "Logs of sites": f"{len(logs)} of {len(run.sites)}",
                WORD: found.moved.weight,
            }
        )
    return pd.DataFrame(rows).drop(columns=[WORD] if site else [])
