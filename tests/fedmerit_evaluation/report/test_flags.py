"""Who is flagged, in which rounds and why; verdicts and bounds of the guard."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from certificates import issue
from run_factory import SITES, add_rows, make_run, write_ledger

from fedmerit.errors import BadInput
from fedmerit.evidence.repeated_work import AUDITS, write_statement
from fedmerit.evidence.signatures import Signer
from fedmerit.schema.records import AuditStatement
from fedmerit.schema.results import Row
from fedmerit_evaluation.figures.tables import DASH
from fedmerit_evaluation.report.assembly import build_model
from fedmerit_evaluation.report.flags import collect_flags, list_flags, list_repeated_steps, list_verdicts
from fedmerit_evaluation.report.redaction import _rows_of_site
from fedmerit_evaluation.report.report import build_site_model
from fedmerit_evaluation.results.runs import open_runs


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("fedce", "the cosine it reported differs from the server's by more than 0.001"),
        ("cgsv", "the method's own rule"),
        ("of-others", "the method's own rule"),
    ],
)
def test_a_flag_is_reported_by_the_rule_of_its_method(tmp_path: Path, method: str, reason: str) -> None:
    run = make_run(tmp_path / "run", method=method, rounds=3)
    add_rows(run, [Row("run", method, 0, number, "Birch", "flagged", float(number > 0)) for number in range(3)])
    (row,) = list_flags(open_runs([run])).to_dict("records")
    assert (row["Site"], row["What"], row["Rounds"], row["Reason"]) == ("Birch", "flagged", "1\N{EN DASH}2", reason)


def test_rejected_and_flagged_sites_with_the_reason_from_the_ledger(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    rows = [Row("run", "fedce", 0, number, "Birch", "rejected", 1.0) for number in (3, 4, 5, 9)]
    add_rows(run, [*rows, Row("run", "fedce", 0, 7, "Cedar", "flagged", 1.0)])
    add_rows(run, [Row("run", "fedce", 0, 11, "Alder", "rejected", 1.0, "testing")])
    write_ledger(run, [{"round": number, "rejected": {"Birch": "update with NaN"}} for number in (3, 4, 5, 9)])
    table = collect_flags(open_runs([run])).table
    flags = {(row["Site"], row["What"]): (row["Rounds"], row["Reason"]) for row in table.to_dict("records")}
    assert flags["Birch", "rejected"] == ("3\N{EN DASH}5, 9", "update with NaN")
    assert flags["Cedar", "flagged"][0] == "7"
    assert flags["Alder", "rejected"] == ("11", "no usable reply to the final test")
    assert build_model(open_runs([run])).flagged_sites == ["Cedar"]


def test_an_expelled_site_is_listed_with_the_threshold(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", method="rffl", rounds=4, parameters={"coef": 1 / 3})
    add_rows(run, [Row("run", "rffl", 0, number, "Birch", "expelled", float(number > 1)) for number in range(4)])
    (row,) = collect_flags(open_runs([run])).table.to_dict("records")
    assert (row["Site"], row["What"], row["Rounds"]) == ("Birch", "expelled", "2\N{EN DASH}3")
    assert row["Reason"] == "its reputation fell below 0.333 of an equal share of the remaining sites'"


def test_a_ledger_that_is_none_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "ledger.jsonl").write_text("not json\n")
    with pytest.raises(BadInput, match=r"ledger.jsonl: not a ledger.*fedmerit verify"):
        collect_flags(open_runs([run]))


ROUNDS = 12


def guarded_run(folder: Path, against: dict[str, range], on_verdict: str = "withhold", guard: str = "on") -> Path:
    """A run in which verdicts stood against sites in ranges of rounds."""
    run = make_run(folder, rounds=ROUNDS, plan={"guard": {"guard": guard, "on_verdict": on_verdict}})
    add_rows(
        run,
        [
            Row("run", "fedce", 0, number, site, "verdict", float(number in against.get(site, ())))
            for number in range(ROUNDS)
            for site in SITES
        ],
    )
    write_ledger(run, [{"round": number, "rejected": {}, "guard": {}} for number in range(ROUNDS)])
    return run


def test_verdict_in_force_needs_review(tmp_path):
    (run,) = open_runs([guarded_run(tmp_path / "run", {"Birch": range(4, ROUNDS)})])
    (verdict,) = list_verdicts(run)
    assert (verdict.site, verdict.what, verdict.since, verdict.lifted) == ("Birch", "withheld", 4, None)
    model = build_model([run])
    assert {one.name for one in model.hospitals if one.needs_review} == {"Birch"}
    assert next(one for one in model.hospitals if one.name == "Birch").verdicts == (verdict,)
    (flag,) = model.flags.table.to_dict("records")
    assert (flag["Site"], flag["What"], flag["Rounds"]) == ("Birch", "withheld", "4\N{EN DASH}11")


@pytest.mark.parametrize(("last", "said"), [(6, "from round 3 to 6"), (3, "in round 3")])
def test_lifted_verdict_needs_no_review(tmp_path, last, said):
    (run,) = open_runs([guarded_run(tmp_path / "run", {"Cedar": range(3, last + 1)})])
    (verdict,) = list_verdicts(run)
    assert (verdict.since, verdict.lifted, verdict.rounds) == (3, last + 1, said)
    assert not any(one.needs_review for one in build_model([run]).hospitals)


def test_bounds_tell_their_rounds_and_the_own_report_no_amount(tmp_path):
    run = make_run(tmp_path / "run", rounds=4, plan={"guard": {"guard": "on", "on_verdict": "withhold"}})
    verdicts = [Row("run", "fedce", 0, number, site, "verdict", 0.0) for number in range(4) for site in SITES]
    add_rows(run, [*verdicts, *_bounded("clipped", [1, 0.25, 0.5, 1]), *_bounded("reward_group_share", [1, 1, 1, 0.5])])
    opened = open_runs([run])
    rows = [["update", f"1{DASH}2", 25], ["reward", "3", 50]]
    bounds = collect_flags(opened).bounds
    assert bounds[["What", "Rounds", "Least [%]"]].values.tolist() == rows
    assert set(bounds["Site"]) == {SITES[0]}
    own = build_site_model(opened, SITES[0]).flags.bounds
    assert own[["What", "Rounds"]].values.tolist() == [row[:2] for row in rows]
    assert "Least [%]" not in own
    assert build_site_model(opened, SITES[1]).flags.bounds.empty


def _bounded(quantity, values):
    """Rows of the first site, by round; the others are not bounded."""
    return [
        Row("run", "fedce", 0, number, site, quantity, value if site == SITES[0] else 1.0)
        for number, value in enumerate(values)
        for site in SITES
    ]


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
