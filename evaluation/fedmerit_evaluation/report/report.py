"""Write the report on finished runs, for all hospitals or for one: a page, with tables and figures beside it.

Its first screen has four answers: each a question, a state in a word, one sentence, and what limits it. States come
from the model's verdicts, which are tested once; no sentence tests anything again.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path

import pandas as pd

from fedmerit.errors import BadInput
from fedmerit.files import read_bytes
from fedmerit_data.pages import write_page
from fedmerit_evaluation.figures.pages import SavedFigure, pictures
from fedmerit_evaluation.figures.tables import Table, write_tables
from fedmerit_evaluation.report.assembly import align_local_only, build_model, honest_runs, model_of_results
from fedmerit_evaluation.report.groups import dice_by_group
from fedmerit_evaluation.report.model import FAILURE, Condition, Hospital, ReportModel
from fedmerit_evaluation.report.overlays import overlay_pictures
from fedmerit_evaluation.report.pictures import FIGURES, Pictures, draw_figures, draw_pictures
from fedmerit_evaluation.report.redaction import MANY_OTHERS, MIN_OTHERS, hide_image_shares, redact
from fedmerit_evaluation.report.tables import report_tables, settings_tables
from fedmerit_evaluation.report.words import join_words, p_text, say
from fedmerit_evaluation.results.runs import Run, combine_results, open_runs
from fedmerit_evaluation.results.views import STANDALONE
from fedmerit_evaluation.statistics.family import Question
from fedmerit_evaluation.statistics.inference import Comparison

MOST_PAGE = 1 << 30  # bytes of an earlier report


def write_report(
    runs: Sequence[Path],
    out: Path | None = None,
    *,
    site: str | None = None,
    sites: Path | None = None,
    images: bool = True,
    ground_truth: Path | None = None,
    failure: float = FAILURE,
    verify: bool = False,
) -> Path:
    """Write report.html of one run or of several compared, with tables and figures beside it.

    The report for one hospital holds no other's name, number of images or image, nor numbers that reveal another's: see
    `fedmerit_evaluation.report.redaction`.

    Args:
        runs: run folders, on the same task and sites.
        out: the file to write. The default is report.html in the run's folder, or in the runs' common parent; for one
            hospital in ``for-NAME`` there.
        site: the hospital that the report is for; None: all.
        sites: the prepared site folders; default those of the first run, if they are on this machine.
        images: whether to show test images with outlines. Such a report must not leave the hospital.
        ground_truth: folder of `fedmerit value leave-one-out` or `fedmerit value shapley`, on the same sites.
        failure: the Dice of a patient below which the segmentation counts as failed.
        verify: whether the runs are verified, by `verify_runs`, before anything is written; the page says so.

    Returns:
        The path of the HTML file.

    Raises:
        BadInput: no such hospital, a run is unusable or empty, the runs do not belong together, the ground truth is
            not of them, or something in a run that is verified contradicts its ledger.
    """
    opened = align_local_only(open_runs(runs))
    if site is not None and site not in opened[0].sites:
        raise BadInput(f"--site {site}: no site of {opened[0].path}; its sites are {', '.join(opened[0].sites)}")
    page = _default_page(opened, site) if out is None else Path(out)
    files = page.parent if site is None else page.parent / f"{page.stem}-files"
    model = (
        build_model(opened, ground_truth, failure)
        if site is None
        else build_site_model(opened, site, ground_truth, failure)
    )
    model = replace(model, groups=dice_by_group(honest_runs(opened), model.primary, sites, site or ""))
    tables = report_tables(model)
    if verify:
        tables["verification"] = verify_runs(opened, site)
    _remove_earlier(page, files, is_own=site is not None)
    agreements = [table for one in model.agreements for table in (one.values_table, one.methods_table)]
    write_tables([*tables.values(), *agreements], files / "tables")
    drawn = pictures(draw_figures(model), files / "figures")
    shown = honest_runs(opened)
    shown = [run for run in shown if run.label in (model.primary, STANDALONE)] if model.primary else shown
    shown.sort(key=lambda run: run.label != model.primary)
    worst, why_none = overlay_pictures(shown, sites, files / "figures" / "overlays.png", images=images, only=site)
    _write(page, model, tables, drawn, draw_pictures(model, worst), why_none)
    return page


def conclude(runs: Sequence[Run]) -> list[str]:
    """Return the report's sentences on the mean gain, the best method and failed patients; none without test Dice."""
    runs = align_local_only(runs)
    if not runs or not any(run.tested for run in runs):
        return []
    model = build_model(runs)
    limit = "" if model.shown_gain.compare(0) else say("limit_of_benefit", model)
    return [f"{say('answer_benefit', model)} {limit}".strip(), *_comparisons(model)]


