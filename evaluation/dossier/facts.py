"""Evidence for the items of a dossier: what ledger, run folders and site folders hold, and nothing besides.

Every function of `EVIDENCE` says in a sentence or two what was recorded or measured, or nothing.
"""

from collections.abc import Callable, Mapping

from evaluation.dossier.data_facts import DATA
from evaluation.dossier.file import File
from evaluation.dossier.record_facts import RECORD
from evaluation.dossier.result_facts import RESULTS
from evaluation.dossier.training_facts import TRAINING

EVIDENCE: Mapping[str, Callable[[File], str]] = {one.__name__: one for one in (*DATA, *TRAINING, *RESULTS, *RECORD)}
NEVER = ("intended_use", "users", "privacy_attacks")  # nothing that FedMerit writes tells these
