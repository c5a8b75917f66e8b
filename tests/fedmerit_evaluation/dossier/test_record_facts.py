"""What is said of the record, each from a run that holds no more than it takes."""

import hashlib
from pathlib import Path

import pytest
from dossier_files import made_run
from run_factory import add_rows, make_run, write_ledger

from fedmerit.errors import BadInput
from fedmerit.records.results import Row
from fedmerit.verification.run import Verification
from fedmerit_evaluation.dossier import data_evidence
from fedmerit_evaluation.dossier.data_evidence import RECORD, access, checks, flags, ledger, privacy, site_logs
from fedmerit_evaluation.dossier.sources import DossierSources, open_sources
from fedmerit_evaluation.results.run_folders import open_runs


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        (None, ""),
        ([], "Updates left the sites without a privacy filter. No claim of anonymity is made."),
        (["he", "gaussian"], "Updates passed he, gaussian. No claim of anonymity is made."),
    ],
)
def test_which_filters_updates_passed(tmp_path: Path, filters: list[str] | None, said: str) -> None:
    assert privacy(DossierSources([made_run(tmp_path, privacy=filters)], [])) == said


def test_models_are_named_with_their_digests(tmp_path: Path) -> None:
    (tmp_path / "run" / "models").mkdir(parents=True)
    (tmp_path / "run" / "models" / "global.pt").write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    assert (
        access(DossierSources([made_run(tmp_path / "run")], []))
        == f"Models in run/models: global.pt (SHA-256 {digest})."
    )


def test_what_is_encrypted_is_not_said_to_be_checked(tmp_path: Path) -> None:
    for filters, checked in (([], "every reply"), (["he"], "the unencrypted part of every reply")):
        run = make_run(tmp_path / checked, method="fedce", rounds=2, privacy=filters)
        write_ledger(run, [{"round": 1, "rejected": {"Cedar": "late"}}])
        assert checks(open_sources(open_runs([run]), None)).startswith(f"The server checked {checked} before use")


@pytest.mark.parametrize(("left", "said"), [((), ""), (("a", "b"), " Not shown by them: a; b.")])
def test_what_sites_logs_leave_open_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: tuple[str, ...], said: str
) -> None:
    run = make_run(tmp_path / "run", method="fedce", rounds=2)
    write_ledger(run, [{"round": 1}])
    (run / "sites" / "Cedar").mkdir(parents=True)
    (run / "sites" / "Cedar" / "site_log.jsonl").touch()
    monkeypatch.setattr(
        data_evidence, "verify_run", lambda path, logs: Verification(2, None, {"Cedar": 2}, unproven=left)
    )
    told = site_logs(open_sources(open_runs([run]), None))
    assert told == f"Sites' own logs agree with the ledger: Cedar 2 updates.{said}"


def test_a_reply_that_never_came_is_none_that_was_rejected(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", method="fedce", rounds=3)
    reasons = ("update with NaN", "no reply", "evaluation: no reply")
    write_ledger(run, [{"round": round, "rejected": {"Cedar": why}} for round, why in enumerate(reasons)])
    file = open_sources(open_runs([run]), None)
    assert checks(file) == "The server checked every reply before use and rejected 1; 2 did not arrive."
    add_rows(run, [Row("run", "fedce", 0, round, "Cedar", "rejected", 1.0) for round in (0, 1)])
    told = "Cedar rejected in rounds 0 (update with NaN); Cedar rejected in rounds 1 (no reply)."
    assert flags(open_sources(open_runs([run]), None)) == told


def test_what_the_ledgers_leave_open_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [make_run(tmp_path / name, method="fedce", seed=seed, rounds=2) for seed, name in enumerate("ab")]
    for run in runs:
        write_ledger(run, [{"round": 1}])
    monkeypatch.setattr(
        data_evidence, "verify_run", lambda path: Verification(2, "CN=server", unproven=("whose it is",))
    )
    assert ledger(open_sources(open_runs(runs), None)) == (
        "a: 2 rounds, hash chain complete, signed by CN=server; b: 2 rounds, hash chain complete, signed by CN=server. Each "
        "round holds participants, digests of updates and model, weights. Not shown by that: whose it is."
    )


@pytest.mark.parametrize("text", ["{}\n", "[]\n", '{"round": 0, "rejected": 5}\n', "not JSON\n"])
def test_what_is_no_ledger_is_named(tmp_path: Path, text: str) -> None:
    run = make_run(tmp_path / "run", method="fedce", rounds=2)
    (run / "ledger.jsonl").write_text(text)
    file = open_sources(open_runs([run]), None)
    with pytest.raises(BadInput, match=r"ledger\.jsonl"):
        [told(file) for told in RECORD]
