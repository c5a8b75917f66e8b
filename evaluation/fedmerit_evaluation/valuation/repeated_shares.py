"""The share of a site's rounds whose drawn steps an auditor repeated: what its pay is multiplied with, if so agreed.

Values say what updates were worth, not who trained in which round: a site that stops is paid for what it sent before.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedmerit.contract.semivalues import FloatArray
from fedmerit.evidence.signatures import Trust


def repeated_shares(run: Path, sites: Sequence[str], auditors: Trust) -> FloatArray:
    """Return (n,) `fedmerit.evidence.repeated_work.RepeatedWork.share` of each site, 0 to 1.

    It is 0 of a site that nobody audited. ``run`` is the folder of a finished run; ``auditors`` is the authority that
    issued the auditors' certificates.

    Raises:
        BadInput: the ledger or an auditor's statement is damaged, or not of this run.
    """
    from fedmerit.evidence.verification.chains import read_ledger  # verification loads PyTorch
    from fedmerit.evidence.verification.work import summarise_statement

    records = read_ledger(run / "ledger.jsonl")
    return np.array([summarise_statement(run, records, site, auditors).share for site in sites])
