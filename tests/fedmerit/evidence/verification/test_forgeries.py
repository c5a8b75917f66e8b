"""Keys that ``deploy init`` made, and what is done with them, or to a run, to make it say something else."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from certificates import certify
from ledger_records import beside_the_servers_word, sentences
from signed_runs import closed_again, lines_of, log_of, measured, rewritten, rows_again, run_signed, untold

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import CLOSING, CROSS_SITE, close, closing_payload, read_closing
from fedmerit.evidence.digests import state_digest
from fedmerit.evidence.ledger import GENESIS, Ledger, log_payload
from fedmerit.evidence.signatures import CERTIFICATE, Signer, Trust, read_certificate
from fedmerit.evidence.verification.run import verify_run
from fedmerit.files import write_json
from fedmerit_deploy.provisioning import init, make_project

NOT_COUNTERSIGNED = (
    "that the run was not closed again: the logs of site1, site2, site3 do not say how it was when it ended"
)
SITES, SERVER, ADMIN, ROUNDS = ("site1", "site2", "site3"), "fl.example.org", "admin@example.org", 3


@dataclass(frozen=True)
class Keys:
    """What one ``deploy init`` wrote."""

    kits: Path

    def signer(self, name: str) -> Signer:
        base = "server" if name == SERVER else "client"
        return Signer(self.kits / name / f"startup/{base}.key", self.kits / name / f"startup/{base}.crt")

    @property
    def root(self) -> Path:
        return self.kits / "site1/startup/rootCA.pem"

    @property
    def trust(self) -> Trust:
        return Trust(self.root)


def provisioned(out: Path) -> Keys:
    kits = init(out, make_project(dict.fromkeys(SITES, "org"), SERVER, "org", {ADMIN: "project_admin"}))
    return Keys(kits[0].path.parent)


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Keys:
    return provisioned(tmp_path_factory.mktemp("federation") / "out")


@pytest.fixture(scope="module")
def another(tmp_path_factory) -> Keys:
    """A federation of the same names."""
    return provisioned(tmp_path_factory.mktemp("another") / "out")


@pytest.fixture(scope="module")
def signed(keys, sites, tmp_path_factory) -> Path:
    """A whole FedAvg run, ledger and logs signed by their owners. Never change it."""
    run = tmp_path_factory.mktemp("signed") / "run"
    return run_signed(run, sites, "fedavg", keys.signer(SERVER), keys.signer)


@pytest.fixture
def run(signed, tmp_path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(signed, tmp_path / "run"))


def logs(run: Path) -> list[Path]:
    return [log_of(run, site) for site in SITES]


def weigh(lines: list[dict]) -> None:
    lines[1]["weights"]["site2"] = 0.9


def weighed_results(run: Path) -> None:
    """results.csv to fit."""
    path = run / "results.csv"
    path.write_text(
        "".join(
            ",".join([*line.split(",")[:-1], "0.9\n"]) if ",1,site2,,,,,weight," in line else line
            for line in path.read_text().splitlines(keepends=True)
        )
    )


def forged(run: Path, signer: Signer | None, change: Callable[[list[dict]], object] = weigh) -> None:
    """A run that says something else, whole in itself: ledger, results, closing record and certificate."""
    if change is weigh:
        weighed_results(run)

    def changed(lines: list[dict]) -> None:
        change(lines)
        rows_again(run, lines)

    rewritten(run / "ledger.jsonl", changed, signer)
    (run / CERTIFICATE).unlink()
    if signer:
        signer.publish(run)
    closed_again(run, signer)


def test_run_and_all_logs_agree_and_nothing_is_left_open(signed, keys):
    found = verify_run(signed, logs(signed), keys.trust)
    assert sentences(found) == ()
    (question,) = found.unproven
    assert (question.kind, found.moved.weight) == ("statistics unproven", 0.0)
    assert "models/global.pt" in question.found
    assert found.updates == dict.fromkeys(SITES, ROUNDS)
    assert found.answers == measured(signed)
    assert set(found.answers) == set(SITES)
    assert found.signer.startswith(f"O=org,CN={SERVER}")


def test_what_is_missing_is_said(fedmerit, signed, keys):
    reported = " ".join(fedmerit("verify", signed, "--certificate", keys.root).stdout.split())
    assert "not shown: that the server sent all sites the same" in reported
    assert "the logs of site1, site2, site3 are missing (--site-log)" in reported
    assert "--certificate takes the rootCA.pem" in " ".join(sentences(verify_run(signed)))


@pytest.mark.parametrize(
    ("whose", "words"),
    [
        ("site2", "signed by 'site2'; expected fl.example.org"),
        (ADMIN, "an admin with the role 'project_admin'"),
        ("another", "neither the certificate that signed .*ledger.jsonl .* nor its issuer"),
        (None, "line 1: it is not signed"),
    ],
)
def test_ledger_signed_by_another_is_refused(run, keys, another, whose, words):
    signer = another.signer(SERVER) if whose == "another" else keys.signer(whose) if whose else None
    forged(run, signer)
    with pytest.raises(BadInput, match=words):
        verify_run(run, trust=keys.trust)
    with pytest.raises(BadInput, match=r"the server said its ledger ended|none of the server's|an admin|not signed"):
        verify_run(run, [log_of(run, "site2")])


def test_signatures_removed_are_missed_without_anybodys_certificate(run):
    forged(run, None)
    with pytest.raises(BadInput, match=r"run\.json says that the run's server had a certificate"):
        verify_run(run)


@pytest.fixture(scope="module")
def expired(keys, tmp_path_factory) -> Signer:
    """The server's, a day after its end, by NVFlare's own certificate code."""
    folder = tmp_path_factory.mktemp("expired")
    certify(keys.kits.parent / "state/cert.json", folder / "server", SERVER, -10, -1)
    return Signer(folder / "server.key", folder / "server.crt")


def test_expired_certificate_is_refused_but_for_a_day_on_which_it_was_valid(fedmerit, run, keys, expired):
    forged(run, expired, lambda lines: None)
    with pytest.raises(BadInput, match=r"valid from .* UTC and not on .*--at"):
        verify_run(run, trust=keys.trust)
    before = datetime.now(UTC) - timedelta(days=3)
    with pytest.raises(BadInput, match="CN=fedmerit, valid from"):  # the authority's own was not yet
        verify_run(run, trust=Trust(keys.root, at=before))
    shutil.copytree(run, run.parent / "given")
    day = f"{before:%Y-%m-%d}"
    result = fedmerit("verify", run, "--certificate", run / CERTIFICATE, "--at", day)
    assert result.exit_code == 3, result.stderr


def test_root_out_of_a_kit_needs_the_servers_name(signed, keys, tmp_path):
    single = Path(shutil.copy(keys.root, tmp_path / "rootCA.pem"))
    with pytest.raises(BadInput, match="give its name with --server"):
        verify_run(signed, trust=Trust(single))
    assert verify_run(signed, trust=Trust(single, SERVER)).records == ROUNDS
    for kit, own in ((keys.kits / SERVER, "server.crt"), (keys.kits / ADMIN, "rootCA.pem")):
        assert verify_run(signed, trust=Trust(kit / "startup" / own)).records == ROUNDS


def test_emptied_ledger_is_found(run, keys):
    """Nobody's record is left to be signed by another; results and models could be anything."""
    (run / "checkpoint.pt").unlink()
    (run / "ledger.jsonl").write_text("")
    path = run / "results.csv"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    close(run, GENESIS, {})
    for left in (CLOSING, "models/global.pt"):
        with pytest.raises(BadInput, match=rf"ledger\.jsonl: holds no record, and .*{left} is of a run that ended"):
            verify_run(run, trust=keys.trust)
        (run / left).unlink()
    for model in (run / "models").glob("*.pt"):
        model.unlink()
    assert "that anything was run: the ledger holds no record" in sentences(verify_run(run, trust=keys.trust))


