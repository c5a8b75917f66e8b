"""The share of a site's rounds whose drawn steps an auditor repeated: what its pay is multiplied with, if so agreed.

Values say what updates were worth, not who trained in which round: a site that stops is paid for what it sent before.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedmerit.contract.semivalues import FloatArray
from fedmerit.evidence.verification.chains import read_ledger
from fedmerit.evidence.verification.work import summarise_statement


def repeated_shares(run: Path, sites: Sequence[str]) -> FloatArray:
    """Return (n,) `RepeatedWork.share` of each site of a finished run, 0 to 1; 0 of a site that nobody audited.

    Raises:
        BadInput: the ledger or an auditor's statement is damaged, or not of this run.
    """
    records = read_ledger(run / "ledger.jsonl")
    return np.array([summarise_statement(run, records, site).share for site in sites])
