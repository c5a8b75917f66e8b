"""A payout's statement: payout.json, which anybody with the runs recomputes, payout.html, and a valuation card."""

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedmerit.errors import BadInput, printable
from fedmerit.evidence.ledger import read_verified_records
from fedmerit.evidence.signatures import Signer, Trust, is_signed_by_any, parse_certificates, subject
from fedmerit.evidence.verification.chains import read_site_log
from fedmerit.evidence.verification.findings import Contradiction
from fedmerit.evidence.verification.run import verify_run
from fedmerit.files import parse_json, read_bytes, record_hash, write_json
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.version import code_commit, package_version
from fedmerit_data.pages import write_page
from fedmerit_dossier import evidence
from fedmerit_dossier.evidence import DossierSources
from fedmerit_evaluation.figures.tables import Table
from fedmerit_evaluation.results.runs import Run, label_runs, open_runs
from fedmerit_evaluation.valuation.estimators import parse
from fedmerit_evaluation.valuation.observed_run import DRAWS, prepared_sites, sites_sharing_images
from fedmerit_evaluation.valuation.payout import EQUAL, IN_PROPORTION, MOST_BUDGET, MOST_SLOPE, Payout, Rule, pay
from fedmerit_evaluation.valuation.valued_runs import value_runs

PAYOUT = "payout.json"
CARD = {  # what a payout rests on
    "task": evidence.task,
    "patients and slices": evidence.counts,
    "preparation": evidence.preparation,
    "splits": evidence.splits,
    "left out": evidence.left_out,
    "method": evidence.method,
    "training": evidence.training,
    "seeds": evidence.seeds,
    "raters": evidence.raters,
    "software": evidence.software,
    "audit trail": evidence.ledger,
}
OF_SITES = ("patients and slices", "preparation", "splits", "left out")  # more is known where the site folders are
SENSITIVITY = "sensitivity to preparation"
NOT_MEASURED = "not measured; prepare the images another way, train and value again to see what it moves"
MOST_DRAWS = 10**5
FLOATS = 1e-6  # relative difference of two machines
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

log = logging.getLogger(__name__)  # prints warnings on standard error by default


class Hospital(BaseModel):
    """The amount that one hospital gets, and the value behind it."""

    model_config = STRICT

    value: float  # in the estimator's unit; Dice is a fraction
    amount: int
    in_proportion: int  # the amount if the values had no error
    low: float | None  # of the 95 % confidence interval of the amount; None: nothing was resampled
    high: float | None
    band: int  # of hospitals that do not differ significantly: a test, which changes no amount
    repeated: float = 1.0  # share of rounds whose drawn steps an auditor repeated; 1 if the rule does not ask


class Statement(BaseModel):
    """The content of payout.json, bounded: it may come from anybody."""

    model_config = STRICT

    version: str = Field(max_length=100)
    budget: int = Field(ge=1, le=MOST_BUDGET)
    floor: float = Field(ge=0, le=1)
    cap: float | None = Field(ge=1)  # None: none
    slope: float = Field(ge=0, le=MOST_SLOPE)  # of the shares by retraining on those of the estimator
    estimator: str = Field(max_length=300)
    compared: list[str] = Field(max_length=50)  # other estimators
    draws: int = Field(ge=1, le=MOST_DRAWS)
    audited: bool = False  # whether shares are multiplied by the part of rounds whose drawn steps an auditor repeated
    runs: dict[str, str] = Field(min_length=1, max_length=1000)  # folder: hash of its ledger's last record
    reliability: float = Field(ge=0, le=1)  # of the values: how far shares are from equal ones, times the slope
    hospitals: dict[str, Hospital] = Field(max_length=10**4)
    sentence: str = Field(max_length=1 << 18)  # that of audits names all hospitals
    alternatives: dict[str, dict[str, int]]
    card: dict[str, str]
    signature: str | None = None  # of `digest`
    certificate: str | None = Field(default=None, max_length=1 << 16)

    @property
    def rule(self) -> Rule:
        """The agreed rule."""
        return Rule(self.budget, self.floor, float("inf") if self.cap is None else self.cap, self.slope)

    @property
    def digest(self) -> str:
        """The digest of all but signature and certificate."""
        return record_hash(self.model_dump(exclude={"signature", "certificate"}))