def test_rollback_is_found(run, keys):
    """A run that continued from an earlier round, to another end, with all its owner's keys."""
    forged(run, keys.signer(SERVER), lambda lines: lines[1]["rejected"].update(site9="no reply"))
    assert verify_run(run, trust=keys.trust).records == ROUNDS
    with pytest.raises(BadInput, match=r"line 3: the server said its .*line 2, has \w+; the server signed that"):
        verify_run(run, [log_of(run, "site1")], keys.trust)


def test_server_that_gave_two_sites_two_stories_is_found_and_convicted(run, keys):
    other = Path(shutil.copytree(run, run.parent / "other"))
    forged(other, keys.signer(SERVER))
    reported = [record["hash"] + " " + record["signature"] for record in lines_of(other / "ledger.jsonl")]

    def retold(lines: list[dict]) -> None:
        for line in lines:
            if line["round"] == 2:
                line["ledger"], line["vouched"] = reported[1].split(" ")

    rewritten(log_of(run, "site3"), retold, keys.signer("site3"))
    with pytest.raises(BadInput, match=r"two ledger heads for round 2: .*site1.*site3.*the server signed both"):
        verify_run(run, logs(run), keys.trust)
    lie = {"vouched": "00"}
    rewritten(
        log_of(run, "site3"), lambda lines: [one.update(lie) for one in lines if one["round"]], keys.signer("site3")
    )
    with pytest.raises(BadInput, match="the server signed only one of them"):
        verify_run(run, logs(run), keys.trust)


