"""A run's ledger, signed; the log of each of its sites; and whatever is done to either is found."""

import json
import random
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from certificates import issue
from ledger_records import beside_the_servers_word, sentences
from peer_models import EARLY
from signed_runs import closed_again, lines_of, log_of, measured, rewritten, run_signed, untold

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import CLOSING
from fedmerit.evidence.signatures import Signer, Trust
from fedmerit.evidence.verification.run import verify_run
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.run_info import read_run

ROUNDS = 3


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of "root", of "server" issued by it, and of "stranger"."""
    folder = tmp_path_factory.mktemp("keys")
    issue(folder, "root")
    issue(folder, "server", "root")
    issue(folder, "authority")
    issue(folder, "stranger", "authority")
    return folder


@pytest.fixture(scope="module")
def signed(keys, sites, tmp_path_factory) -> Path:
    """A whole CGSV run of three rounds, its ledger signed; each site's log lies in its own folder. Never change it."""
    run = tmp_path_factory.mktemp("signed") / "run"
    return run_signed(run, sites, "cgsv", Signer(keys / "server.key", keys / "server.crt"))


@pytest.fixture
def run(signed, tmp_path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(signed, tmp_path / "run"))


def test_signed_run_and_its_sites_agree(signed, keys):
    for site in ("site1", "site2", "site3"):
        found = verify_run(signed, [log_of(signed, site)], Trust(keys / "root.crt", "server"))
        assert (found.records, found.updates, found.peer_models) == (ROUNDS, {site: ROUNDS}, ())
        assert found.signer.startswith("CN=server, valid until")
    assert verify_run(signed).signer == verify_run(signed, trust=Trust(keys / "server.crt")).signer


def test_local_run_is_not_signed_and_its_sites_agree_all_the_same(fedmerit, trained, keys):
    run = trained()
    for site in ("site1", "site2", "site3"):
        result = fedmerit("verify", run, "--site-log", log_of(run, site))
        assert result.exit_code == 3, result.output
        assert "not signed" in result.stdout
        assert "the outcome rests on the server's word: what is not shown could have moved a weight by up to" in (
            result.stdout
        )
    for certificate, code, words in (
        (keys / "root.crt", 1, "line 1: it is not signed"),
        (run / "gone.pem", 2, "file not found"),
    ):
        result = fedmerit("verify", run, "--certificate", certificate)
        assert result.exit_code == code
        assert words in result.stderr


UNSIGNED = "that the logs of site1, site2, site3 are theirs, and whole: they are not signed"
NAMES = ("site1", "site2", "site3")
OF_SITES = "are: models of sites, of which the ledger has no digest"
OWN_MODELS = f"what models/site1.pt, models/site2.pt, models/site3.pt {OF_SITES}"
OTHERS_TESTED = "that site1, site2, site3 tested the final models: by their logs it was others, such as their own"
NO_STEPS = (
    "that the model was moved by these weights in round 1: the logs of {} have no projections of the update and of the "
    "step that followed"
)
UNSEEN = "that the models are made by these weights: the server did not see the updates"
PEERS = (*EARLY, "exchange=peer")


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name == "cffl" else pytest.mark.slow) for name in METHODS]
)
def test_honest_run_of_every_method_agrees_with_all_its_logs(two_rounds, method):
    run = two_rounds(method)
    found = verify_run(run, logs_of(run))
    assert found.updates == dict.fromkeys(NAMES, 2)
    assert found.answers == measured(run)
    unproved = (OWN_MODELS, OTHERS_TESTED) if method == "ditto" else ()
    allocated = ("that the models of rounds 1 are parts of those before: submodels were allocated",)
    sums = RunConfiguration.from_dict(read_run(run)["plan"]).build_method().sums_updates
    steps = f"that the models are made by these weights: those of {method} are no sums of whole updates"
    further = (*(allocated if method == "fedsac" else ()), *(() if sums else (steps,)))
    trained = tuple(NO_STEPS.format(name) for name in NAMES) if method == "ditto" else ()  # their own models
    assert beside_the_servers_word(found) == (UNSIGNED, *further, *trained, *unproved)


@pytest.mark.parametrize(
    ("settings", "changes", "unproved"),
    [
        ((), {"method": "fedce", "guard": "on"}, ()),
        (PEERS, {"method": "cycle"}, (UNSEEN, OWN_MODELS)),
        *(
            pytest.param(*kind, marks=pytest.mark.slow)
            for kind in (
                ((), {"method": "fedavg", "guard": "on", "engine": "sim"}, ()),
                (("last_round=own",), {"method": "fedavg"}, ()),
                (("statistics=recalibrated", "architecture=unet"), {"method": "fedavg", "guard": "on"}, ()),
                (
                    ("final_model=selected",),
                    {"method": "fedavg"},
                    (OWN_MODELS.replace("models/site", "models/selected/site"),),
                ),
                (("validate_trained=true",), {"method": "fedavg"}, ()),
                ((), {"method": "fedavg", "privacy": "percentile"}, ()),
                ((), {"method": "fedavg", "guard": "on", "values": "multi_round"}, ()),
            )
        ),
    ],
)
def test_honest_run_of_every_kind_agrees_with_all_its_logs(trained, settings, changes, unproved):
    run = trained(*settings, **changes)
    found = verify_run(run, logs_of(run))
    assert found.answers == measured(run)
    assert beside_the_servers_word(found) == (UNSIGNED, *unproved)


