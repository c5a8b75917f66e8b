"""Verification in a report: not done unless asked for, and its foot says which."""

from pathlib import Path

import pytest
from signed_runs import closed_again, lines_of, rewritten, run_signed

from fedmerit.errors import BadInput
from fedmerit_evaluation.report.report import WORD, verify_runs, write_report
from fedmerit_evaluation.results.runs import open_runs


@pytest.fixture(scope="module")
def run(sites, tmp_path_factory) -> Path:
    """A run without keys, the sites' logs in its folder. Never change it."""
    return run_signed(tmp_path_factory.mktemp("verified") / "run", sites, "fedavg", None)


def test_report_without_verification_says_not_verified(run, tmp_path):
    page = write_report([run], tmp_path / "report.html", images=False).read_text()
    assert "<strong>Not verified.</strong>" in page
    assert "<strong>Verified</strong>" not in page


def test_report_with_verification_has_logs_and_what_rests_on_the_server(run, tmp_path):
    page = write_report([run], tmp_path / "report.html", images=False, verify=True).read_text()
    assert "Not verified" not in page
    assert "<strong>Verified</strong>" in page
    (row,) = verify_runs(open_runs([run])).frame.to_dict("records")
    assert row["Logs of sites"] == "3 of 3"
    assert row["Ledger signed by"] == "nobody"
    assert 0 < row[WORD] <= 1


def test_report_for_one_hospital_has_no_number_by_which_others_are_known(run):
    assert WORD not in verify_runs(open_runs([run]), "site1").frame


def test_report_of_a_run_that_contradicts_its_ledger_is_not_written(run, tmp_path):
    import shutil

    changed = Path(shutil.copytree(run, tmp_path / "run"))
    rewritten(changed / "ledger.jsonl", lambda lines: lines[1]["weights"].update(site2=0.9))
    closed_again(changed)
    assert lines_of(changed / "ledger.jsonl")[1]["weights"]["site2"] == 0.9
    with pytest.raises(BadInput, match="weights of site2"):
        write_report([changed], tmp_path / "report.html", images=False, verify=True)
    assert not (tmp_path / "report.html").exists()
