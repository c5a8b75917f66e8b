"""What a site writes down of its work, in a chain of its own."""

import math

import pytest
import torch
from certificates import issue

from fedmerit.evidence.digests import digest
from fedmerit.evidence.ledger import Ledger, texts_digest
from fedmerit.evidence.signatures import CERTIFICATE, Signer, Trust
from fedmerit.evidence.verification.chains import read_site_log
from fedmerit.schema.messages import Evaluated, Evaluation, ImportanceTask, PeerModel, Task
from fedmerit.schema.scores import Overlap
from fedmerit.site.site_log import SITE_LOG, SiteLog, answer_digest, overlaps_digest, peer_digest

MODEL, UPDATE = torch.arange(3.0), torch.ones(3)
ONE = torch.eye(1, dtype=torch.float64)
OVERLAPS = (Overlap("000", "disc", 5, 2, 1), Overlap("001", "disc", 1, 0, 0))


def entries(folder):
    return Ledger(folder / SITE_LOG).records


def test_every_work_has_its_record(tmp_path):
    log = SiteLog(tmp_path, "A")
    task = Task(2, MODEL, {}, ledger="head")
    said = log.trained(task, MODEL, UPDATE, "question", OVERLAPS, images=9)
    log.evaluated(
        Evaluation(2, "testing", MODEL[None], ONE, ({},), ONE),
        MODEL[None],
        "other",
        Evaluated(2, (OVERLAPS,), torch.zeros(1, 0)),
    )
    log.refused(task, "too much")
    log.gave_model(2, "B", "m1")
    log.got_model(task, "C", None)
    trained, evaluated, refused, gave, got = (
        {k: v for k, v in one.items() if k != "hash"} for one in entries(tmp_path)
    )
    assert trained | {"previous": ""} == {
        "site": "A", "round": 2, "work": "train", "models": 1, "question": "question",
        "overlaps": [overlaps_digest(OVERLAPS)], "images": 9,
        "received": digest(MODEL), "update": digest(UPDATE), "ledger": "head", "previous": "",
    }  # fmt: skip
    assert (evaluated["work"], evaluated["split"], evaluated["models"]) == ("evaluate", "testing", 1)
    assert evaluated["overlaps"] == [overlaps_digest(OVERLAPS)]
    assert texts_digest(evaluated["overlaps"]) == answer_digest(Evaluated(2, (OVERLAPS,), torch.zeros(1, 0)))
    assert (refused["work"], refused["reason"]) == ("refused", "too much")
    assert (gave["work"], gave["peer"], gave["model"]) == ("gave", "B", "m1")
    assert "ledger" not in gave  # the server has no part in it
    assert (got["work"], got["peer"], got["model"], got["ledger"]) == ("got", "C", None, "head")
    assert said == entries(tmp_path)[0]["hash"]


def test_the_rounds_that_it_answered_and_trained_in_are_known_after_a_restart(tmp_path):
    log = SiteLog(tmp_path, "A")
    assert (log.latest, log.trained_in) == (-1, frozenset())
    log.trained(Task(1, MODEL, {}), MODEL, UPDATE, "first", OVERLAPS)
    log.refused(Task(9, MODEL, {}), "too much")
    log.measured(ImportanceTask(2, "server_validation", MODEL, {}, "exact", 4), "second")
    for one in (log, SiteLog(tmp_path, "A")):
        assert (one.latest, one.trained_in) == (2, {1})
    assert log.asked(2) == [
        {"work": "evaluate", "split": "server_validation", "models": 1, "order": "exact", "question": "second"}
    ]


def test_a_site_with_a_key_signs_and_puts_its_certificate_beside(tmp_path):
    issue(tmp_path, "root")
    issue(tmp_path, "A", "root")
    log = SiteLog(tmp_path / "log", "A", Signer(tmp_path / "A.key", tmp_path / "A.crt"))
    log.gave_model(0, "B", "m")
    (entry,) = entries(tmp_path / "log")
    assert entry["signature"]
    assert (tmp_path / "log" / CERTIFICATE).read_bytes() == (tmp_path / "A.crt").read_bytes()


def test_a_site_whose_key_was_renewed_keeps_the_certificate_of_what_it_signed_before(tmp_path):
    issue(tmp_path, "root")
    found = []
    for round in range(2):
        issue(tmp_path, "A", "root")
        SiteLog(tmp_path / "log", "A", signer := Signer(tmp_path / "A.key", tmp_path / "A.crt")).gave_model(
            round, "B", "m"
        )
        found.append(signer.certificate)
    assert read_site_log(tmp_path / "log" / SITE_LOG, Trust(tmp_path / "root.crt", "server")).certificates == tuple(
        found
    )


@pytest.mark.parametrize("changed", [{"case": "002"}, {"label": "cup"}, {"true_positives": 6}, {"false_negatives": 2}])
def test_digests_of_counts_tell_all_but_the_order(changed):
    assert overlaps_digest(OVERLAPS) == overlaps_digest(OVERLAPS[::-1])
    other = Overlap(
        **{"case": "000", "label": "disc", "true_positives": 5, "false_positives": 2, "false_negatives": 1} | changed
    )
    assert overlaps_digest((other, OVERLAPS[1])) != overlaps_digest(OVERLAPS)


def test_digests_of_peers_models_tell_parameters_and_statistics_and_not_the_weight():
    one = PeerModel(MODEL, {"mean": torch.zeros(2)}, 0.5)
    assert peer_digest(one) == peer_digest(PeerModel(MODEL.clone(), {"mean": torch.zeros(2)}, math.nan))
    for other in (
        PeerModel(MODEL + 1, {"mean": torch.zeros(2)}, 0.5),
        PeerModel(MODEL, {"mean": torch.ones(2)}, 0.5),
        PeerModel(MODEL, {"variance": torch.zeros(2)}, 0.5),
        PeerModel(MODEL.double(), {"mean": torch.zeros(2)}, 0.5),
    ):
        assert peer_digest(other) != peer_digest(one)
