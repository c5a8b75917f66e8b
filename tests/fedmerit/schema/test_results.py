import csv
import json
import math
import pickle
from copy import deepcopy
from dataclasses import replace

import pytest

from fedmerit.errors import BadInput
from fedmerit.schema.results import COLUMNS, ResultsFile, Row, read_csv, read_results, rows_digest
from fedmerit.schema.run_info import read_run


def row(quantity="weight", value=0.25, site="Basel", **columns):
    return Row("run1", "fedce", 0, 2, site, quantity, value, **columns)


@pytest.fixture
def results(tmp_path):
    return ResultsFile(tmp_path / "results.csv")


def test_a_digest_of_rows_is_of_what_they_say_and_not_of_the_run_or_the_machine(results):
    rows = [
        row("dice", 0.1 + 0.2, split="validation", case="a,b", label="disc"),
        row("cosine", None),
        row("seconds", 1.5),
    ]
    known = rows_digest(map(vars, rows))
    results.append(rows)
    with results.path.open(newline="") as file:
        assert rows_digest(csv.DictReader(file)) == known
    same = [replace(one, run="run2", seed=7, fold=1) for one in rows[:2]]
    assert rows_digest(map(vars, same)) == known
    for other in ([rows[1], rows[0]], rows[:1], [*rows, rows[1]], [replace(rows[0], value=0.3), rows[1]]):
        assert rows_digest(map(vars, other)) != known
    for name in ("round", "site", "coalition", "split", "patient", "case", "label"):
        changed = [replace(rows[0], **{name: 9 if name == "round" else "other"}), rows[1]]
        assert rows_digest(map(vars, changed)) != known


@pytest.mark.parametrize("quantity", ["score", "Dice", ""])
def test_an_unknown_quantity_is_an_error_and_nothing_is_written(results, quantity):
    results.append([row()])
    before = results.path.read_bytes()
    with pytest.raises(ValueError, match=f"quantity '{quantity}' is not named in"):
        results.append([row(), row(quantity)])
    assert results.path.read_bytes() == before


def test_what_was_written_is_read_back(results, tmp_path):
    results.append([row("dice", 0.1 + 0.2, split="testing", case="007", label="disc"), row("cosine", None)])
    results.append([row("minus_error", 1e-300, coalition="Aarau|Basel"), row("seconds", 3)])
    table = read_results(tmp_path)
    assert list(table.columns) == COLUMNS
    assert table["value"].dtype == float
    assert table["seed"].dtype == table["round"].dtype == int
    assert table["value"].tolist()[0] == 0.1 + 0.2  # to the last bit
    assert math.isnan(table["value"][1])
    assert table["value"].tolist()[2:] == [1e-300, 3]
    assert table["case"].tolist() == ["007", "", "", ""]
    assert table["coalition"].tolist() == ["", "", "Aarau|Basel", ""]


def test_truncate_forgets_what_was_appended_after(results, tmp_path):
    assert results.size == 0
    results.append([row(value=1.0)])
    size = results.size
    results.append([row(value=2.0)])
    results.truncate(size)
    assert read_results(tmp_path)["value"].tolist() == [1]
    results.append([row("norm", value=3.0)])
    assert read_results(tmp_path)["value"].tolist() == [1, 3]


