"""Lies that a server tells from the start, to sites that do not know: all signatures and digests are right.

And what others do to the files of an honest server, so that it looks like a liar.
"""

import csv
import json
import shutil
from pathlib import Path

import pytest
from lying_servers import retell
from signed_runs import KIT_SITES, closed_again, examined, kit_signer, log_of

from fedmerit.evidence.signatures import CERTIFICATE
from fedmerit.schema.configuration.requirements import UPDATES
from fedmerit.schema.results import COLUMNS
from fedmerit.site.enrolment import OPENING

PAYING = {"keep": True, "norm": "group", "values": ("multi_round",)}
SERVER, CLOSED = (
    "the server's signature convicts the server",
    "the server's signature of the closing record convicts the server",
)
NOBODY = "no signature convicts anybody"


@pytest.fixture
def run(honest, tmp_path) -> Path:
    """A copy of a run of which all is shown."""
    return Path(shutil.copytree(honest("fedavg", **PAYING), tmp_path / "run"))


def attributed(run: Path, kits: Path, sites=KIT_SITES) -> dict[str, str]:
    """By kind of contradiction, whose signature convicts whom."""
    found = examined(run, kits, sites)
    return {fault.kind: found.attribute(fault) for fault in found.faults}


def edit(path: Path, change) -> None:
    """Change the rows of a table."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows = change(rows) or rows
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def test_run_signed_again_without_a_lie_shows_all(run, kits):
    found = examined(retell(run, kits), kits)
    assert (found.faults, found.unproven) == ((), ())


@pytest.mark.parametrize(
    ("lie", "kind"),
    [
        *(
            (lambda lines, name=name: lines[1].setdefault(name, {}).update(ghost=0.9), "stranger")
            for name in ("weights", "contributions", "reputations", "quotas", "validation_dice")
        ),
        (lambda lines: lines[1]["flagged"].append("ghost"), "stranger"),
        (lambda lines: lines[1]["updates"].update(ghost="0" * 64), "stranger"),
        (lambda lines: lines[1]["guard"]["verdicts"].append("ghost"), "outcome"),
        (lambda lines: lines[1]["guard"]["evidence"].update(ghost=9.0), "outcome"),
        (lambda lines: lines[1]["guard"]["bounds"].update(clipped={"ghost": 0.1}), "outcome"),
        (lambda lines: lines[1]["guard"]["bounds"].update(fee={"site1": 0.1}), "outcome"),
        (lambda lines: lines[1].setdefault("ended", {}).update(ghost="0" * 64), "outcome"),
        (lambda lines: lines[1]["weights"].update(site1="0.3"), "malformed record"),
        (lambda lines: lines[1].pop("weights"), "malformed record"),
        (lambda lines: lines[2].pop("saved"), "malformed record"),
        (lambda lines: lines[1].update(round=True), "malformed record"),
        (lambda lines: lines.insert(1, {**lines[1]}), "malformed record"),
        (lambda lines: lines.pop(1), "round number"),
        (lambda lines: lines[0]["guard"]["enrolled"]["site1"].update(certificate="none"), "malformed record"),
        (
            lambda lines: lines[0]["guard"]["enrolled"]["site1"].update(
                certificate=lines[0]["guard"]["enrolled"]["site2"]["certificate"]
            ),
            "malformed record",
        ),
    ],
)
def test_record_that_no_honest_server_writes_convicts_the_server(run, kits, lie, kind):
    assert attributed(retell(run, kits, lie), kits)[kind] == SERVER


def put_in(**columns):
    """A change that puts a row into round 1."""

    def change(rows):
        like = next(row for row in rows if row["round"] == "1" and row["quantity"] == "weight")
        return [*rows, {**like, **columns}]

    return change


def setting(quantity, value):
    """A change of all numbers of a quantity."""

    def change(rows):
        for row in rows:
            row["value"] = value if row["quantity"] == quantity else row["value"]

    return change


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (put_in(quantity="fee", value="1.0"), "unknown row"),
        (put_in(quantity="contribution", coalition="site2", value="1.0"), "unknown row"),
        (put_in(quantity="contribution", case="x", value="1.0"), "unknown row"),
        (put_in(quantity="worked", site="ghost", value="1.0"), "unknown row"),
        (put_in(quantity="contribution", patient="1", value="1.0"), "unreadable file"),
        (setting("worked", "0.0"), "played result"),
        (setting("norm", "1.0"), "played result"),
        (setting("contribution", "nan"), "unreadable file"),
    ],
)
def test_row_that_does_not_follow_from_the_ledger_convicts_the_server(run, kits, change, kind):
    edit(run / "results.csv", change)
    assert attributed(retell(run, kits), kits)[kind] == CLOSED


def mean_of_cases(rows):
    """The same Dice for all cases of a model: the mean stays, and with it the value; not its error."""
    for row in rows:
        of_model = [one for one in rows if all(one[name] == row[name] for name in ("round", "site", "coalition"))]
        dice = [float(one["value"]) for one in of_model if one["quantity"] == "dice" and one["value"]]
        row["value"] = str(sum(dice) / len(dice)) if row["quantity"] == "dice" and dice else row["value"]
    for row in rows:
        row["patient"] = "1"


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (mean_of_cases, "values"),
        (lambda rows: [*rows, *({**row, "label": "other"} for row in rows if row["quantity"] == "dice")], "values"),
        (lambda rows: [*rows, *({**row, "seed": "7"} for row in rows if row["quantity"] == "dice")], "unreadable file"),
        (lambda rows: [*rows, {**rows[-1], "quantity": "fee"}], "unknown row"),
        (lambda rows: [*rows, {**rows[-1], "round": "9"}], "unknown row"),
    ],
)
def test_values_that_sites_did_not_answer_are_found(run, kits, change, kind):
    edit(run / "values.csv", change)
    assert kind in attributed(retell(run, kits), kits)


@pytest.mark.parametrize("dropped", [{"site": "site2"}, {"round": "1"}])
def test_answers_left_out_of_the_values_are_found_without_kept_updates(run, kits, dropped):
    shutil.rmtree(run / UPDATES)
    edit(run / "values.csv", lambda rows: [row for row in rows if not dropped.items() <= row.items()])
    assert "values left out" in attributed(retell(run, kits), kits)


def test_entry_of_a_log_that_is_none_convicts_its_site(run, kits):
    def lie(site, lines):
        for line in lines if site == "site2" else ():
            line.update({"commitment": {"root": 1}} if line["work"] == "train" else {})

    assert attributed(retell(run, kits, change_log=lie), kits) == {
        "malformed entry": "the signature of site2 in its log convicts site2"
    }


def cut(run, kits):
    path = run / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))


def edit_run(run, kits):
    content = json.loads((run / "run.json").read_text())
    content["plan"]["rounds"] = 9
    (run / "run.json").write_text(json.dumps(content | {"privacy": ["he"]}))


def close_with_own_key(run, kits):
    edit(run / "results.csv", setting("weight", "0.9"))
    closed_again(run, kit_signer(kits, "site1"))


def edit_tests(run, kits):
    path = run / "results.csv"
    path.write_text(path.read_text().replace(",testing,000,", ",testing,007,"))


@pytest.mark.parametrize("change", [cut, edit_run, close_with_own_key, edit_tests])
def test_honest_server_is_not_convicted_by_what_others_did_to_its_folder(run, kits, change):
    change(run, kits)
    found = attributed(run, kits, ())
    assert found
    assert all(text.startswith(NOBODY) for text in found.values()), found
    with_logs = attributed(run, kits)
    assert len(with_logs) > len(found)
    assert not [text for text in with_logs.values() if "one of the two lies" in text or "convicts the" in text], (
        with_logs
    )


def test_honest_server_is_not_convicted_by_the_log_of_another_of_its_jobs(run, honest, kits):
    shutil.copy(log_of(honest("fedavg", **PAYING | {"values": ()}), "site2"), log_of(run, "site2"))
    assert attributed(run, kits)["two ledgers"] == NOBODY


def test_opening_that_cannot_be_read_opens_nothing(run, kits):
    (log_of(run).parent / OPENING).write_text("{")
    found = examined(run, kits)
    assert (found.faults, [one.kind for one in found.unproven]) == ((), ["sharing unproven"])


def test_verify_ends_with_2_only_if_it_was_called_wrongly(run, kits, fedmerit, tmp_path):
    root = kits / "site1/startup/rootCA.pem"
    for options in (["--site-log", tmp_path / "none"], ["--certificate", tmp_path / "none"]):
        assert fedmerit("verify", run, *options).exit_code == 2
    assert fedmerit("verify", tmp_path / "none").exit_code == 2
    for path, content in (
        (run / "closing.json", "{}"),
        (run / CERTIFICATE, "none"),
        (run / "results.csv", "none"),
        (run / "run.json", "{"),
        (log_of(run), "none\n"),
        (run / "ledger.jsonl", "{"),
    ):
        before = path.read_bytes()
        path.write_text(content)
        reported = fedmerit("verify", run, "--certificate", root, "--site-log", log_of(run))
        assert reported.exit_code == 1, (path, reported.output)
        path.write_bytes(before)
