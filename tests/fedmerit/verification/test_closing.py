"""A run folder against its closing record: nothing changed, gone or new, and no site's last word missing."""

import pytest

from fedmerit.errors import BadInput
from fedmerit.records.closing_record import CLOSING, Closing, close
from fedmerit.verification.ledger_heads import require_complete_logs, verify_closing


@pytest.fixture
def run(tmp_path):
    """One that ended, not signed."""
    (tmp_path / "models").mkdir()
    for name in ("results.csv", "run.json", "models/global.pt"):
        (tmp_path / name).write_text(name)
    close(tmp_path, "head", {"A": "last"})
    return tmp_path


def test_what_lies_there_is_what_was_left(run):
    closing = verify_closing(run, "head", ())
    assert closing
    assert set(closing.files) == {"results.csv", "run.json", "models/global.pt"}
    (run / "report.html").write_text("made later")  # covered by nothing
    assert verify_closing(run, "head", ()) == closing
    (run / CLOSING).unlink()
    assert verify_closing(run, "head", ()) is None


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda run: (run / "run.json").write_text("other"), "run.json: was changed after the run; {} has another SHA"),
        (lambda run: (run / "results.csv").unlink(), "results.csv: is missing; {} lists it"),
        (lambda run: (run / "models/best.pt").touch(), "models/best.pt: was put there after the run; {} does not list"),
    ],
)
def test_what_was_changed_taken_or_added_is_named(run, spoil, words):
    spoil(run)
    with pytest.raises(BadInput) as found:
        verify_closing(run, "head", ())
    assert str(found.value).startswith(f"{run}/" + words.format(run / CLOSING))


def test_a_closing_record_is_of_this_ledger(run):
    with pytest.raises(BadInput, match=r"closing\.json: is of a ledger that ended with head, this one ends with other"):
        verify_closing(run, "other", ())


def test_a_closing_record_is_signed_as_the_ledger_is(run, server):
    with pytest.raises(BadInput, match=r"closing\.json: it is not signed; it was written or changed by somebody else"):
        verify_closing(run, "head", [server.certificate])
    close(run, "head", {}, server)
    assert verify_closing(run, "head", [server.certificate])
    with pytest.raises(BadInput, match=r"closing\.json: is signed, and the ledger is not; its signatures were removed"):
        verify_closing(run, "head", ())
    text = (run / CLOSING).read_text()
    (run / CLOSING).write_text(text.replace('"head"', '"other"'))
    with pytest.raises(BadInput, match=r"closing\.json: its signature is not the server's"):
        verify_closing(run, "other", [server.certificate])


def test_a_log_has_what_its_site_said_last(own_log):
    closing = Closing("head", {}, {"A": "a2", "C": ""})
    whole = own_log("A", {"hash": "a1"}, {"hash": "a2"}, {"hash": "a3"})  # it may have gone on
    require_complete_logs(closing, [whole, own_log("B", {"hash": "b1"}), own_log("C")])  # the others said nothing
    with pytest.raises(BadInput, match=r"A\.jsonl: lacks the record that A ended the run with; it was cut"):
        require_complete_logs(closing, [own_log("B"), own_log("A", {"hash": "a1"})])
