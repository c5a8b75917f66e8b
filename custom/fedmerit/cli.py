"""The ``fedmerit`` command: every module of `fedmerit.commands` adds its own."""

from fedmerit.commands import attacks, data, evaluation, fairness, methods, papers, partition, training, values
from fedmerit.commands.app import app

__all__ = ["app", "attacks", "data", "evaluation", "fairness", "methods", "papers", "partition", "training", "values"]
