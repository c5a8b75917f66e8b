"""Steps of sites' trainings that auditors repeated, as their statements in the run folders say."""

from collections.abc import Sequence

import pandas as pd

from fedmerit.evidence.repeated_work import AUDITS
from fedmerit.evidence.signatures import parse_certificates, subject
from fedmerit.evidence.verification.work import read_statement
from fedmerit_evaluation.results.runs import Run


def list_repeated_steps(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a row for each statement: Method, Seed, Site, Drawn steps repeated, Auditor; empty if there is none.

    Raises:
        BadInput: a file in the folder of statements is none.
    """
    rows = []
    for run in runs:
        for path in sorted((run.path / AUDITS).glob("*.json")):
            statement = read_statement(path)
            agreed = sum(not repeated.fault for repeated in statement.rounds.values())
            pem, where = statement.certificate.encode(), f"{path}: certificate"
            rows.append(
                {
                    "Method": run.label,
                    "Seed": run.seed,
                    "Site": statement.site,
                    "Drawn steps repeated": f"{agreed} of {len(statement.rounds)}",
                    "Auditor": subject(parse_certificates(pem, where)[0]) if pem else "not signed",
                }
            )
    return pd.DataFrame(rows)