def test_log_signed_by_another_site_is_refused(run, keys):
    path = log_of(run, "site2")
    rewritten(path, signer=keys.signer("site1"))
    with pytest.raises(BadInput, match="line 1: its signature is not site2's"):
        verify_run(run, [path], keys.trust)
    keys.signer("site1").publish(path.parent)
    with pytest.raises(BadInput, match="signed by 'site1'; expected site2"):
        verify_run(run, [path], keys.trust)


def test_log_without_its_signatures_is_refused_or_said_to_be_nobodys(run, keys):
    path = log_of(run, "site2")
    rewritten(path)
    with pytest.raises(BadInput, match="line 1: it is not signed"):
        verify_run(run, [path], keys.trust)
    (path.parent / CERTIFICATE).unlink()
    found = verify_run(run, [path], keys.trust)
    assert "that the logs of site2 are theirs, and whole: they are not signed" in sentences(found)


def test_log_cut_at_its_end_is_found_by_what_the_site_said_last(run, keys):
    path = log_of(run, "site2")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:ROUNDS]))
    with pytest.raises(
        BadInput, match=r"site2 signed that its log ended with \w+ \(.*closing\.json\), and its log lacks"
    ):
        verify_run(run, [path], keys.trust)


def test_heads_without_the_servers_signature_are_said_to_be_open(sites, tmp_path, keys, monkeypatch):
    monkeypatch.setattr("fedmerit.server.recorder.Ledger.head", Ledger.last_hash)
    monkeypatch.setattr("fedmerit.evidence.verification.heads.record_head", lambda record: record["hash"])
    run = run_signed(tmp_path / "run", sites, "fedavg", keys.signer(SERVER), keys.signer)
    untold(run)
    assert sentences(verify_run(run, logs(run), keys.trust)) == (
        "that the server said what the logs of site1, site2, site3 have of it: its signature is not there",
        NOT_COUNTERSIGNED,
    )


