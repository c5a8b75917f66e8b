"""The processes of a preparation begin with what cases need."""

import importlib

from fedmerit_data.preparing import case_processes
from fedmerit_data.preparing.cases import prepare_case


def test_processes_begin_with_what_cases_need_and_with_what_is_asked(monkeypatch):
    begun = []
    monkeypatch.setattr(case_processes, "begin_fork_server", begun.append)
    case_processes.begin_processes(["__main__"])
    ((first, *preloaded),) = begun
    assert first == "__main__"
    assert prepare_case.__module__ in preloaded
    for name in preloaded:
        importlib.import_module(name)
