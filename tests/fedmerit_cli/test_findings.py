"""What `fedmerit check` prints of many findings."""

from pathlib import Path

import pytest

from fedmerit_cli.sites import SHOWN, _print_findings
from fedmerit_data.checking.findings import Finding


@pytest.mark.parametrize("names", [True, False])
def test_check_with_many_notes_prints_the_first_and_their_number(capsys, names):
    notes = [
        Finding("mask at end", f"site{1 + case % 2}", Path(f"case{case}"), "reaches the end") for case in range(30)
    ]
    errors = [Finding("copy", "site1", Path(f"copy{case}"), "the same image") for case in range(9)]
    _print_findings([*errors, *notes], names)
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("error: ") for line in lines) == len(errors)
    assert len(lines) == len(errors) + SHOWN + 1
    assert lines[-1] == "note: 27 more 'mask at end', 30 in 2 site(s); --private FILE lists all"
    assert any("case0" in line for line in lines) == names
