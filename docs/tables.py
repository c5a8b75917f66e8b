"""The parts of the manual that follow from the code, and what `fedmerit methods` prints: `python docs/tables.py` writes
its tables into the pages again.

A table is between ``<!-- generated: NAME -->`` and ``<!-- end -->``; tests/test_documentation.py holds it to the code.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
CATALOGUE = DOCS.parent / "cli" / "fedmerit_cli" / "methods.json"


def methods_table() -> str:
    """Every method and how it differs."""
    from fedmerit.methods.registry import METHODS
    from fedmerit_cli.methods import COLUMNS

    shown = {name: heading for name, heading in COLUMNS.items() if name != "site_work"}
    rows = [[f"`{name}`", *(getattr(kind.about, one) for one in shown)] for name, kind in METHODS.items()]
    return _table(["method", *shown.values()], rows)


def methods_catalogue() -> str:
    """What `fedmerit methods` prints, as JSON with a line for each method: it need not load them."""
    from fedmerit.methods.registry import METHODS
    from fedmerit.schema.configuration.settings import SHARED_GROUPS
    from fedmerit_cli.methods import describe, parameter_rows

    def lines(entries: dict[str, Any]) -> str:
        return ",\n".join(f"{json.dumps(name)}: {json.dumps(one, ensure_ascii=False)}" for name, one in entries.items())

    shared = {group: parameter_rows(kind) for group, kind in SHARED_GROUPS.items()}
    methods = {name: describe(kind) for name, kind in ((name, METHODS[name]) for name in METHODS.ours)}
    return f'{{"methods": {{\n{lines(methods)}\n}}, "shared": {{\n{lines(shared)}\n}}}}\n'


def commands_options() -> str:
    """A section for every command, with its options, as Markdown."""
    sections = []
    for name, command in _commands():
        rows = []
        for parameter in command.params:
            names = ", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))
            text = " ".join((getattr(parameter, "help", None) or "").split())
            default = parameter.default
            shown = "" if default in (None, False) or callable(default) else str(default)
            rows.append([names, text.replace("|", "\\|"), shown])
        sections.append(f"## {name}\n\n{_summary(command)}\n\n{_table(['option', 'meaning', 'default'], rows)}\n")
    return "\n".join(sections)


def _commands() -> Iterator[tuple[str, Any]]:
    import typer

    from fedmerit_cli.main import app

    def below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        if not hasattr(command, "commands"):
            yield name, command
        for word, one in getattr(command, "commands", {}).items():
            yield from below(f"{name} {word}", one)

    return below("fedmerit", typer.main.get_command(app))


def _summary(command: Any) -> str:
    return " ".join((command.help or "").split("\n\n")[0].split()).replace("|", "\\|")


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def record_table(*names: str) -> str:
    """Return the fields of kinds of records, as `fedmerit.schema.records` declares them."""
    from fedmerit.schema import records

    sections = []
    for name in names:
        kind = getattr(records, name)
        rows = [[f"`{field}`", about] for field, about in records.describe_fields(kind)]
        sections.append(f"{(kind.__doc__ or '').splitlines()[0]}\n\n{_table(['field', 'content'], rows)}")
    return "\n\n".join(sections)


def reasons_table() -> str:
    """Return the reasons of `Failure`, and what the supervision of a run makes of each."""
    from fedmerit.reasons import FORMS, LISTED, Remedy, remedy
    from fedmerit.schema.messages import REASONS

    words = {
        Remedy.again: "tries again",
        Remedy.room: "waits for room, with growing pauses",
        Remedy.hospital: "waits for the hospital",
    }
    others = [reason for reason in REASONS if reason not in LISTED]
    reasons = [*LISTED, *(one.format("...") for one in FORMS), *others]
    return _table(["reason", "`job watch`"], [[reason, words[remedy(reason)]] for reason in reasons])


def egress_table() -> str:
    """Return the fields of messages that may leave a site, as `fedmerit.schema.messages` declares them."""
    from fedmerit.ciphertexts import Ciphertexts
    from fedmerit.schema.egress import LEAVING
    from fedmerit.schema.rules import About, Part, parts_of
    from fedmerit.schema.scores import Overlap, Surface
    from fedmerit.schema.survey import Tally

    def row(part: Part) -> list[str]:
        about, leaf, words = part.mark(About) or About(""), part, [part.words()]
        while leaf.item:
            leaf = leaf.item
            words.append(leaf.words())
        form = "; ".join(filter(None, words)) or leaf.base.__name__
        return [f"`{part.name}`", about.text + (f" [{about.unit}]" if about.unit else ""), form]

    sections = []
    for kind in (*LEAVING, Overlap, Surface, Tally, Ciphertexts):
        table = _table(["field", "content", "form"], [row(part) for part in parts_of(kind)])
        sections.append(f"`{kind.__name__}`: {(kind.__doc__ or '').splitlines()[0]}\n\n{table}")
    return "\n\n".join(sections)


def scripts_table() -> str:
    """Return what a script of NVFlare's Client API has to do, and the methods that it can then train."""
    from fedmerit.methods.registry import METHODS, build_method
    from fedmerit.schema.configuration.requirements import unmet_needs
    from fedmerit.schema.configuration.script import Script

    trains = Script(metric="dice")
    answers = replace(trains, evaluates=True)
    scripts = {
        "trains: FULL or DIFF, all tensors or adapters, any precision, NumPy arrays": trains,
        "also answers `flare.is_evaluate()`, as `values` and final tests need": answers,
        "uses NVFlare's helper (`averaged_by=site` of fedce_nvflare if it sends means)": replace(
            answers, uses=("fedce", "fedprox", "scaffold")
        ),
        "calls `with_losses` of `fedmerit.client`": replace(answers, uses=("losses",)),
        "calls `with_own_model` of `fedmerit.client`": replace(answers, uses=("own_model",)),
    }
    rows, listed = [], set[str]()
    for what, script in scripts.items():
        able = [name for name in METHODS.ours if not any(unmet_needs(name, build_method(name, {}), script))]
        rows.append([what, ", ".join(name for name in able if name not in listed)])
        listed |= {*able}
    return _table(["the script", "methods"], rows)


LEDGER = ("RoundRecord", "InputsRecord", "RatingRecord", "GuardRecord", "EnrolmentRecord", "DepartureRecord")
TABLES: dict[str, tuple[str, Callable[[], str]]] = {  # by name: the page that holds a table, and what makes it
    "methods": ("methods.md", methods_table),
    "scripts": ("nvflare_project.md", scripts_table),
    "egress": ("privacy.md", egress_table),
    "reasons": ("privacy.md", reasons_table),
    "ledger": ("files.md", lambda: record_table(*LEDGER)),
    "site log": ("files.md", lambda: record_table("LogEntry", "CommitmentRecord")),
    "audit statement": ("files.md", lambda: record_table("AuditStatement", "RepeatedRound")),
    "job ledger": ("files.md", lambda: record_table("JobEntry")),
    "closing record": ("files.md", lambda: record_table("ClosingRecord")),
}


def filled(name: str) -> str:
    """Return the text of a table's page with the table as the code has it now."""
    page, make = TABLES[name]
    pattern = rf"(<!-- generated: {name} -->\n).*?(\n<!-- end -->)"
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.sub(pattern, lambda match: match[1] + make() + match[2], text, count=1, flags=re.DOTALL)


if __name__ == "__main__":
    CATALOGUE.write_text(methods_catalogue(), encoding="utf-8")
    for name, (page, _) in TABLES.items():
        (DOCS / page).write_text(filled(name), encoding="utf-8")