def test_log_whose_end_the_closing_record_does_not_have_is_said_to_be_open(run, keys):
    untold(run)
    close(run, Ledger(run / "ledger.jsonl").last_hash, {}, keys.signer(SERVER))
    path = log_of(run, "site2")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:ROUNDS]))
    found = sentences(verify_run(run, logs(run), keys.trust))
    assert tuple(text for text in found if "testing_best" not in text) == (  # if another round than the last was best
        "that the logs of site1, site2, site3 are whole: closing.json does not say how they ended",
        NOT_COUNTERSIGNED,
        "that validation measurements of site2 in round 3 are its own: its log has none",
        "that testing measurements of site2 in round 2 are its own: its log has none",
        "that the model was moved by these weights in round 2: the logs of site2 have no projections of the update and "
        "of the step that followed",
    )


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("results.csv", lambda content: content.replace(b"true_positives,", b"true_positives,1", 1)),
        (CROSS_SITE.as_posix(), lambda content: b"{}"),
        ("run.json", lambda content: content + b" "),
        ("models/global.pt", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
    ],
)
def test_edited_file_is_found(run, keys, file, change):
    (run / file).write_bytes(change((run / file).read_bytes()))
    with pytest.raises(BadInput, match=f"{file}: was changed after the run"):
        verify_run(run, trust=keys.trust)


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("validation", "mean validation dice of site1 in round 0"),
        ("testing", "testing measurements of site1 in round 2"),
    ],
)
def test_server_that_edits_dice_and_closes_again_contradicts_ledger_or_site(run, keys, split, words):
    path = run / "results.csv"
    lines = path.read_text().splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if f",site1,,{split}," in line and ",dice," in line)
    cell = ",".join(lines[start].split(",")[:-2])
    new = {"dice": 1.0, "true_positives": 50, "false_positives": 0, "false_negatives": 0}
    for i, line in enumerate(lines):
        if line.startswith(cell + ","):
            quantity = line.split(",")[-2]
            lines[i] = f"{cell},{quantity},{new[quantity]}\n" if quantity in new else line
    path.write_text("".join(lines))
    closed_again(run, keys.signer(SERVER))
    with pytest.raises(BadInput, match=words):
        verify_run(run, [log_of(run, "site1")], keys.trust)


def edited(run: Path, signer: Signer, change: Callable[[dict[str, str]], list[dict[str, str]]]) -> None:
    """results.csv with rows instead of each, and the run closed again."""
    path = run / "results.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(one for row in rows for one in change(row))
    closed_again(run, signer)


def replaced(quantity: str, value: str) -> Callable[[dict[str, str]], list[dict[str, str]]]:
    return lambda row: [row | {"value": value} if row["quantity"] == quantity and not row["split"] else row]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (replaced("weight", "0.77"), "weight of site1 in round 0 is 0.77, the ledger has"),
        (replaced("reputation", "0.01"), "reputation of site1 in round 0 is 0.01, the ledger has"),
        (replaced("train_loss", "0.01"), "rows of round 0 are not those that the ledger has a digest of"),
        (lambda row: [] if row["split"] == "validation" and row["round"] == "1" else [row], "validation dice of site1"),
    ],
)
def test_results_that_the_server_edits_and_closes_again_contradict_its_ledger(run, keys, change, words):
    edited(run, keys.signer(SERVER), change)
    with pytest.raises(BadInput, match=words):
        verify_run(run, trust=keys.trust)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda row: [row, row | {"round": "4"}] if row["split"] == "testing" else [row],
            "has dice of site1 in round 4, testing, which no run of 3 rounds writes",
        ),
        (lambda row: [row | {"method": "fedce"}], r"is of method fedce, .*run\.json of fedavg"),
    ],
)
def test_results_that_the_server_makes_up_and_closes_again_are_those_of_no_such_run(run, keys, change, words):
    untold(run)
    edited(run, keys.signer(SERVER), change)
    with pytest.raises(BadInput, match=words):
        verify_run(run, logs(run), keys.trust)


