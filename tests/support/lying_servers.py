"""A signed run as a server makes it that lies from the start to sites that do not know: all signatures are right."""

from collections.abc import Callable, Mapping
from pathlib import Path

from signed_runs import HOST, KIT_SITES, Lines, kit_signer, lines_of, log_of, rows_again

from fedmerit.evidence.closing_record import CLOSING, close, read_closing
from fedmerit.evidence.ledger import GENESIS, Ledger, RecordSignature, log_payload, split_head
from fedmerit.schema.records import CLOSED

CHAINED = ("previous", "hash", "signature")


def _plain(line: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in line.items() if name not in CHAINED}


def retell(
    run: Path,
    kits: Path,
    change: Callable[[Lines], object] = lambda lines: None,
    change_log: Callable[[str, Lines], object] = lambda site, lines: None,
) -> Path:
    """Write ledger, logs and closing record again, round by round, each signed by its owner, after ``change`` of the
    ledger's records and ``change_log`` of each site's.
    """
    records, server = lines_of(run / "ledger.jsonl"), kit_signer(kits, HOST)
    signers = {site: kit_signer(kits, site) for site in KIT_SITES}
    logs = {site: lines_of(log_of(run, site)) for site in KIT_SITES}
    closing = read_closing(run)
    ends = {site: {record["round"]: split_head(record["logs"].get(site, ""))[0] for record in records} for site in logs}
    for site, lines in logs.items():
        change_log(site, lines)
    change(records)
    rows_again(run, records)
    begun = RecordSignature.parse(records[0]["signature"]).chain if records and "signature" in records[0] else "0" * 32
    (run / "ledger.jsonl").unlink()
    ledger, chains, new = Ledger(run / "ledger.jsonl", server, begun), {}, {site: {} for site in logs}
    for site in logs:
        begun = RecordSignature.parse(logs[site][0].get("signature", "")).chain
        log_of(run, site).unlink()
        chains[site] = Ledger(log_of(run, site), signers[site], begun)
    heads = [GENESIS]

    def tell(site: str, line: dict[str, object]) -> None:
        content = _plain(line)
        if "ledger" in content:
            content["ledger"], signature = split_head(heads[min(int(str(line["round"])), len(heads) - 1)])
            content |= {"vouched": signature} if signature else {}
        new[site][line.get("hash", "")] = chains[site].append(content)

    for record in [*records, None]:
        round = record["round"] if record else None
        for site, lines in logs.items():
            for line in lines:
                is_now = line["round"] == round if record else int(line["round"]) >= len(records)
                if is_now and line["work"] != CLOSED:
                    tell(site, line)
        if record:
            content = _plain(record)
            content["logs"] = {
                site: f"{(end := new[site].get(ends[site].get(round), ''))} "
                f"{signers[site].sign(log_payload(heads[-1], round, end))}"
                if site in signers and split_head(text)[0] == ends[site].get(round)
                else text
                for site, text in record["logs"].items()
            }
            ledger.append(content)
            heads.append(ledger.head)
    if closing:
        last = {site: chains[site].last_hash for site in logs}
        site_logs = {
            site: f"{last[site]} {signers[site].sign(log_payload(heads[-1], len(records), last[site]))}"
            for site in closing.site_logs
        }
        (run / CLOSING).unlink()
        closing = close(run, ledger.last_hash, site_logs, server)
        digest, seal = split_head(closing.announcement)
        for site, lines in logs.items():
            for line in lines:
                if line["work"] == CLOSED:
                    tell(site, line | {"closing": digest, "sealed": seal})
    return run