def build_site_model(
    runs: Sequence[Run], site: str, ground_truth: Path | None = None, failure: float = FAILURE
) -> ReportModel:
    """Return the model of the report for one hospital; the other arguments are those of `build_model`."""
    # A folder may be named after a hospital: labels that hold its name get a number instead.
    numbered = [
        replace(run, label=run.label.replace(f" [{run.path.name}]", f" [{number}]"))
        for number, run in enumerate(runs, start=1)
    ]
    others = len(runs[0].sites) - 1
    everything, left_out = hide_image_shares(combine_results(numbered), others)
    results, _ = hide_image_shares(combine_results(honest_runs(numbered)), others)
    return redact(model_of_results(numbered, results, everything, ground_truth, failure), site, left_out)


def _write(
    page: Path,
    model: ReportModel,
    tables: dict[str, Table],
    figures: dict[str, SavedFigure],
    drawn: Pictures,
    why_none: str,
) -> None:
    """Render the page of a model; ``why_none`` says why no test image is shown, "" if some are."""
    settings, differing = settings_tables(model)
    write_page(
        page,
        "fedmerit_evaluation.report",
        "report.html.j2",
        model=model,
        say=say,
        p_text=p_text,
        answers=answer(model),
        comparisons=list(_comparisons(model)),
        agreements=list(_agreements(model)),
        tables=tables,
        figures=figures,
        drawn=drawn,
        why_no_images=why_none,
        settings_shared=settings,
        differing=differing,
        fewest=MIN_OTHERS,
        many=MANY_OTHERS,
    )


def _comparisons(model: ReportModel) -> Iterator[str]:
    """Yield what is known of the differences of methods."""
    if model.comparison is not None and len(model.comparison[0]) > 1:
        yield from filter(None, (say("lead", *model.leads), say("failures", model)))


def _agreements(model: ReportModel) -> Iterator[str]:
    """Yield what is known of the agreement with each ground truth."""
    for one in model.agreements:
        yield say("values", one, model.verdicts_on(Question.VALUE))
        if model.primary in one.ranks:
            yield say("agreement", one, model.primary, model.patients, model.verdicts_on(Question.AGREEMENT))


def _default_page(runs: Sequence[Run], site: str | None) -> Path:
    """Return report.html in the run's folder, or in the runs' common parent."""
    folder = runs[0].path
    if len(runs) > 1:
        parents = [run.path.resolve().parent for run in runs]
        candidates = (parents[0], *parents[0].parents)
        folder = next(path for path in candidates if all(one.is_relative_to(path) for one in parents))
    return folder / ("" if site is None else re.sub(r"[^\w.-]", "_", f"for-{site}")) / "report.html"


def _remove_earlier(page: Path, files: Path, *, is_own: bool) -> None:
    """Remove the tables and figures of an earlier report in the same place.

    Args:
        page: the page.
        files: the folder of tables and figures.
        is_own: whether the folder holds nothing else. Otherwise only tables that the page holds are removed, and
            figures by their names.

    Raises:
        BadInput: a folder is a symbolic link: others may have put it there.
    """
    for folder in (files, files / "tables", files / "figures"):
        if folder != page.parent and folder.is_symlink():
            raise BadInput(f"{folder}: is a symbolic link, through which no report is written; name another --out")
    earlier = read_bytes(page, MOST_PAGE).decode(errors="replace") if page.is_file() and not is_own else ""
    tables = {"*"} if is_own else set(re.findall(r'download="([\w.+-]+)\.csv"', earlier))
    for pattern in [*(f"tables/{name}.{kind}" for name in tables for kind in ("csv", "tex")),
                    *(f"figures/{name}.png" for name in FIGURES)]:  # fmt: skip
        for file in files.glob(pattern):
            file.unlink()


STATES = {  # by comparison with local training: the kind of the badge, its word
    Comparison.BETTER: ("yes", "shown"),
    Comparison.WORSE: ("no", "harm shown"),
    Comparison.TIE: ("open", "not shown"),
    Comparison.UNJUDGED: ("off", "not tested"),
    Comparison.UNKNOWN: ("off", "not known"),
}
NO, NOT_SHOWN, NOT_TESTED = ("no", "no"), ("open", "not shown"), ("off", "not tested")
NEEDED = {  # of payment: by what it is, its badge if it is met, and that of each condition that is not
    "The method estimates contributions": (("yes", "yes"), {"no_estimate": NO}),
    "Hospitals differ by the estimate": (
        ("yes", "shown"),
        {"no_order": NOT_SHOWN, "one_seed": NOT_TESTED, "one_split": NOT_TESTED},
    ),
    "The estimate agrees with retraining": (
        ("yes", "shown"),
        {"disagreement": NO, "no_agreement": NOT_SHOWN, "no_ground_truth": NOT_TESTED, "chance": NOT_TESTED},
    ),
}


@dataclass(frozen=True)
class Needed:
    """A condition of payment by the method's estimate."""

    text: str
    kind: str  # of the badge
    state: str  # in the badge
    reason: str = ""  # why it is not met


@dataclass(frozen=True)
class Answer:
    """An answer of the first screen."""

    name: str
    question: str
    kind: str  # of the badge: open, no, yes, flag, warn or off
    state: str  # in the badge
    sentence: str
    foot: str = ""
    needed: Sequence[Needed] = ()