def test_a_site_of_which_no_record_has_anything_is_reported(run, keys):
    """A stranger that the server put in, or a hospital that it never let take part."""
    untold(run)
    info = json.loads((run / "run.json").read_text())
    write_json(run / "run.json", info | {"sites": [*SITES, "site9"]})
    forged(run, keys.signer(SERVER), lambda lines: [line["rejected"].update(site9="no reply") for line in lines])
    reported = sentences(verify_run(run, trust=keys.trust))
    assert any("the logs of site1, site2, site3, site9 are missing" in sentence for sentence in reported)
    assert "that the run had site9, and why no record has anything that they sent" in reported


def test_test_measurements_that_are_left_out_are_reported_where_the_site_answered(run, keys):
    untold(run)
    matrix = json.loads((run / CROSS_SITE).read_text())
    write_json(run / CROSS_SITE, {site: row for site, row in matrix.items() if site != "site1"})
    edited(run, keys.signer(SERVER), lambda row: [] if (row["split"], row["site"]) == ("testing", "site1") else [row])
    assert sentences(verify_run(run, logs(run), keys.trust)) == (
        NOT_COUNTERSIGNED,
        "why testing measurements of site1 in round 2 are not in results.csv: by its log it answered",
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda row: [row | {"value": "0.1"} if row["quantity"].startswith("hd95") else row],
        replaced("seconds", "0.1"),
        lambda row: [] if row["split"] == "union" else [row],
    ],
)
def test_run_closed_again_is_found_by_what_any_site_was_sent_when_it_ended(run, keys, change):
    before = read_closing(run)
    edited(run, keys.signer(SERVER), change)
    assert read_closing(run) != before
    words = r"closing\.json: was closed again since; by .*line \d+, site3 noted another .*, and the server signed that"
    with pytest.raises(BadInput, match=words):
        verify_run(run, [log_of(run, "site3")], keys.trust)
    (run / CLOSING).unlink()
    (run / "checkpoint.pt").unlink()
    shutil.rmtree(run / "models")
    with pytest.raises(BadInput, match=r"closing\.json: is missing; by .*site3 noted another"):
        verify_run(run, [log_of(run, "site3")], keys.trust)


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        (
            {"closing": "ab" * 32, "sealed": None},
            r"line \d+: says that the run was closed otherwise than .*closing.json",
        ),
        (
            {"closing": "ab" * 32, "sealed": "another run's"},
            r"line \d+: says that .* and has no signature of the server's",
        ),
        ({"sealed": None}, None),
        ({"sealed": "00"}, None),
    ],
)
def test_site_that_makes_up_how_the_run_was_closed_convicts_nobody(run, keys, reported, words):
    """What the server signed as another run ended is of that run's ledger; the digest only is nobody's word."""
    if reported.get("sealed") == "another run's":
        reported = reported | {"sealed": keys.signer(SERVER).sign(closing_payload("ef" * 32, reported["closing"]))}

    def change(lines: list[dict]) -> None:
        lines[-1].update(reported)
        if lines[-1]["sealed"] is None:
            del lines[-1]["sealed"]

    rewritten(log_of(run, "site2"), change, keys.signer("site2"))
    if words:
        with pytest.raises(BadInput, match=words):
            verify_run(run, logs(run), keys.trust)
    else:
        reported = "that the run was not closed again: the logs of site2 do not say how it was when it ended"
        assert sentences(verify_run(run, logs(run), keys.trust)) == (reported,)


@pytest.mark.parametrize("rewrites", [False, True])
def test_final_model_swapped_by_the_server_is_found(run, keys, rewrites):
    path = run / "models/global.pt"
    state = torch.load(path, weights_only=True)
    next(iter(state.values())).add_(1)
    torch.save(state, path)
    if rewrites:  # the digest of all that is saved, but not that of what the last round gave
        saved = {"models/global.pt": state_digest(state)}
        rewritten(run / "ledger.jsonl", lambda lines: lines[-1]["saved"].update(saved), keys.signer(SERVER))
    closed_again(run, keys.signer(SERVER))
    with pytest.raises(BadInput, match=r"global\.pt: is not the model (that|of line 3 of) .*it was swapped or changed"):
        verify_run(run, trust=keys.trust)


