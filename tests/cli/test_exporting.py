"""`fedmerit methods` and `fedmerit export`; the jobs themselves are tested with `fedmerit.flare`."""

import pytest

from fedmerit.methods.registry import METHODS


def test_methods_prints_the_table(fedmerit, monkeypatch):
    monkeypatch.setattr("cli.app.console.width", 400)
    result = fedmerit("methods")
    assert result.exit_code == 0
    for name, entry in METHODS.items():
        row = next(line for line in result.output.splitlines() if f" {name} " in line)
        for told in (entry.contribution, entry.weights, entry.download, entry.site_work, entry.paper):
            assert told in row
        for parameter, value in vars(entry.method()).items():
            shown = f"{value:g}" if isinstance(value, float) else value
            assert f"{parameter}={shown}" in result.output


@pytest.mark.parametrize("options", [("--min-sites", 0), ("--rounds", 0), ("--set", "depth=1")])
def test_export_with_a_parameter_that_cannot_be_used(fedmerit, tmp_path, options):
    job = tmp_path / "job"
    result = fedmerit("export", "--method", "fedce", "--task", "prostate", "--out", job, *options)
    assert result.exit_code == 2
    assert "=" in result.stderr
    assert "expected" in result.stderr
    assert not job.exists()
