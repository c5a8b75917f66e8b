"""The differential privacy that sites which train by DP-SGD have spent, as they account for it."""

from collections.abc import Sequence

import pandas as pd

from fedmerit_evaluation.results.runs import Run


def list_spent_privacy(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a row for each site of the runs by DP-SGD: Method, Seed, Site, ε, δ and Rounds; empty if there is none."""
    tables = []
    for run in runs:
        rows = run.results.rows
        spent = rows[(rows["quantity"] == "epsilon") & rows["value"].notna()].sort_values("round", kind="stable")
        last = spent.groupby("site", as_index=False).last()
        delta = run.info.get("plan", {}).get("privacy", {}).get("dp_delta")
        columns = {"Method": run.label, "Seed": run.seed, "Site": last["site"], "ε": last["value"], "δ": delta}
        tables.append(pd.DataFrame(columns | {"Rounds": last["site"].map(spent["site"].value_counts())}))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
