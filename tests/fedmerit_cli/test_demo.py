"""`fedmerit demo`: everything that its report shows, and nothing done twice."""

import pytest


@pytest.mark.slow
def test_demo(fedmerit, tmp_path):
    out = tmp_path / "demo"
    result = fedmerit("demo", "--out", out, "--rounds", 1)
    assert result.exit_code == 0, result.output
    page = (out / "report.html").read_text()
    assert "not known:" not in page.lower()
    assert 'id="table-gains"' in page
    for name in ("fedce", "fedce-seed1"):  # of the simulator, and of the local engine
        assert (out / name / "models/global.pt").is_file()
        assert fedmerit("verify", out / name).exit_code == 3
    runs = [out / "fedce", out / "fedce-seed1", out / "freerider"]
    written = {run: (run / "ledger.jsonl").stat().st_mtime_ns for run in runs}
    assert fedmerit("demo", "--out", out, "--rounds", 1).exit_code == 0  # what is done is not done again
    assert {run: (run / "ledger.jsonl").stat().st_mtime_ns for run in runs} == written
