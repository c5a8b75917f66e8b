"""The files that `check` writes: a report that may be shared, and a list that stays in the hospital."""

import io
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from fedmerit.files import write_json, write_text
from fedmerit_data.checking.findings import Examination, Finding, Severity
from fedmerit_data.tables import escape_formulas

COLUMNS = ("severity", "kind", "site", "split", "position", "detail", "meaning")
PRIVATE_COLUMNS = ("severity", "kind", "site", "split", "position", "file", "message")
SHARED = ("quality.json", "quality.html", "quality.csv")

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Data quality</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1b1f24; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid #d0d7de; padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }
code { font-size: 13px; overflow-wrap: anywhere; }
.error { color: #a40e26; font-weight: 600; } .warning { color: #7d4e00; } .note { color: #57606a; }
</style>
</head>
<body>
<h1>Data quality</h1>
<p>This page names no file, case or patient: a case is given by its split and its position in it, from 000, as in
results.csv.
The hospital finds the file with <code>fedmerit check SITES --private FILE</code>.</p>
<h2>Sites</h2>
<table>
<tr><th>site</th><th>cases (patients) per split</th><th>arrays as prepared</th><th>errors</th><th>warnings</th>
<th>notes</th><th>digest</th></tr>
{% for site in sites %}<tr><td>{{ site.name }}</td>
<td>{% for split, cases in site.cases.items() if cases %}{{ split }} {{ cases }} ({{ site.patients[split] }})
{%- if not loop.last %}, {% endif %}{% endfor %}</td>
<td>{{ "yes" if site.unchanged else "no" }}</td><td>{{ site.errors }}</td><td>{{ site.warnings }}</td>
<td>{{ site.notes }}</td><td>{{ site.spoken }}<br><code>{{ site.digest }}</code></td></tr>
{% endfor %}</table>
<p>Arrays are as prepared if all have the checksums in site.json. The digest covers site.json and datalist.json as
well: equal digests mean equal sites, byte for byte.</p>
<h2>Findings</h2>
{% if findings %}<table>
<tr>{% for column in columns %}<th>{{ column }}</th>{% endfor %}</tr>
{% for row in findings %}<tr>{% for column in columns %}<td class="{{ row[column] if column == 'severity' }}">
{{- row[column] }}</td>{% endfor %}</tr>
{% endfor %}</table>{% else %}<p>None.</p>{% endif %}
<p>FedMerit {{ fedmerit_version }}</p>
</body>
</html>
"""


def shareable_report(examination: Examination) -> dict[str, Any]:
    """The report to share: sites with counts and digests, findings without a name of a file, case or patient."""
    return {
        "fedmerit_version": version("fedmerit"),
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
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(PAGE)
    write_text(html, page.render(report, columns=COLUMNS))
    write_text(csv, _csv(report["findings"], COLUMNS))
    return [json, html, csv]


def write_private(findings: Sequence[Finding], file: Path) -> None:
    """Write the findings with their files and messages, which name cases and patients, as CSV."""
    rows = [
        finding.shareable | {"file": str(finding.file.absolute()), "message": finding.message} for finding in findings
    ]
    write_text(file, _csv(rows, PRIVATE_COLUMNS))


def _csv(rows: Sequence[dict[str, str]], columns: Sequence[str]) -> str:
    text = io.StringIO()
    escape_formulas(pd.DataFrame(rows, columns=list(columns))).to_csv(text, index=False)
    return text.getvalue()
