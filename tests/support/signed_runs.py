"""Runs of real sites in this process, whose ledger and logs are signed; and what is written again of them."""

import csv
import json
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import Certificate
from pretending import tiny_plan
from stepping import Stepped as Federation

from fedmerit.evidence.closing_record import close, read_closing
from fedmerit.evidence.ledger import Ledger, RecordSignature
from fedmerit.evidence.signatures import Signer, Trust
from fedmerit.evidence.verification.run import Verification, examine_run
from fedmerit.files import write_json
from fedmerit.schema.configuration.run import describe
from fedmerit.schema.results import ROUND_SPLITS, read_results, rows_digest
from fedmerit.schema.site_folder import open_sites
from fedmerit.site.site import image_site
from fedmerit.site.site_log import CLOSED, SITE_LOG

KIT_SITES, HOST = ("site1", "site2", "site3"), "fl.example.org"  # of the startup kits in tests
Lines = list[dict[str, Any]]  # of a ledger, or of a site's log


def run_signed(
    run: Path,
    sites: Path,
    method: str,
    server: Signer | None,
    of_site: Callable[[str], Signer] | None = None,
    lost: Collection[tuple[str, int]] = (),
    root: Certificate | None = None,
    spoil: Callable[[Federation], object] = lambda federation: None,
    keep: bool = False,
    **parameters: Any,
) -> Path:
    """A whole run of three rounds; each site's log lies in its own folder, signed by ``of_site`` if given.

    Of ``lost``, site and round, the server takes no answer; ``spoil`` makes it a dishonest one. With a ``root`` the run
    is guarded: the sites enrol. ``keep``: the server keeps updates.
    """
    guarded = {"guard": "on"} if root else {}
    quick = {"batch_size": 8, "augmentation": "none"}  # two steps a round
    config, folders = tiny_plan(method, rounds=3, **{**quick, **guarded, **parameters}), open_sites(sites)
    config = replace(config, keep_updates=keep)
    names = [folder.name for folder in folders]
    write_json(run / "run.json", describe("run", config, names, "prod" if of_site else "local"))
    federation = Federation(config, names, run, signer=server, root=root)
    spoil(federation)
    own = {}
    for name, folder in zip(names, folders, strict=True):
        signer = of_site(name) if of_site else None
        pem = signer.certificate.public_bytes(Encoding.PEM).decode() if signer else ""
        more = {"participants": names, "signer": signer, "certificate": pem}
        own[name] = image_site(folder, config, run / "sites" / name, "cpu", **more)
    while federation.work:
        answers = {name: own[name].answer(task) for name, task in federation.tasks().items()}
        federation.take({name: answer for name, answer in answers.items() if (name, answer.round) not in lost})
    return run


def kit_signer(kits: Path, name: str) -> Signer:
    """The key of a participant."""
    base = kits / name / "startup" / ("server" if name == HOST else "client")
    return Signer(base.with_suffix(".key"), base.with_suffix(".crt"))


def examined(run: Path, kits: Path, sites: Collection[str] = KIT_SITES) -> Verification:
    """A verification with the authority's certificate and the logs of these sites."""
    return examine_run(run, [log_of(run, site) for site in sites], Trust(kits / "site1/startup/rootCA.pem"))


def log_of(run: Path, site: str = "site2") -> Path:
    """A site's log."""
    return run / "sites" / site / SITE_LOG


def lines_of(path: Path) -> Lines:
    """The records of a ledger or log, however they are chained."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewritten(path: Path, change: Callable[[Lines], object] = lambda lines: None, signer: Signer | None = None) -> None:
    """A chain written again after ``change``, as somebody would who owns it."""
    lines = lines_of(path)
    begun = RecordSignature.parse(lines[0].get("signature", "")).chain if lines else ""
    change(lines)
    path.unlink()
    chain = Ledger(path, signer, begun)
    for line in lines:
        chain.append({k: v for k, v in line.items() if k not in ("previous", "hash", "signature")})


def rows_again(run: Path, lines: Lines) -> None:
    """Digests in records of a ledger, as if results.csv had been unchanged when they were written."""
    with (run / "results.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] in ROUND_SPLITS]
    for line in lines:
        line["rows"] = rows_digest(row for row in rows if int(row["round"]) == line["round"])


def untold(run: Path) -> None:
    """As if no site knew how the run was closed, the last that its log says."""
    for log in run.glob(f"sites/*/{SITE_LOG}"):
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(line for line in lines if json.loads(line)["work"] != CLOSED))


def measured(run: Path) -> dict[str, int]:
    """By site, how many sets of voxel counts in results.csv its log has to have."""
    rows = read_results(run).query("quantity == 'true_positives' and split != 'validation_trained'")
    return dict(rows.groupby("site").apply(lambda of: len(of[["round", "split"]].drop_duplicates())))


def closed_again(run: Path, signer: Signer | None = None) -> None:
    """As if ledger, results and models had been as they are when the run ended, with what sites said of their logs."""
    closing = read_closing(run)
    close(run, Ledger(run / "ledger.jsonl").last_hash, closing.site_logs if closing else {}, signer)
