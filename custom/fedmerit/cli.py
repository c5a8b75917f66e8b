"""The ``fedmerit`` command: every module of `fedmerit.commands` adds its own."""

from fedmerit.commands import data, evaluation, methods, training
from fedmerit.commands.app import app

__all__ = ["app", "data", "evaluation", "methods", "training"]