def test_honest_encrypted_run_agrees_with_all_its_logs(trained):
    pytest.importorskip("tenseal")
    run = trained(method="fedavg", privacy="he")
    assert beside_the_servers_word(verify_run(run, logs_of(run))) == (
        UNSIGNED,
        UNSEEN,
        f"what models/global.pt {OF_SITES}",
    )


def is_found(run: Path, path: Path, content: bytes, log: Path | None, trust: Trust | None = None) -> bool:
    path.write_bytes(content)
    try:
        verify_run(run, [log] if log else [], trust)
    except BadInput as error:
        return str(path) in str(error)
    return False


@pytest.mark.parametrize("name", ["ledger.jsonl", "the log"])
def test_one_byte_changed_anywhere_is_found(run, name):
    """A seeded few, of which some are in the last signature; `test_ledger.py` changes every byte of a chain."""
    path = run / name if name == "ledger.jsonl" else log_of(run)
    whole = path.read_bytes()
    draws = random.Random(0)
    start = whole.rindex(b'"hash"')
    places = {*draws.sample(range(len(whole)), 10), *draws.sample(range(start, len(whole)), 10)}
    missed = []
    for place in sorted(places):
        changed = whole[:place] + bytes([whole[place] ^ 1 << draws.randrange(8)]) + whole[place + 1 :]
        if not is_found(run, path, changed, log_of(run)):
            missed.append(place)
    assert not missed


def test_ledger_signed_in_part_is_found(run, keys):
    lines = lines_of(run / "ledger.jsonl")
    del lines[2]["signature"]
    (run / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(BadInput, match=r"ledger\.jsonl, line 3: it is not signed"):
        verify_run(run)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda log: log[1].update(update="0" * 64), r"line 2: the update of site2 is \w+, .*line 2, says 0+"),
        (
            lambda log: log[1].update(received="0" * 64),
            r"line 2: the model it began with of site2 is .*line 2, says 0+",
        ),
        (lambda log: log[2].update(ledger="0" * 64), "line 3: the server said its ledger ended with 0+; .*line 2, has"),
        (lambda log: log.pop(1), r"ledger\.jsonl, line 2: holds an update of site2, but .* has none in round 1"),
        (lambda log: log[1].pop("ledger"), "line 2: not a record of a site's log"),
        (lambda log: log[1].update(site="site1"), "holds the log of 2 sites, expected that of one"),
        (lambda log: [entry.update(site="site1") for entry in log], "line 1: the model|line 1: the update of site1"),
        (lambda log: log.append({**log[0], "round": 9}), r"line \d: the server said .* lacks that record"),
    ],
)
def test_log_that_disagrees_is_found_and_what_differs_is_named(run, change, words):
    rewritten(log_of(run), change)
    with pytest.raises(BadInput, match=words):
        verify_run(run, [log_of(run)])


def test_what_the_server_threw_away_is_reported_where_the_site_gives_its_log(sites, tmp_path):
    run = run_signed(tmp_path / "run", sites, "fedavg", None, lost=[("site2", 1)])
    assert verify_run(run, [log_of(run, "site1")]).updates == {"site1": ROUNDS}
    reported = "why what site2 trained in round 1 did not count: its log has it, the ledger says: no reply"
    assert reported not in sentences(verify_run(run, [log_of(run, "site1")]))
    found = verify_run(run, logs_of(run))
    assert (found.updates["site2"], sentences(found)[-1]) == (ROUNDS - 1, reported)


def test_ledger_cut_at_its_end_is_found_by_the_checkpoint_and_by_the_sites(run):
    path = run / "ledger.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(BadInput, match=r"holds 2 records, but .*checkpoint\.pt stands at 3 complete rounds"):
        verify_run(run)
    (run / "checkpoint.pt").unlink()
    for there, words in ((CLOSING, "holds 2 of 3 rounds, and"), ("models", r"closing\.json: file not found")):
        with pytest.raises(BadInput, match=words):
            verify_run(run)
        shutil.rmtree(run / there) if (run / there).is_dir() else (run / there).unlink()
    assert "2 of 3 rounds are there; unfinished, or cut short" in " ".join(sentences(verify_run(run)))
    with pytest.raises(BadInput, match=r"line 4: the server said .* lacks that record"):
        verify_run(run, [log_of(run)])


@pytest.fixture
def exchanging(trained, tmp_path) -> Path:
    """A run of CYCle whose models went from site to site, in rounds 1 and 2; one that a test may spoil."""
    run = trained("warmup=1", "R=2", "exchange=peer", "warmup_by=own", method="cycle")
    return Path(shutil.copytree(run, tmp_path / "exchanging"))