def write_payout(
    runs: Sequence[Path],
    specs: Sequence[str],
    rule: Rule,
    out: Path,
    draws: int = DRAWS,
    signer: Signer | None = None,
    auditors: Trust | None = None,
) -> tuple[Payout, list[Table], Path]:
    """Write payout.json and payout.html of finished runs into ``out``.

    Args:
        runs: folders side by side, of one method, which differ in their seeds or folds.
        specs: of estimators; the first decides, the others are compared.
        draws: of patients and rounds, for the intervals.
        signer: with the key of who states it; None: not signed.
        auditors: the authority whose auditors count: shares are multiplied by the part of rounds whose drawn steps they
            repeated; None: they are not.

    Returns:
        The payout, its tables, and the page.

    Raises:
        BadInput: as `value_runs`; or there are too many draws, or the runs are not side by side, or something in one
            contradicts its ledger.
    """
    if draws > MOST_DRAWS:
        raise BadInput(f"--draws {draws}: expected at most {MOST_DRAWS}")
    if len({run.resolve().parent for run in runs}) > 1:
        raise BadInput(f"{', '.join(map(str, runs))}: expected run folders side by side, so that others find them")
    paid = pay(value_runs(runs, specs, draws, auditors=auditors), specs[0], rule)
    statement = _statement(runs, specs, rule, draws, paid)
    if signer:
        pem = signer.certificate.public_bytes(Encoding.PEM).decode()
        statement = statement.model_copy(update={"signature": signer.sign(statement.digest), "certificate": pem})
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / PAYOUT, statement.model_dump())
    tables = payout_tables(paid)
    page = out / "payout.html"
    write_page(page, "fedmerit_dossier", "payout.html.j2", statement=statement, tables=tables)
    return paid, tables, page


def divide_logs(file: Path, run: Path, site_logs: Iterable[Path]) -> dict[Path, list[Path]]:
    """Return by run of a payout the sites' logs that belong to it: those that name its plan.

    A log that names the plan of none, or no plan, or that cannot be read, is compared with every run: the server may
    have given the site another plan than the run folder has.

    Args:
        file: payout.json.
        run: a run folder that it names; the others lie beside it.
        site_logs: logs of sites.

    Raises:
        Contradiction: the file is no payout.
        BadInput: the file or a run is missing.
    """
    folders = _run_folders(file, _read_statement(file), run)
    digests = dict[Path, str]()
    divided: dict[Path, list[Path]] = {folder: [] for folder in folders}
    for folder in folders:
        with suppress(BadInput):  # the verification of the run reports it, and of the log
            digests[folder] = record_hash(read_run(folder)["plan"])
    for path in site_logs:
        plans = set[str | None]()
        with suppress(BadInput):
            plans |= {entry.plan for entry in read_site_log(path).entries if entry.plan}
        for folder in [one for one in folders if digests.get(one) in plans] or folders:
            divided[folder].append(path)
    return divided


def verify_payout(
    file: Path,
    run: Path,
    trust: Trust | None = None,
    site_logs: Sequence[Path] = (),
    on_question: Callable[[str], object] = lambda question: None,
) -> str:
    """Recompute a payout from its runs, which lie beside ``run``, a verified one; the others are verified here.

    Rule, estimators, draws and version are taken as stated. So are, with a warning, parts of the card that the runs do
    not tell: free text, and what only the site folders hold if these are not here.

    Args:
        file: payout.json.
        run: a run folder that it names.
        trust: whose signatures count.
        site_logs: logs of sites, of any of its runs.
        on_question: called with what is not shown of another run.

    Returns:
        Who signed it; "" if nobody did.

    Raises:
        Contradiction: a run contradicts itself or a log, or anything is not as recomputed, or signed by a stranger.
        BadInput: a run is missing, or an option is; or the statement differs, and sites with the same images are not
            known.
    """
    stated = _read_statement(file)
    if stated.audited and trust is None:
        raise BadInput(f"{file}: its shares rest on auditors' statements; give --certificate, whose auditors count")
    folders, divided = _run_folders(file, stated, run), divide_logs(file, run, site_logs)
    signed = _signed_by(file, stated, trust)
    for folder in folders:
        if folder != run.resolve():
            for question in verify_run(folder, divided[folder], trust).unproven:
                on_question(f"{folder.name}: {question}")
    specs = [stated.estimator, *stated.compared]
    auditors = trust if stated.audited else None
    paid = pay(value_runs(folders, specs, stated.draws, auditors=auditors), specs[0], stated.rule)
    content, outcome = stated.model_dump(), _outcome(folders, paid)
    outcome["card"], open_to = _recompute_card(stated.card, label_runs(open_runs(folders)))
    if found := _difference({name: content[name] for name in outcome}, outcome):
        other = "" if stated.version == _version() else f"; it is of FedMerit {printable(stated.version)}"
        words = f"states {_short(found.stated)}; recomputed from the runs: {_short(found.again)}{other}"
        words = f"{printable(found.where)[:300]}: {words}"
        shares = any(getattr(parse(spec), "copies", "") == "share" for spec in specs)
        if shares and not all(sites_sharing_images(folder, read_run(folder)) for folder in folders):
            raise BadInput(
                f"{file}: {words}. Which sites hold the same images is not known here: no ledger of a run without the "
                "guard says it; verify where the site folders are"
            )
        raise Contradiction("payout", file, found=words)
    if open_to:
        log.warning("%s: not recomputed, as stated: card: %s", file, printable(", ".join(open_to))[:300])
    return signed


