"""The dossier: items that journals and regulators ask for, with the recorded evidence, or the person to ask."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pandas as pd

from fedmerit_data.pages import write_page
from fedmerit_dossier.evidence import EVIDENCE, open_sources
from fedmerit_evaluation.figures.tables import Table, write_tables
from fedmerit_evaluation.report.assembly import training_days
from fedmerit_evaluation.results.runs import open_runs

UNANSWERABLE = ("intended_use", "users", "privacy_attacks")  # no file of FedMerit has these

LISTS: Mapping[str, str] = {  # by name of their files in items/
    "model-card": "Model card (after Mitchell et al. 2019)",
    "claim": "CLAIM, 2024 update",
    "tripod-ai": "TRIPOD+AI, 2024",
    "future-ai": "FUTURE-AI, 2025",
    "eu-ai-act-annex-iv": "EU AI Act, Annex IV: technical documentation",
    "eu-ai-act-article-12": "EU AI Act, Article 12: record-keeping",
    "hl7-flute": "HL7 Europe FLUTE: requirements of federated learning",
    "dpia": "Annex: data protection impact assessment (GDPR Article 35, criteria of WP 248 rev.01)",
    "article-30": "Annex: record of processing activities (GDPR Article 30)",
}
NOT_KNOWN = "not known, ask"


@dataclass(frozen=True)
class Answers:
    """A list of items with the answers."""

    name: str
    title: str
    table: Table
    whole: int  # items with complete evidence
    partly: int  # items with evidence in part


def write_dossier(runs: Sequence[Path], out: Path, *, sites: Path | None = None) -> Path:
    """Write ``out/dossier.html``, and every list as CSV and LaTeX in ``out/tables``.

    Args:
        runs: run folders, on the same task and sites.
        sites: the prepared site folders; default those of the runs, where they are on this machine.

    Returns:
        The path of the HTML file.

    Raises:
        BadInput: a run is unusable, the runs do not belong together, a ledger was changed, or no site folder is there.
    """
    file = open_sources(open_runs(runs), sites)
    found = {name: collect(file) for name, collect in EVIDENCE.items()}
    answered = [_answers(name, title, found) for name, title in LISTS.items()]
    write_tables([one.table for one in answered], out / "tables")
    page = out / "dossier.html"
    shown = {"runs": file.runs, "run": file.run, "answered": answered, "days": training_days(file.runs)}
    write_page(page, "fedmerit_dossier", "dossier.html.j2", **shown)
    return page


def read_items(name: str) -> pd.DataFrame:
    """Read the items of a list, with text columns ``item, asks, evidence, open, ask``.

    Column ``evidence`` has keys of `EVIDENCE`, ``open`` what they leave open, ``ask`` the person to ask.
    """
    with (files("fedmerit_dossier") / "items" / f"{name}.csv").open() as content:
        return pd.read_csv(content, dtype=str, keep_default_na=False)


def _answers(name: str, title: str, found: Mapping[str, str]) -> Answers:
    items = read_items(name)
    texts = [
        " ".join(filter(None, (found[key] for key in keys.split() if key not in UNANSWERABLE)))
        for keys in items["evidence"]
    ]
    answers = [
        f"{text} Beyond that ({left}): {NOT_KNOWN} {who}" if text and left else text or f"{NOT_KNOWN} {who}"
        for text, left, who in zip(texts, items["open"], items["ask"], strict=True)
    ]
    partly = sum(bool(text and left) for text, left in zip(texts, items["open"], strict=True))
    frame = pd.DataFrame({"Item": items["item"], "What is asked": items["asks"], "Evidence": answers})
    return Answers(name, title, Table(name, title, frame), sum(map(bool, texts)) - partly, partly)
