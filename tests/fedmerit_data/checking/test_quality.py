import pytest
from site_folders import LABELS, TASKS, change, edit, found
from typer.testing import CliRunner

from fedmerit_cli.main import app
from fedmerit_data.check import check


@pytest.mark.parametrize("sites", TASKS, indirect=True)
def test_nothing_is_found_on_clean_sites(sites):
    assert found(sites) == []
    (sites / "overview").mkdir()  # the pictures of `prepare`
    assert found(sites) == []


def test_few_patients(sites):
    def same(lists):
        for entry in lists["testing"]:
            entry["patient"] = "Mustermann"

    edit(sites / "HK" / "datalist.json", same)
    assert found(sites) == [("few patients", "HK", "testing", "")]
    assert check(sites) == []


def test_warnings_do_not_fail(sites):
    change(sites, "training1", "label", LABELS["at the border"][1])
    result = CliRunner().invoke(app, ["check", str(sites)])
    assert result.exit_code == 0, result.output
    assert "warning: " in result.output
    assert "nothing wrong beyond 1 warnings and 0 notes" in result.output