def _read_statement(file: Path) -> Statement:
    content = read_bytes(file)
    try:
        return Statement.model_validate(parse_json(content))
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except ValueError as error:
        why = f"not readable as JSON ({error})"
    raise Contradiction("payout", file, found=f"not a payout: {why}")


def _run_folders(file: Path, stated: Statement, run: Path) -> list[Path]:
    """Return the folders of all runs of a payout, of which ``run`` is one, and the others lie beside it."""
    if run.resolve().name not in stated.runs:
        raise BadInput(f"{file}: is not about {run.resolve().name}, but {printable(', '.join(stated.runs))}")
    return [_beside(run, name, file) for name in stated.runs]


def payout_tables(paid: Payout) -> list[Table]:
    """Return the tables of amounts by hospital, and of what other assumptions give."""
    sites = paid.ranking.sites
    frame = pd.DataFrame(
        {
            "Site": sites,
            "Value": [f"{value:.3g}" for value in paid.ranking.value],
            "Amount": paid.amounts.astype(float),
            "In proportion": paid.alternatives[IN_PROPORTION].astype(float),
            "Band (test)": paid.band.astype(str),
            **({} if paid.repeated is None else {"Rounds repeated [%]": 100 * paid.repeated}),
        }
    )
    low, high = (pd.DataFrame({"Amount": ends}) for ends in (paid.low, paid.high))
    equal = [name for name, amounts in paid.alternatives.items() if np.array_equal(amounts, paid.alternatives[EQUAL])]
    moved = [
        {"Assumption": f"{name}: equal" if name in equal and name != EQUAL else name,
         **dict(zip(sites, amounts.astype(float), strict=True)),
         "Largest change": float(np.abs(amounts - paid.amounts).max())}
        for name, amounts in paid.alternatives.items()
    ]  # fmt: skip
    caption = (
        f"Amounts by {paid.spec}, with 95 % confidence intervals given the reliability {paid.reliability:.2f}; beside "
        "them those in proportion to values, and bands of hospitals that do not differ significantly, a test that "
        "changes no amount"
    )
    return [
        Table("payout", caption, frame, low=low, high=high, decimals=0),
        Table("payout-assumptions", "Amounts under other assumptions", pd.DataFrame(moved), decimals=0),
    ]


def _statement(runs: Sequence[Path], specs: Sequence[str], rule: Rule, draws: int, paid: Payout) -> Statement:
    opened = label_runs(open_runs(list(runs)))
    return Statement(
        version=_version(),
        budget=rule.budget,
        floor=float(rule.floor),
        cap=None if np.isinf(rule.cap) else float(rule.cap),
        slope=float(rule.slope),
        estimator=specs[0],
        compared=list(specs[1:]),
        draws=draws,
        audited=paid.repeated is not None,
        **_outcome(runs, paid),
        card=_card(opened, _site_folders(opened)),
    )


def _version() -> str:
    return f"{package_version()} {code_commit()}".strip()


def _site_folders(runs: Sequence[Run]) -> list[SiteFolder]:
    """Return the site folders of the first run; none if any is not here, or not as the run had it."""
    try:
        return prepared_sites(runs[0].path, runs[0].info)
    except BadInput:
        return []


