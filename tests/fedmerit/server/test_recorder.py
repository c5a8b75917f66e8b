"""What a run writes down: rows of results.csv, and a record of each round."""

import csv
import json
from dataclasses import replace

import pytest
import torch
from certificates import issue
from chains import verify
from pretending import SITES, tiny_plan

from fedmerit.contract.method import Outcome
from fedmerit.evidence.closing_record import CROSS_SITE, OBSERVED, read_closing
from fedmerit.evidence.digests import digest
from fedmerit.evidence.ledger import Ledger
from fedmerit.evidence.signatures import CERTIFICATE, Signer, read_certificates
from fedmerit.schema.messages import Evaluated, Reply
from fedmerit.schema.results import ROUND_SPLITS, ResultsFile, read_results, rows_digest
from fedmerit.schema.scores import Overlap
from fedmerit.server.recorder import Recorder, observed_rows
from fedmerit.server.round_updates import RoundReplies
from fedmerit.site.site_log import answer_digest

HALF, WHOLE = Overlap("000", "prostate", 1, 1, 1), Overlap("001", "prostate", 3, 0, 0)  # Dice 0.5 and 1

INPUTS = {"inputs": {"size": 0, "counts": {}}}  # what every record has


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def outcome(**more):
    nan = float("nan")
    return Outcome(numbers(0.2, nan, 0.8), numbers(0.25, nan, 0.75), numbers(0.25, 0, 0.75), torch.zeros(4), **more)


def reply(value, log="", overlaps=(HALF, WHOLE)):
    return Reply(0, torch.full((4,), float(value)), {}, 10, overlaps, train_loss=0.5, seconds=2.0, log=log)


def admitted(*replies, rejected=None):
    return RoundReplies(replies, rejected or {}, [16, 16, 16])


@pytest.fixture
def recorder(tmp_path):
    return Recorder(tiny_plan("fedce"), SITES, tmp_path)


def of(recorder, quantity, split=""):
    rows = read_results(recorder.run).query(f"quantity == '{quantity}' and split == '{split}'")
    return dict(zip(rows["site"], rows["value"], strict=True))


def test_a_round_is_a_record_and_rows_of_those_who_took_part(recorder):
    replies = reply(1, "log of Alder"), None, reply(2)
    recorder.training_round(
        0, admitted(*replies, rejected={"Birch": "asleep"}), ["b"] * 3, "e", outcome(), {**INPUTS, "notes": ["a note"]}
    )
    (record,) = Ledger(recorder.run / "ledger.jsonl").records
    assert (record["round"], record["of"], record["model"], record["notes"]) == (0, 3, "e", ["a note"])
    assert (record["participants"], record["rejected"]) == (["Alder", "Cedar"], {"Birch": "asleep"})
    assert record["weights"] == {"Alder": 0.25, "Cedar": 0.75}
    assert record["contributions"] == {"Alder": 0.2, "Cedar": 0.8}
    assert record["updates"] == {name: digest(one.update) for name, one in zip(SITES, replies, strict=True) if one}
    assert record["validation_dice"] == {"Alder": 0.75, "Cedar": 0.75}
    assert of(recorder, "weight") == {"Alder": 0.25, "Birch": 0.0, "Cedar": 0.75}
    assert of(recorder, "rejected") == {"Birch": 1.0}
    assert of(recorder, "bytes_sent") == {"Alder": 16.0, "Cedar": 16.0}
    assert of(recorder, "train_loss") == {"Alder": 0.5, "Cedar": 0.5}
    rows = read_results(recorder.run).query("quantity == 'dice' and split == 'validation' and site == 'Alder'")
    assert rows["value"].to_list() == [0.5, 1.0]
    assert recorder.site_logs == {"Alder": "log of Alder"}


