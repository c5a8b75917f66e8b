"""The ``fedmerit`` command: every file of this folder adds its own, in the order of ``--help``."""

from cli.app import app

# isort: off
from cli import preparing
from cli import partitioning
from cli import running
from cli import reporting
from cli import measuring_fairness
from cli import valuing
from cli import attacking
from cli import reproducing
from cli import exporting
from cli import deploying
# isort: on

__all__ = [
    "app",
    "attacking",
    "deploying",
    "exporting",
    "measuring_fairness",
    "partitioning",
    "preparing",
    "reporting",
    "reproducing",
    "running",
    "valuing",
]