def _card(runs: Sequence[Run], folders: Sequence[SiteFolder]) -> dict[str, str]:
    return _tell(CARD, runs, folders) | {SENSITIVITY: NOT_MEASURED}


def _tell(names: Iterable[str], runs: Sequence[Run], folders: Sequence[SiteFolder]) -> dict[str, str]:
    """Return the named parts of `CARD` that are known."""
    texts = {name: CARD[name](DossierSources(runs, folders)) for name in names}
    return {name: text for name, text in texts.items() if text}


def _recompute_card(stated: Mapping[str, str], runs: Sequence[Run]) -> tuple[dict[str, str], list[str]]:
    """Return what a stated card should be, and the names of its parts that are as stated, since no run tells them."""
    folders = _site_folders(runs)
    whole = _card(runs, folders)
    without = {name: text for name, text in whole.items() if name not in OF_SITES} | _tell(OF_SITES, runs, [])
    known = {*CARD, SENSITIVITY} - ({*OF_SITES} if not folders else set())
    open_to = [name for name, text in stated.items() if name not in known and without.get(name) != text]
    parts = {*without, *stated}  # who had no site folders could not state the others
    card = {name: text for name, text in whole.items() if name in parts}
    card |= {name: text for name, text in without.items() if stated.get(name) == text}
    return card | {name: stated[name] for name in open_to}, open_to


def _outcome(runs: Sequence[Path], paid: Payout) -> dict[str, Any]:
    """Return what follows from runs and rule, and is recomputed."""
    sites = paid.ranking.sites
    return {
        "runs": {run.resolve().name: _ledger_head(run) for run in runs},
        "reliability": float(paid.reliability),
        "hospitals": {
            site: {
                "value": float(paid.ranking.value[place]),
                "amount": int(paid.amounts[place]),
                "in_proportion": int(paid.alternatives[IN_PROPORTION][place]),
                "low": _finite(paid.low[place]),
                "high": _finite(paid.high[place]),
                "band": int(paid.band[place]),
                "repeated": 1.0 if paid.repeated is None else float(paid.repeated[place]),
            }
            for place, site in enumerate(sites)
        },
        "sentence": paid.sentence,
        "alternatives": {name: _by_site(sites, amounts) for name, amounts in paid.alternatives.items()},
    }


def _by_site(sites: Sequence[str], numbers: Any) -> dict[str, int]:
    return {site: int(number) for site, number in zip(sites, numbers, strict=True)}


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


class _Difference(NamedTuple):
    where: str
    stated: object
    again: object


def _difference(stated: object, again: object, where: str = "") -> _Difference | None:
    """Return the first part that differs; floats within `FLOATS` are the same."""
    if isinstance(stated, Mapping) and isinstance(again, Mapping):
        for name in dict.fromkeys([*again, *stated]):
            inner = f"{where}.{name}" if where else str(name)
            if found := _difference(stated.get(name), again.get(name), inner):
                return found
        return None
    if isinstance(stated, float) and isinstance(again, float):
        same = math.isclose(stated, again, rel_tol=FLOATS, abs_tol=1e-12)
    else:
        same = stated == again
    return None if same else _Difference(where, stated, again)


def _ledger_head(run: Path) -> str:
    return str(read_verified_records(run / "ledger.jsonl")[-1]["hash"])


def _beside(run: Path, name: str, file: Path) -> Path:
    found = run.resolve().parent / name
    if Path(name).name != name or name in (".", "..") or not found.is_dir():
        raise BadInput(f"{file}: run {printable(name)!r:.80}: expected a folder beside {run}")
    return found


def _signed_by(file: Path, stated: Statement, trust: Trust | None) -> str:
    if stated.signature is None or stated.certificate is None:
        if trust is not None:
            raise Contradiction("payout", file, found="not signed; expected a signature, since --certificate is given")
        return ""
    certificate = parse_certificates(stated.certificate.encode(), str(file))[0]
    if not is_signed_by_any([certificate], stated.digest, stated.signature):
        raise Contradiction("payout", file, found="the signature is not of this content")
    if trust is not None:
        try:
            certificate.verify_directly_issued_by(trust.anchor)
        except (ValueError, TypeError, InvalidSignature):
            signer = f"signed by {subject(certificate)}, not issued by {trust.path}"
            raise Contradiction("payout", file, found=signer) from None
    return subject(certificate)


def _short(content: object) -> str:
    return printable(json.dumps(content))[:300]
