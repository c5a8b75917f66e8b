"""The files that `fedmerit_data.check` writes: a report that may be shared, and a list that stays in the hospital."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedmerit.files import write_json, write_text
from fedmerit.version import package_version
from fedmerit_data.checking.findings import Examination, Finding, Severity
from fedmerit_data.pages import write_page
from fedmerit_data.tables import csv_text

COLUMNS = ("severity", "kind", "site", "split", "position", "detail", "meaning")
PRIVATE_COLUMNS = ("severity", "kind", "site", "split", "position", "file", "message")
SHARED = ("quality.json", "quality.html", "quality.csv")


def shareable_report(examination: Examination) -> dict[str, Any]:
    """Return the report to share: sites with counts and digests, findings without a name of a file, case or patient."""
    return {
        "fedmerit_version": package_version(),
        "sites": [
            {
                "name": site.name,
                "cases": dict(site.cases),
                "patients": dict(site.patients),
                "unchanged": site.unchanged,
                "digest": site.digest,
                "spoken": site.short_digest,
                **{
                    f"{severity}s": sum(finding.site == site.name for finding in examination.of(severity))
                    for severity in Severity
                },
            }
            for site in examination.sites
        ],
        "findings": [finding.shareable for finding in examination.findings],
    }


def write_shareable(examination: Examination, folder: Path) -> list[Path]:
    """Write quality.json, quality.html and quality.csv into ``folder``; existing ones are replaced."""
    report = shareable_report(examination)
    json, html, csv = (folder / name for name in SHARED)
    write_json(json, report)
    rows = _group_cases(report["findings"])
    write_page(html, "fedmerit_data", "quality.html.j2", **report | {"findings": rows})
    write_text(csv, _csv(report["findings"], COLUMNS))
    return [json, html, csv]


def _group_cases(findings: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return findings as rows of the page: one for all cases of a site that have the same finding, with the cases."""
    rows: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for finding in findings:
        same = tuple(finding[name] for name in ("severity", "kind", "site", "detail", "meaning"))
        rows.setdefault(same, {}).setdefault(finding["split"], []).append(finding["position"])
    return [
        dict(zip(("severity", "kind", "site", "detail", "meaning"), same, strict=True))
        | {"cases": "; ".join(f"{split} {', '.join(positions)}".strip() for split, positions in splits.items())}
        for same, splits in rows.items()
    ]


def write_private(findings: Sequence[Finding], file: Path) -> None:
    """Write the findings with their files and messages, which name cases and patients, as CSV."""
    rows = [
        finding.shareable | {"file": str(finding.file.absolute()), "message": finding.message} for finding in findings
    ]
    write_text(file, _csv(rows, PRIVATE_COLUMNS))


def _csv(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> str:
    return csv_text(pd.DataFrame(rows, columns=list(columns)))
