"""Hostile artefacts for every reader: a few by default, as many as ``FEDMERIT_ARTEFACTS`` says if it is set.

10,000 of each reader take hours: ``FEDMERIT_ARTEFACTS=10000 pytest tests/fedmerit/hostile/test_fuzz.py``.
One that failed is made again by its reader and index: ``Workplace.put``.
"""

import os

import pytest
from corpus import make_corpus
from fuzzing import examine_apart
from messages import MESSAGES, WORK, receive, valid_message
from one_in import one_in
from readers import READERS

ARTEFACTS = int(os.environ.get("FEDMERIT_ARTEFACTS", "4"))
FIRST = int(os.environ.get("FEDMERIT_FIRST", "0"))


@pytest.fixture(scope="session")
def corpus(trained, sites, tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile") / "corpus"
    make_corpus(root, trained(rounds=1), sites / "site1")
    return root


@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("reader", one_in(4, READERS))
def test_hostile_files_are_refused_in_one_line_and_do_nothing(corpus, tmp_path, reader):
    faults = examine_apart(corpus, tmp_path / "work", reader, range(FIRST, FIRST + ARTEFACTS))
    assert not faults, "\n".join(faults)


@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("name", one_in(4, MESSAGES))
def test_hostile_messages_are_refused_and_do_nothing(corpus, tmp_path, name):
    """Of them, too, nothing is executed or written."""
    receive(name, valid_message(name))
    faults = examine_apart(corpus, tmp_path / "work", name, range(FIRST, FIRST + ARTEFACTS))
    assert not faults, "\n".join(faults)


@pytest.mark.slow
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("name", WORK)
def test_hostile_tasks_have_a_site_write_nothing_but_its_memory(corpus, tmp_path, name):
    faults = examine_apart(corpus, tmp_path / "work", name, range(FIRST, FIRST + ARTEFACTS))
    assert not faults, "\n".join(faults)
