"""Statements of auditors in a report: how many drawn steps were repeated, and by whom."""

from types import SimpleNamespace

import pandas as pd
import pytest
from certificates import issue

from fedmerit.errors import BadInput
from fedmerit.evidence.repeated_work import AUDITS, write_statement
from fedmerit.evidence.signatures import Signer
from fedmerit.schema.records import AuditStatement
from fedmerit_evaluation.report.flags import list_repeated_steps
from fedmerit_evaluation.report.redaction import _rows_of_site


@pytest.fixture
def run(tmp_path):
    issue(tmp_path, "root")
    issue(tmp_path, "auditor", "root")
    for site, fault in (("A", ""), ("B", "state 2 of 3 is another")):
        rounds = {
            "0": {"root": "0", "leaf": 1, "leaves": 3},
            "1": {"root": "1", "leaf": 3, "leaves": 3, "fault": fault},
        }
        content = {"site": site, "plan": "p", "ledger": "0" * 64, "machine": "m", "rounds": rounds}
        statement = AuditStatement.model_validate(content)
        signer = Signer(tmp_path / "auditor.key", tmp_path / "auditor.crt") if site == "A" else None
        write_statement(tmp_path / AUDITS, statement, signer)
    return SimpleNamespace(path=tmp_path, label="fedavg", seed=0)


def test_report_counts_repeated_steps_by_site(run):
    table = list_repeated_steps([run])
    assert table["Site"].tolist() == ["A", "B"]
    assert table["Drawn steps repeated"].tolist() == ["2 of 2", "1 of 2"]
    assert [text.partition(",")[0] for text in table["Auditor"]] == ["CN=auditor", "not signed"]
    assert _rows_of_site(table, "B")["Site"].tolist() == ["B"]


def test_report_without_statements_has_no_rows(run, tmp_path):
    other = replace_path(run, tmp_path / "other")
    assert list_repeated_steps([other]).empty
    assert _rows_of_site(pd.DataFrame(), "A").empty


def replace_path(run, path):
    return SimpleNamespace(**{**vars(run), "path": path})


@pytest.mark.parametrize("again", ["00", "+0", "\u0660"])
def test_round_that_a_statement_counts_twice_is_refused(run, again):
    """Round 0 under other digits would have been a further repeated round, and raised the share of pay."""
    text = (run.path / AUDITS / "B.json").read_text()
    (run.path / AUDITS / "B.json").write_text(text.replace('"1": {', f'"{again}": {{'))
    with pytest.raises(BadInput, match=r"B\.json: not a statement of an auditor"):
        list_repeated_steps([run])


def test_report_refuses_a_file_that_is_no_statement(run):
    (run.path / AUDITS / "C.json").write_text("{}")
    with pytest.raises(BadInput, match=r"C\.json: not a statement of an auditor"):
        list_repeated_steps([run])