def end_said(run: Path, keys: Keys, site: str, said: str) -> None:
    """The closing record of a server that has this for the end of a site's log."""
    untold(run)
    closing = read_closing(run)
    close(run, closing.ledger, {**closing.site_logs, site: said}, keys.signer(SERVER))


@pytest.mark.parametrize(
    "how", ["invented", "signature of another hash", "signed for another run", "signed by another"]
)
def test_end_of_a_log_that_its_site_did_not_sign_accuses_the_server(run, keys, how):
    """A server that invents how an honest site's log ended."""
    untold(run)
    invented = "ab" * 32
    signature = {
        "invented": "",
        "signature of another hash": " " + read_closing(run).site_logs["site1"].split(" ")[1],
        "signed for another run": " " + keys.signer("site1").sign(log_payload("ef" * 32 + " a:b", ROUNDS, invented)),
        "signed by another": " " + keys.signer("site2").sign(log_payload(read_closing(run).ledger, ROUNDS, invented)),
    }[how]
    end_said(run, keys, "site1", invented + signature)
    words = (
        rf"closing\.json: has .* {invented}, which site1 did not sign .*: the server invented it; .* not accuse site1"
    )
    with pytest.raises(BadInput, match=words):
        verify_run(run, logs(run), keys.trust)


def test_word_of_round_0_which_fits_any_run_convicts_nobody(run, keys):
    signed_once = f"{'ab' * 32} {keys.signer('site1').sign(log_payload(GENESIS, 0, 'ab' * 32))}"
    end_said(run, keys, "site1", signed_once)
    assert any("whether the logs of site1 were cut" in one for one in sentences(verify_run(run, logs(run), keys.trust)))


@pytest.mark.parametrize("closed", [True, False])
def test_site_that_rewrites_its_log_is_convicted_by_what_it_signed(run, keys, closed):
    """With its own key, and another chain; also if the closing record does not say how the log ended."""
    untold(run)
    if not closed:
        close(run, read_closing(run).ledger, {}, keys.signer(SERVER))
    path = log_of(run, "site2")

    def change(lines: list[dict]) -> None:
        lines[1]["note"] = "it asked for more"
        lines[0]["signature"] = "of another chain:"

    rewritten(path, change, keys.signer("site2"))
    with pytest.raises(BadInput, match=r"site2 signed that its log ended with \w+ \(.*ledger\.jsonl, line 2\)"):
        verify_run(run, logs(run), keys.trust)


def test_words_that_the_server_left_out_are_said_to_be_open(run, keys):
    untold(run)
    closing = read_closing(run)
    close(run, closing.ledger, {"site1": closing.site_logs["site1"].split(" ")[0]}, keys.signer(SERVER))
    reported = sentences(verify_run(run, logs(run), keys.trust))
    assert "that the logs of site1 are whole: how they ended is not signed by these sites" in reported
    assert "that the logs of site2, site3 are whole: closing.json does not say how they ended" in reported


def test_certificates_that_sites_enrolled_with_say_whose_word_it_is(sites, keys, tmp_path):
    """Of a guarded run: without any log, and with one whose signatures its site took away."""
    run, root = tmp_path / "run", read_certificate(keys.root)
    run_signed(run, sites, "fedavg", keys.signer(SERVER), keys.signer, root=root)
    assert beside_the_servers_word(verify_run(run, logs(run), keys.trust)) == ()
    path = log_of(run, "site2")
    rewritten(path, lambda lines: lines[1].update(note="it asked for more"))
    (path.parent / CERTIFICATE).unlink()
    with pytest.raises(BadInput, match="site2 signed that its log ended with"):
        verify_run(run, [path], keys.trust)
    end_said(run, keys, "site1", "ab" * 32 + " " + "cd" * 256)
    with pytest.raises(BadInput, match="which site1 did not sign"):
        verify_run(run, trust=keys.trust)
