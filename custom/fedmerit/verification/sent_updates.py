"""What a site sent, by its own log, against what the ledger says that it sent."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.verification.site_chains import Log, Record
from fedmerit.wire.messages import TRAIN


def compare_updates(ledger: Path, records: Sequence[Record], own: Log) -> int:
    """In how many rounds the update of a log's site is in the ledger; `BadInput` where the two disagree."""
    log, site = own.path, own.site
    sent: dict[int, list[tuple[int, Record]]] = {}
    for line, entry in enumerate(own.entries, start=1):
        if entry["work"] == TRAIN:
            sent.setdefault(entry["round"], []).append((line, entry))
    taken = [record for record in records if site in record["updates"]]
    for record in taken:
        where = f"{ledger}, line {record['round'] + 1}"
        if record["round"] not in sent:
            raise BadInput(f"{where}: holds an update of {site}, but {log} has none in round {record['round']}")
        for what, name in (("model it began with", "began"), ("update", "updates")):
            part = "received" if name == "began" else "update"
            lines = sent[record["round"]]
            if all(entry[part] != record[name][site] for _, entry in lines):
                raise BadInput(
                    f"{where}: the {what} of {site} is {record[name][site]}, "
                    f"{log}, line {lines[-1][0]}, says {lines[-1][1][part]}"
                )
    return len(taken)


def left_out(records: Sequence[Record], own: Log) -> Iterator[str]:
    """In sentences, what a log's site trained in rounds whose record has nothing of it, by what the ledger says of it.

    That is no contradiction: a reply may have come too late, or was no usable one. By the log it was trained.
    """
    trained = {entry["round"] for entry in own.entries if entry["work"] == TRAIN}
    reasons: dict[str, list[int]] = {}
    for record in records:
        if record["round"] in trained and own.site not in (*record["participants"], *record["updates"]):
            said = record.get("rejected", {}).get(own.site, "nothing of it")
            reasons.setdefault(said, []).append(record["round"])
    for said, rounds in reasons.items():
        when = f"round{'s' * (len(rounds) > 1)} {', '.join(map(str, rounds))}"
        yield f"why what {own.site} trained in {when} did not count: its log has it, the ledger says: {said}"
