import csv
import json

import pytest
from site_folders import LABELS, SECRETS, brighter, change, edit, load, store
from typer.testing import CliRunner

from fedmerit_cli.main import app
from fedmerit_data.check import examine, write_shareable
from fedmerit_data.checking.findings import Severity


@pytest.fixture
def spoiled(sites):
    """Sites with findings of every severity, among them those whose messages name patients and cases."""
    change(sites, "validation2", "label", LABELS["in the last slice"][1])
    change(sites, "training1", "label", LABELS["at the border"][1])
    store(sites, "UCL", "training4", "image", brighter(load(sites, "HK", "training1", "image")))
    store(sites, "UCL", "testing0", "image", load(sites, "HK", "training2", "image"))
    change(sites, "training3", "label", lambda label: label * 2)
    edit(sites / "HK" / "datalist.json", lambda lists: lists["testing"].append(lists["training"][0]))
    (sites / "UCL" / "cases" / "Secrettraining5_image.npy").write_bytes(b"")
    (sites / "UCL" / "cases" / "Secretvalidation0_label.npy").unlink()
    (sites / "UCL" / "cases" / "SecretExtra.npy").write_bytes(b"")
    (sites / "BMC").mkdir()
    return sites


def test_what_is_shared_names_no_file_case_or_patient(spoiled, tmp_path):
    out, private = tmp_path / "share", tmp_path / "private.csv"
    result = CliRunner().invoke(app, ["check", str(spoiled), "--out", str(out), "--private", str(private)])
    assert result.exit_code == 1, result.output
    assert {path.name for path in out.iterdir()} == {"quality.json", "quality.html", "quality.csv"}
    for path in out.iterdir():
        text = path.read_text()
        assert len(text) > 500
        for secret in (*SECRETS, str(tmp_path)):
            assert secret not in text
    report = json.loads((out / "quality.json").read_text())
    findings = examine(spoiled).findings
    assert len(report["findings"]) == len(findings) >= 10
    assert {row["severity"] for row in report["findings"]} == set(Severity)
    assert [site["name"] for site in report["sites"]] == ["HK", "UCL"]
    with (out / "quality.csv").open() as file:
        assert list(csv.DictReader(file)) == report["findings"]
    with private.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["kind"], row["file"], row["message"]) for row in rows] == [
        (finding.kind, str(finding.file), finding.message) for finding in findings
    ]
    for secret in SECRETS:
        assert secret in private.read_text()


def test_page_has_one_row_for_cases_of_a_site_with_one_finding(tmp_path, sites):
    for case in ("training0", "training1"):
        change(sites, case, "label", LABELS["in the last slice"][1])
    write_shareable(examine(sites), tmp_path)
    page = (tmp_path / "quality.html").read_text()
    assert page.count("mask at end") == 1
    assert "training 000, 001" in page


def test_the_terminal_names_files_by_default(spoiled):
    named = CliRunner().invoke(app, ["check", str(spoiled)])
    assert "Secrettraining3_label.npy: holds the label 2" in named.output
    unnamed = CliRunner().invoke(app, ["check", str(spoiled), "--no-names"])
    assert unnamed.exit_code == named.exit_code == 1
    assert "error: HK training 003: label value: value 2" in unnamed.output
    for secret in (*SECRETS, str(spoiled)):
        assert secret not in unnamed.output
