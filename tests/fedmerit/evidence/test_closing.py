"""What a run left behind: which files count, their digests, and the signature over all of it."""

import hashlib
import json
from pathlib import Path

import pytest

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import (
    CLOSING,
    close,
    closing_payload,
    covered_files,
    read_closing,
    require_file_sizes,
)
from fedmerit.evidence.signatures import Signer, is_signed_by_any

CONTENTS = {"results.csv": b"a,b\n", "run.json": b"{}", "models/best/A.pt": b"1", "models/global.pt": b"2"}
OTHERS = ("ledger.jsonl", "checkpoint.pt", "models/global.pt.tmp", "report.html")  # written on, or made again


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name in (*CONTENTS, *OTHERS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(CONTENTS.get(name, b"other"))
    return tmp_path


def test_results_description_and_finished_models_are_covered(run):
    assert [path.relative_to(run).as_posix() for path in covered_files(run)] == list(CONTENTS)
    (run / "results.csv").unlink()
    assert [path.name for path in covered_files(run)] == ["run.json", "A.pt", "global.pt"]


def test_closing_record_holds_digests_head_and_the_sites_last_words(run):
    close(run, "head", {"B": "2", "A": "1"})
    files = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}
    whole = {"ledger": "head", "files": files, "site_logs": {"A": "1", "B": "2"}}
    assert json.loads((run / CLOSING).read_text()) == whole | {"signature": None}
    closing = read_closing(run)
    assert closing
    assert closing.digest == hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def test_signature_is_of_all_the_rest(run, keys):
    signer = Signer(keys / "server.key", keys / "server.crt")
    close(run, "head", {}, signer)
    signed = read_closing(run)
    assert signed
    assert is_signed_by_any([signer.certificate], closing_payload("head", signed.digest), signed.signature)
    close(run, "head", {})
    plain = read_closing(run)
    assert plain
    assert plain.digest == signed.digest
    assert plain.signature is None


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"ledger": "head", "files": {}},
        {"ledger": "head", "files": {}, "site_logs": {}, "note": ""},
        {"ledger": "head", "files": {"run.json": None}, "site_logs": {}},
    ],
)
def test_what_is_no_closing_record_is_named(run, content):
    (run / CLOSING).write_text(json.dumps(content))
    with pytest.raises(BadInput, match=r"closing\.json: not a closing record"):
        read_closing(run)


def test_sparse_file_that_a_closing_record_names_is_refused_before_it_is_read(run):
    closing = close(run, "head", {})
    with (run / "results.csv").open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadInput, match=r"results\.csv: has 1099511627776 bytes; expected at most"):
        require_file_sizes(run, closing.files)