def logs_of(run: Path, *sites: str) -> list[Path]:
    return [log_of(run, site) for site in sites or ("site1", "site2", "site3")]


def test_what_sites_gave_each_other_is_in_the_logs_of_both(exchanging):
    rounds = Counter()
    for site in ("site1", "site2", "site3"):
        for entry in lines_of(log_of(exchanging, site)):
            if entry["work"] in ("gave", "got"):
                assert set(entry) == {"site", "round", "work", "peer", "model", "previous", "hash"} | (
                    {"ledger"} if entry["work"] == "got" else set()
                )
                rounds[entry["round"], entry["work"]] += 1
    assert rounds[1, "gave"] == rounds[1, "got"] == 6  # everybody shares in a round of scoring
    found = verify_run(exchanging, logs_of(exchanging))
    assert found.updates == {"site1": 0, "site2": 0, "site3": 0}
    pairs = {(one.giver, one.receiver): one.models for one in found.peer_models}
    assert len(pairs) == 6
    assert sum(pairs.values()) == rounds[1, "gave"] + rounds[2, "gave"]
    assert not any(one.lost for one in found.peer_models)


def test_command_compares_the_logs_of_several_sites(fedmerit, exchanging):
    options = [word for log in logs_of(exchanging, "site1", "site3") for word in ("--site-log", log)]
    result = fedmerit("verify", exchanging, *options)
    assert result.exit_code == 3, result.output
    for words in ("the log of site1", "the log of site3", "site1 gave site3 a model in", "site3 gave site1 a model in"):
        assert words in result.stdout
    assert "site2 gave" not in result.stdout
    assert "the logs of site2 are missing" in result.stdout
    rewritten(log_of(exchanging, "site3"), lambda log: log.remove(got_model(log)))
    result = fedmerit("verify", exchanging, *options)
    assert result.exit_code == 1
    assert f"but {log_of(exchanging, 'site3')} has no such record" in " ".join(result.stderr.split())


def got_model(log: list[dict], work: str = "got", peer: str = "site1") -> dict:
    """The record of round 1 of a log that is of ``peer``."""
    return next(entry for entry in log if (entry["work"], entry["round"], entry.get("peer")) == (work, 1, peer))


GAVE = r"site_log\.jsonl, line \d+: site1 gave site2 model \w{64} in round 1, but .*site2/site_log\.jsonl"
GOT = r"site_log\.jsonl, line \d+: site2 got model \w{64} of site1 in round 1, but .*site1/site_log\.jsonl"


@pytest.mark.parametrize(
    ("site", "change", "words"),
    [
        ("site2", lambda log: log.remove(got_model(log)), GAVE + " has no such record"),
        ("site2", lambda log: got_model(log).update(model="0" * 64), r"site2 got model 0{64} of site1 .*, says \w{64}"),
        ("site1", lambda log: log.remove(got_model(log, "gave", "site2")), GOT + " has no such record"),
        ("site1", lambda log: got_model(log, "gave", "site2").update(model="0" * 64), GOT + r", line \d+, says 0{64}"),
        ("site1", lambda log: got_model(log, "gave", "site2").update(round=2), GOT + " has no such record"),
        (
            "site1",
            lambda log: log.insert(0, got_model(log, "gave", "site2") | {"model": "0" * 64}),
            r"gave site2 model 0{64}",
        ),
        ("site2", lambda log: got_model(log).pop("model"), "not a record of a site's log"),
        (
            "site2",
            lambda log: got_model(log).update(ledger="0" * 64),
            "two ledger heads for round 1: .*, with 0{64}; neither",
        ),
    ],
)
def test_two_logs_that_disagree_on_what_was_given_are_found(exchanging, site, change, words):
    rewritten(log_of(exchanging, site), change)
    with pytest.raises(BadInput, match=words):
        verify_run(exchanging, logs_of(exchanging))


def test_answer_that_did_not_arrive_is_reported_and_is_no_contradiction(fedmerit, exchanging):
    rewritten(log_of(exchanging), lambda log: got_model(log).update(model=None))
    untold(exchanging)
    closed_again(exchanging)
    found = verify_run(exchanging, logs_of(exchanging, "site1", "site2"))
    models = {(one.giver, one.receiver): (one.models, one.lost) for one in found.peer_models}
    assert models["site1", "site2"][1] == (1,)
    assert models["site2", "site1"][1] == ()
    result = fedmerit("verify", exchanging, "--site-log", log_of(exchanging, "site1"), "--site-log", log_of(exchanging))
    assert result.exit_code == 3, result.output
    assert "in rounds 1 the model did not arrive, by the log of site2" in result.stdout


def test_one_log_of_each_site(exchanging):
    with pytest.raises(BadInput, match=re.escape("is a second log of site1; give one of each site")):
        verify_run(exchanging, logs_of(exchanging, "site1", "site2", "site1"))
