"""What a site said of models for others, by its own log, against what the ledger says that counted of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedmerit.errors import BadInput
from fedmerit.records.ledger import digest_of_texts
from fedmerit.verification.site_chains import Log, Record
from fedmerit.wire.messages import EVALUATE

Kind = tuple[str, int]  # the split, and how many models: where a round was repeated one answer of each counts


def compare_ratings(ledger: Path, records: Sequence[Record], own: Log) -> Iterator[str]:
    """In sentences, what a log's site said of models in rounds whose record has not that it counted.

    That is no contradiction: an answer may have come too late, or was no usable one.

    Raises:
        BadInput: a record has what the site did not say.
    """
    open_to: dict[tuple[str, str], list[int]] = {}  # by what is asked, and what is known
    for record in records if any("overlaps" in entry for entry in own.entries) else ():  # earlier versions say nothing
        round, taken = record["round"], record.get("evaluated", {}).get(own.site, ())
        said = _said(own, round)
        if any(all(digest not in answers for answers in said.values()) for digest in taken):
            raise BadInput(
                f"{ledger}, line {round + 1}: holds what {own.site} said of models, but {own.path} has no such answer "
                f"in round {round}"
            )
        if any(not answers.intersection(taken) for answers in said.values()):
            told = record.get("rejected", {}).get(own.site, "nothing of it")
            why = "why", f"did not count: its log has it, the ledger says: {told}"
            whether = "whether", "counted: the ledger does not say"
            open_to.setdefault(why if "evaluated" in record else whether, []).append(round)
    for (asked, known), rounds in open_to.items():
        when = f"round{'s' * (len(rounds) > 1)} {', '.join(map(str, rounds))}"
        yield f"{asked} what {own.site} said of models in {when} {known}"


def _said(own: Log, round: int) -> dict[Kind, set[str]]:
    """Digests of what a site said of models in a round, by kind."""
    said: dict[Kind, set[str]] = {}
    for entry in own.entries:
        if (entry["work"], entry["round"]) == (EVALUATE, round) and entry.get("overlaps"):
            kind = entry.get("split", ""), len(entry["overlaps"])
            said.setdefault(kind, set()).add(digest_of_texts(entry["overlaps"]))
    return said