def test_a_record_stands_for_the_rows_of_its_round(recorder):
    recorder.training_round(0, admitted(reply(1), None, reply(2)), ["b"] * 3, "e", outcome(), INPUTS)
    recorder.final_test(0, [None, None, None], [64] * 3)
    with (recorder.run / "results.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] in ROUND_SPLITS]
    assert rows_digest(rows) == Ledger(recorder.run / "ledger.jsonl").records[0]["rows"]


def test_an_update_sent_before_or_by_another_is_repeated(recorder):
    recorder.training_round(0, admitted(reply(1), reply(2), reply(2)), ["b"] * 3, "e", outcome(), INPUTS)
    assert of(recorder, "repeated") == {"Alder": 0.0, "Birch": 1.0, "Cedar": 1.0}
    again = Recorder(recorder.config, SITES, recorder.run)  # which reads the ledger
    again.training_round(1, admitted(reply(3), reply(1), reply(4)), ["b"] * 3, "e", outcome(), INPUTS)
    rows = read_results(recorder.run).query("quantity == 'repeated' and round == 1")
    assert rows["value"].to_list() == [0.0, 1.0, 0.0]


def test_what_a_site_holds_of_others_stands_under_their_names_its_own_as_the_coalition(recorder):
    nan = float("nan")
    pairs = {"agreement": numbers(nan, 0.5, nan, nan, nan, nan, 0.1, 0.2, nan).reshape(3, 3)}
    recorder.training_round(0, admitted(reply(1), None, reply(2)), ["b"] * 3, "e", outcome(pairs=pairs), INPUTS)
    rows = read_results(recorder.run).query("quantity == 'agreement'")
    assert set(zip(rows["coalition"], rows["site"], rows["value"], strict=True)) == {
        ("Alder", "Birch", 0.5),
        ("Cedar", "Alder", 0.1),
        ("Cedar", "Birch", 0.2),
    }


def test_what_was_written_after_a_checkpoint_is_forgotten(recorder):
    recorder.training_round(0, admitted(reply(1), reply(2), reply(3)), ["b"] * 3, "e", outcome(), INPUTS)
    size = (recorder.run / "results.csv").stat().st_size
    recorder.training_round(1, admitted(reply(4), reply(5), reply(6)), ["b"] * 3, "e", outcome(), INPUTS)
    recorder.rewind(size, 1, 0)
    assert set(read_results(recorder.run)["round"]) == {0}
    recorder.training_round(1, admitted(reply(4), reply(5), reply(6)), ["b"] * 3, "e", outcome(), INPUTS)
    rows = read_results(recorder.run).query("quantity == 'repeated' and round == 1")
    assert rows["value"].to_list() == [0.0, 0.0, 0.0]  # what was forgotten was not sent


def test_a_final_model_for_all_is_tested_by_everyone_and_stands_for_each_on_the_union(recorder):
    alder, cedar = (Evaluated(3, ((one,),), torch.zeros(1, 0)) for one in (HALF, WHOLE))
    recorder.final_test(2, [alder, None, cedar], [64] * 3)
    assert of(recorder, "dice", "testing") == {"Alder": 0.5, "Cedar": 1.0}
    assert of(recorder, "bytes_received", "testing") == {"Alder": 64.0, "Cedar": 64.0}
    assert of(recorder, "rejected", "testing") == {"Birch": 1.0}
    union = read_results(recorder.run).query("split == 'union' and quantity == 'dice'")
    assert set(zip(union["site"], union["case"], union["value"], strict=True)) == {
        (site, case, value) for site in SITES for case, value in (("Alder/000", 0.5), ("Cedar/001", 1.0))
    }
    assert json.loads((recorder.run / CROSS_SITE).read_text()) == {
        "Alder": {"SRV_global": {"dice": 0.5}},
        "Cedar": {"SRV_global": {"dice": 1.0}},
    }


def test_a_model_that_stays_at_its_site_is_no_global_one(recorder):
    tests = [Evaluated(3, ((one,),), torch.zeros(1, 0)) for one in (HALF, WHOLE, HALF)]
    recorder.final_test(2, tests, [64] * 3, tests_own_only=True)
    matrix = json.loads((recorder.run / CROSS_SITE).read_text())
    assert matrix == {site: {site: {"dice": dice}} for site, dice in zip(SITES, (0.5, 1.0, 0.5), strict=True)}
    assert read_results(recorder.run).query("split == 'union'").empty


def test_of_a_model_for_each_site_its_own_is_the_sites(recorder):
    test = Evaluated(3, ((HALF,), (WHOLE,), (HALF,)), torch.zeros(3, 0))
    recorder.final_test(2, [test, test, test], [64] * 3)
    assert of(recorder, "dice", "testing") == {"Alder": 0.5, "Birch": 1.0, "Cedar": 0.5}
    assert json.loads((recorder.run / CROSS_SITE).read_text())["Alder"]["Birch"] == {"dice": 1.0}
    recorder.best_test(1, [test, None, test])
    assert of(recorder, "dice", "testing_best") == {"Alder": 0.5, "Cedar": 0.5}


def test_what_a_site_receives_stands_beside_what_it_was_given_and_trained_locally(recorder):
    test = Evaluated(3, ((HALF,), (WHOLE,), (WHOLE,)), torch.zeros(3, 0), choice=1)
    recorder.selected_models(2, "testing", [test, None, None])
    found = {name: of(recorder, "dice", f"testing_{name}") for name in ("given", "local_only", "selected")}
    assert found == {"given": {"Alder": 0.5}, "local_only": {"Alder": 1.0}, "selected": {"Alder": 1.0}}
    assert of(recorder, "final_model_choice", "testing_selected") == {"Alder": 1.0}


def test_what_is_observed_is_named_by_its_coalition(recorder):
    coalitions = torch.tensor([[False, False, False], [True, False, True]])
    answer = Evaluated(0, ((HALF,), (WHOLE,)), torch.zeros(2, 0), seconds=3.0)
    rows = observed_rows(("run", "fedce", 0, 4), "multi_round", SITES, coalitions, {"Birch": answer})
    assert [(row.quantity, row.coalition, row.value, row.split, row.site) for row in rows] == [
        ("seconds", "", 3.0, "multi_round", "Birch"),
        ("dice", "(nobody)", 0.5, "multi_round", "Birch"),
        ("dice", "Alder+Cedar", 1.0, "multi_round", "Birch"),
    ]
    recorder.observed(4, "multi_round", coalitions, [None, answer, None])
    assert ResultsFile(recorder.run / OBSERVED).path.read_text().count("multi_round") == 3


def test_a_record_has_what_sites_said_of_models_for_others_in_its_round(recorder):
    rated, observed = (Evaluated(0, ((one,), (WHOLE,)), torch.zeros(2, 0)) for one in (HALF, WHOLE))
    recorder.observed(0, "multi_round", torch.zeros(2, 3, dtype=torch.bool), [observed, None, observed])
    there = replace(admitted(reply(1), None, reply(2)), evaluated={"Cedar": (rated,)})
    for round in (0, 1):
        recorder.training_round(round, there, ["b"] * 3, "e", outcome(), INPUTS)
    first, second = recorder.ledger.records
    assert first["evaluated"] == {
        "Alder": [answer_digest(observed)],
        "Cedar": [answer_digest(rated), answer_digest(observed)],
    }
    assert second["evaluated"] == {"Cedar": [answer_digest(rated)]}


def test_every_number_is_that_of_its_own_site(recorder):
    replies = [replace(reply(row), num_samples=10 + row, trained_overlaps=(WHOLE,) * (row == 2)) for row in range(3)]
    given = outcome(quantities={"flagged": numbers(0, 0, 1), "norm": numbers(7, 8, 9)})
    recorder.training_round(0, RoundReplies(replies, {}, [16, 17, 18]), ["a", "b", "c"], "e", given, INPUTS)
    assert of(recorder, "num_samples") == {"Alder": 10.0, "Birch": 11.0, "Cedar": 12.0}
    assert of(recorder, "bytes_received") == {"Alder": 16.0, "Birch": 17.0, "Cedar": 18.0}
    assert of(recorder, "norm") == {"Alder": 7.0, "Birch": 8.0, "Cedar": 9.0}
    assert of(recorder, "dice", "validation_trained") == {"Cedar": 1.0}
    (record,) = recorder.ledger.records
    assert record["began"] == {"Alder": "a", "Birch": "b", "Cedar": "c"}
    assert record["flagged"] == ["Cedar"]
    assert record["contributions"] == {"Alder": 0.2, "Birch": None, "Cedar": 0.8}  # Birch has none this round


def test_what_stays_at_the_sites_has_no_digest_and_is_no_repetition(recorder):
    empty = replace(reply(0), update=torch.empty(0))
    recorder.training_round(0, admitted(empty, empty, empty), ["b"] * 3, "e", outcome(), INPUTS)
    assert recorder.ledger.records[0]["updates"] == {}
    assert of(recorder, "repeated") == dict.fromkeys(SITES, 0.0)


def test_final_validation_stands_under_the_round_it_would_begin(recorder):
    recorder.final_validation(3, [None, Evaluated(3, ((HALF, WHOLE),), torch.zeros(1, 0)), None])
    rows = read_results(recorder.run).query("quantity == 'dice'")
    assert list(zip(rows["round"], rows["site"], rows["split"], rows["case"], rows["value"], strict=True)) == [
        (3, "Birch", "validation", "000", 0.5),
        (3, "Birch", "validation", "001", 1.0),
    ]


def test_what_was_observed_after_a_checkpoint_is_forgotten_too(recorder):
    answer = Evaluated(0, ((HALF,),), torch.zeros(1, 0))
    coalition = torch.ones(1, 3, dtype=torch.bool)
    recorder.observed(0, "multi_round", coalition, [answer] * 3)
    before = recorder.values.path.read_bytes()
    recorder.observed(1, "multi_round", coalition, [answer] * 3)
    recorder.rewind(0, 0, len(before))
    assert recorder.values.path.read_bytes() == before


def test_records_and_their_closing_are_signed_and_hold_the_last_word_of_every_sites_log(tmp_path):
    issue(tmp_path, "server")
    run = tmp_path / "run"
    recorder = Recorder(tiny_plan("fedce"), SITES, run, Signer(tmp_path / "server.key", tmp_path / "server.crt"))
    assert (run / CERTIFICATE).read_bytes() == (tmp_path / "server.crt").read_bytes()
    recorder.training_round(0, admitted(reply(1, "a0"), reply(2, "b0"), None), ["b"] * 3, "e", outcome(), INPUTS)
    recorder.final_validation(3, [Evaluated(3, ((HALF,),), torch.zeros(1, 0), log="a1"), None, None])
    recorder.close()
    (record,) = Ledger(run / "ledger.jsonl").records
    closing = read_closing(run)
    assert closing.site_logs == {"Alder": "a1", "Birch": "b0"}
    assert closing.ledger == record["hash"]
    assert record["signature"]
    assert closing.signature


def test_a_server_whose_key_was_renewed_keeps_the_certificate_of_what_it_signed_before(tmp_path):
    run, found = tmp_path / "run", []
    for round in range(2):
        issue(tmp_path, "server")
        signer = Signer(tmp_path / "server.key", tmp_path / "server.crt")
        recorder = Recorder(tiny_plan("fedce"), SITES, run, signer)
        if round:
            assert read_certificates(run / CERTIFICATE) == [*found, signer.certificate]
        recorder.training_round(
            round, admitted(reply(1, "a0"), reply(2, "b0"), None), ["b"] * 3, "e", outcome(), INPUTS
        )
        found.append(signer.certificate)
    assert verify(run / "ledger.jsonl", found) == 2


def test_what_sites_said_of_their_logs_outlasts_a_restart(recorder):
    """Also of one that is away for the final test."""
    recorder.training_round(
        0, admitted(reply(1, "a0"), reply(2, "b0"), reply(3, "c0")), ["b"] * 3, "e", outcome(), INPUTS
    )
    content = recorder.content()
    again = Recorder(recorder.config, SITES, recorder.run)
    again.restore({**content, "complete_rounds": 1})
    again.final_validation(3, [Evaluated(3, ((HALF,),), torch.zeros(1, 0), log="a1"), None, None])
    assert again.close().site_logs == {"Alder": "a1", "Birch": "b0", "Cedar": "c0"}
    assert len(again.ledger.records) == 1
