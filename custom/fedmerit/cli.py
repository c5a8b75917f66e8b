"""The ``fedmerit`` command: every module of `fedmerit.commands` adds its own, in the order of ``--help``."""

from fedmerit.commands.app import app

# isort: off
from fedmerit.commands import data
from fedmerit.commands import partition
from fedmerit.commands import training
from fedmerit.commands import evaluation
from fedmerit.commands import fairness
from fedmerit.commands import values
from fedmerit.commands import attacks
from fedmerit.commands import papers
from fedmerit.commands import methods
from fedmerit.commands import deployment
# isort: on

__all__ = [
    "app",
    "attacks",
    "data",
    "deployment",
    "evaluation",
    "fairness",
    "methods",
    "papers",
    "partition",
    "training",
    "values",
]