def test_rows_that_a_checkpoint_knew_of_and_are_gone_are_reported(results):
    results.append([row()])
    size = results.size
    with pytest.raises(BadInput, match=rf"results\.csv: {size} bytes, the run's last complete round left {size + 100}"):
        results.truncate(size + 100)
    results.path.unlink()
    with pytest.raises(BadInput, match=r"results\.csv: 0 bytes"):
        results.truncate(size)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not readable as results"),
        (b"a,b\n1,2\n", "lacks run, method, seed"),
        (b"\xff\xfe", "not readable"),
        (b"round\n" + b"9" * 400, "not readable as results"),
        (",".join([*COLUMNS, "value"]).encode(), "has the column value twice"),
        (f"{','.join(COLUMNS)}\n,,1,,1,\0,,,,,,dice,1\n".encode(), "names that can be printed"),
        (f"{','.join(COLUMNS)}\n,,1,,1,a\u202e,,,,,,dice,1\n".encode(), "names that can be printed"),
        (f"{','.join(COLUMNS)}\n,,1,-1,1,a,,,,,,dice,1\n".encode(), "has the fold '-1', expected a whole number"),
        (
            f"{','.join(COLUMNS)}\nr,,1,,1,a,,,,,,dice,1\ns,,1,,1,a,,,,,,dice,2\n".encode(),
            "has dice of a in round 1 twice",
        ),
    ],
)
def test_a_file_that_is_no_table_of_results(tmp_path, content, words):
    (tmp_path / "results.csv").write_bytes(content)
    with pytest.raises(BadInput, match=rf"results\.csv: .*{words}"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        ('{"method": "fed', "not readable as JSON"),
        ("fedavg", "not readable as JSON"),
        ('["fedavg"]', "is no table of names and values; expected what `fedmerit run` wrote"),
        ("null", "is no table of names and values"),
        ('{"sites": 5}', "sites=5: expected a list of texts; expected"),
        ('{"plan": null}', "plan=None: expected a table of names and values; expected"),
        ('{"rounds": "many"}', "rounds='many': expected a whole number; expected"),
        ('{"seed": 1, "seed": 2}', "not readable as JSON (has 'seed' twice in one object)"),
        ('{"sites": ["site1", "s\u0456te1"]}', "sites.1='s\u0456te1': is 's\\u0456te1', expected"),  # a Cyrillic letter
        ('{"sites": ["=1+1"]}', "sites.0='=1+1': is '=1+1', expected 1 to 63 letters"),
        (json.dumps({"sites": [f"s{number}" for number in range(1001)]}), "sites=['s0', 's1'"),
    ],
)
def test_a_spoiled_run_json_is_named(tmp_path, content, reported):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(BadInput) as error:
        read_run(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'run.json'}: {reported}")


def test_what_run_json_lacks_is_reported_where_it_is_asked_for(tmp_path):
    (tmp_path / "run.json").write_text('{"method": "fedavg"}')
    info = read_run(tmp_path)
    assert (info, info.get("plan"), "plan" in info) == ({"method": "fedavg"}, None, False)
    for same in (info, deepcopy(info), pickle.loads(pickle.dumps(info))):
        with pytest.raises(BadInput, match=r"run\.json: lacks plan; expected what `fedmerit run` wrote"):
            same["plan"]


@pytest.mark.parametrize("method", ["standalone", "fedavg"])
def test_the_final_test_in_the_form_of_nvflares_cross_site_validation(trained, method):
    run = trained(method=method, rounds=1)
    matrix = json.loads((run / "cross_site_val" / "cross_val_results.json").read_text())
    sites = ["site1", "site2", "site3"]
    assert list(matrix) == sites
    union = read_results(run)
    union = union[(union["split"] == "union") & (union["quantity"] == "dice")]
    for tester, owners in matrix.items():
        assert list(owners) == (sites if method == "standalone" else ["SRV_global"])
        at = union[union["case"].str.startswith(f"{tester}/")]
        for owner, found in owners.items():
            rows = at[at["site"] == owner] if method == "standalone" else at[at["site"] == tester]
            assert found == {"dice": pytest.approx(rows["value"].mean(), abs=1e-12)}


@pytest.mark.parametrize(
    ("row", "fits"),
    [("a,1\n" * 9, True), ("a" * 90 + "\n", False), ('"' + "a\n" * 50 + '",1\n', False), ('"a\n",1\n' * 30, True)],
)
def test_rows_of_a_large_table_are_bounded(tmp_path, monkeypatch, row, fits):
    monkeypatch.setattr("fedmerit.schema.results.PLAIN_TABLE", 0)
    monkeypatch.setattr("fedmerit.schema.results.LONGEST_ROW", 80)
    (tmp_path / "results.csv").write_text("site,value\n" + row)
    if fits:
        assert len(read_csv(tmp_path / "results.csv", {"site": str})[0]) == row.count(",")
    else:
        with pytest.raises(BadInput, match="a row of more than 80 bytes"):
            read_csv(tmp_path / "results.csv", {"site": str})