def answer(model: ReportModel) -> list[Answer]:
    """Return the answers of a report in the order of the page."""
    return [
        _benefit(model),
        _contribution(model),
        _free_riders(model),
        _others(model) if model.site else _payment(model),
    ]


def _benefit(model: ReportModel) -> Answer:
    kind, state = STATES[model.benefit] if model.primary else ("off", "not known")
    if part := model.shown_in_part:
        kind, word = STATES[part]
        state = f"{word} in part"
    texts = (say("answer_benefit", model), say("limit_of_benefit", model))
    return Answer("benefit", "Did it help?", kind, state, *texts)


def _contribution(model: ReportModel) -> Answer:
    question = "What did it contribute?" if model.site else "Who contributed?"
    foot = say("basis_of_shares", model)
    known = [one for one in model.hospitals if not isnan(one.share.mean)]
    if not known or model.counts_images:
        return Answer("contribution", question, "off", "not estimated", say("no_shares", model), foot)
    sentence = say("answer_shares", model, *(list(_names(known, sign)) for sign in (1, -1)))
    if reason := known[0].share_untested:
        return Answer("contribution", question, "off", "not tested", say("untested_shares", model, reason), foot)
    differ = any(one.share_sign for one in known)
    return Answer("contribution", question, *(("yes", "shown") if differ else ("open", "not shown")), sentence, foot)


def _names(hospitals: Sequence[Hospital], sign: int) -> Iterator[str]:
    return (one.name for one in hospitals if one.share_sign == sign)


def _free_riders(model: ReportModel) -> Answer:
    question = "Was it flagged?" if model.site else "Does anyone free-ride?"
    flagged = [one.name for one in model.hospitals if one.needs_review or one.verdicts]
    is_guarded = model.flags.verdicts is not None
    if flagged:
        kind, state = "flag", "flagged" if model.site else f"{len(flagged)} flagged"
    elif is_guarded:
        kind, state = "open", "not flagged" if model.site else "nobody flagged"
    else:
        kind, state = "off", "not checked"
    foot = say("limits_of_guard" if is_guarded else "without_guard")
    return Answer("free-riders", question, kind, state, say("answer_flags", model, flagged), foot)


def _payment(model: ReportModel) -> Answer:
    question = "Can anyone be paid by it?"
    if model.primary is None:
        return Answer("payment", question, "off", "not known", say("answer_benefit", model))
    unmet = {text: [one for one in model.unmet if one.code in badges] for text, (_, badges) in NEEDED.items()}
    stops = any(one.code == "no_estimate" for one in model.unmet)  # the others are not judged
    needed = [_needed(text, conditions) for text, conditions in unmet.items() if conditions or not stops]
    kind, state = ("yes", "supported") if not model.unmet else ("no", "no")
    without = next((one.reference for one in model.unmet if one.code == "no_estimate"), "")
    sentence = say("answer_payment", *(not conditions for conditions in unmet.values()), without)
    return Answer("payment", question, kind, state, sentence, needed=needed)


def _needed(text: str, unmet: Sequence[Condition]) -> Needed:
    """Return a condition of payment with the first badge of those that stand against it."""
    met, badges = NEEDED[text]
    against = [badge for code, badge in badges.items() if code in {one.code for one in unmet}]
    reasons = join_words(dict.fromkeys(say("reason", one) for one in unmet))
    return Needed(text, *(against[0] if against else met), reasons)


def _others(model: ReportModel) -> Answer:
    state = "shown in part" if not model.others.empty else "not shown"
    return Answer("others", "How does it compare?", "off", state, say("answer_others", model))


WORD = "Rests on the server's word [weight]"


def verify_runs(runs: Sequence[Run], site: str | None = None) -> Table:
    """Verify runs, each with the sites' logs in its folder: `fedmerit verify` with all of them.

    Args:
        runs: opened runs.
        site: the hospital that the report is for: no labels, which may hold names, no weights of others. None: all.

    Returns:
        A table with a row for each run: Method, Seed, Ledger signed by, Logs of sites, and Rests on the server's word,
        the largest change of a weight that what is not shown could have caused.

    Raises:
        Contradiction: files of a run contradict each other.
        BadInput: a run has no ledger, or a file cannot be read.
    """
    from fedmerit.evidence.verification.run import verify_run  # loads PyTorch

    rows = []
    for run in runs:
        logs = sorted((run.path / "sites").glob("*/site_log.jsonl"))
        found = verify_run(run.path, logs)
        rows.append(
            {
                "Method": run.label if site is None else run.info["method"],
                "Seed": run.seed,
                "Ledger signed by": found.signer or "nobody",
                "Logs of sites": f"{len(logs)} of {len(run.sites)}",
                WORD: found.moved.weight,
            }
        )
    caption = "Verification of the run folders, with the logs of sites in them, as this page was written"
    return Table("verification", caption, pd.DataFrame(rows).drop(columns=[WORD] if site else []), decimals=3)
