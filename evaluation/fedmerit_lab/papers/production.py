"""Papers whose tables and figures can be made with other sites, and their page.

``OUT/tables`` and ``OUT/figures`` hold the files of every artefact, ``OUT/page.html`` all artefacts with options,
differences to the paper and failures; `fedmerit_lab.papers.study` describes the folders of trainings.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from fedmerit.errors import BadInput, require_known
from fedmerit_data.pages import write_page
from fedmerit_data.tables import write_csv
from fedmerit_evaluation.figures.pages import Drawing, SavedFigure, pictures
from fedmerit_evaluation.figures.tables import Table, write_tables
from fedmerit_evaluation.studies.execution import OnEnd, Workers
from fedmerit_lab.papers import cgsv, cycle, fedave_fedsac, fedce
from fedmerit_lab.papers.artefact import Artefact, Made, Paper
from fedmerit_lab.papers.study import Compared, Need, Study

PAPERS: Mapping[str, Paper] = {
    "fedce": fedce.PAPER,
    "cgsv": cgsv.PAPER,
    "fedave": fedave_fedsac.FEDAVE,
    "fedsac": fedave_fedsac.FEDSAC,
    "cycle": cycle.PAPER,
}


@dataclass(frozen=True)
class Shown:
    """An artefact on the page; ``missing`` is the reason if it could not be made."""

    artefact: Artefact
    tables: Sequence[Table] = ()
    pictures: Sequence[SavedFigure] = ()
    notes: Sequence[str] = ()
    left_out: str = ""  # methods that cannot be trained on these sites, and why
    missing: str = ""


def find_paper(name: str) -> Paper:
    """Return the paper of that name; `BadInput` if there is none."""
    require_known("paper", [name], PAPERS)
    return PAPERS[name]


def chosen(paper: Paper, only: str | None) -> list[Artefact]:
    """Return the artefacts named in ``table1,figure3``, in the paper's order; None: all except those on demand.

    Raises:
        BadInput: one is unknown; the message has the reason if the paper has it.
    """
    if only is None:
        return [artefact for artefact in paper.artefacts if not artefact.on_demand]
    names = [name.strip() for name in only.split(",")]
    there = [artefact.name for artefact in paper.artefacts]
    for name in names:
        if name not in there:
            reasons = [f" ({place}: {why})" for place, why in paper.absent.items() if name in _short(place)]
            raise BadInput(f"--only {name}: unknown{''.join(reasons)}; there are {', '.join(there)}")
    return [artefact for artefact in paper.artefacts if artefact.name in names]


def _short(place: str) -> list[str]:
    """Return "Table 5, Table 6" as "table5", "table6"."""
    return [part.strip().lower().replace(" ", "") for part in place.split(",")]


def list_needs(artefacts: Sequence[Artefact]) -> list[Need]:
    """Return every need once, in the order of the artefacts."""
    return list(dict.fromkeys(need for artefact in artefacts for need in artefact.needs))


def trainings_per_seed(artefacts: Sequence[Artefact], sites: Sequence[str], into: int) -> int:
    """Return the number of trainings of one seed of all artefacts; shared trainings count once."""
    return len({key for need in list_needs(artefacts) for key in need.keys(sites, into)})


def produce(
    paper: Paper,
    artefacts: Sequence[Artefact],
    study: Study,
    workers: Workers,
    *,
    on_begin: Callable[[int], None] = lambda trainings: None,
    on_end: OnEnd = lambda folder, error: None,
) -> tuple[list[Shown], dict[Path, str]]:
    """Execute the missing trainings and make the artefacts in turn; the page is written after each.

    Everything is planned before anything is trained. An artefact that lacks something does not stop the others.

    Args:
        paper: whose artefacts.
        artefacts: some of them.
        study: what was asked for.
        workers: that train.
        on_begin: called with the number of trainings to do.
        on_end: called with every training, and why it failed or None.

    Returns:
        What was made, and the trainings that failed with the reason.

    Raises:
        BadInput: a training cannot be planned; nothing is trained then.
    """
    study.require_same()
    study.require_known([label for need in list_needs(artefacts) for label in need.labels])
    for need in list_needs(artefacts):
        study.prepare(need)
    study.claim()
    on_begin(len({training.folder for need in list_needs(artefacts) for training in study.left(need)}))
    shown: list[Shown] = []
    failed: dict[Path, str] = {}
    for artefact in artefacts:
        for need in artefact.needs:
            study.prepare(need)  # it may have waited for other trainings
            left = [training for training in study.left(need) if training.folder not in failed]
            if left:
                failed |= need.execute(left, workers, on_end)
        shown.append(_shown(artefact, study))
        write(paper, study, shown, [other for other in artefacts if other not in [one.artefact for one in shown]])
    return shown, failed


def _shown(artefact: Artefact, study: Study) -> Shown:
    """Make an artefact and write its files."""
    left_out = _left_out(artefact, study)
    try:
        made: Made = artefact.make(study, artefact)
    except BadInput as error:
        return Shown(artefact, left_out=left_out, missing=str(error))
    write_tables(made.tables, study.out / "tables")
    for drawn in made.drawn:
        write_csv(study.out / "figures" / f"{drawn.name}.csv", drawn.numbers)
    named = {drawn.name: Drawing(drawn.caption, drawn.figure) for drawn in made.drawn}
    drawings = list(pictures(named, study.out / "figures").values())
    return Shown(artefact, made.tables, drawings, made.notes, left_out)


def _left_out(artefact: Artefact, study: Study) -> str:
    """Return a note if methods cannot be trained on these sites, else ""."""
    labels = [label for need in artefact.needs for label in need.labels]
    lacking = list(dict.fromkeys(label for label in labels if not study.can_train(label)))
    if not lacking:
        return ""
    return (
        f"Left out: {', '.join(lacking)}. They need images set aside for the server: prepare the sites with "
        "--server-share 0.1, or name a folder of the server's own with --server-sites."
    )


def write(paper: Paper, study: Study, shown: Sequence[Shown], to_come: Sequence[Artefact] = ()) -> Path:
    """Write ``page.html`` with the artefacts so far."""
    page = study.out / "page.html"
    settings = {
        "sites": f"{len(study.names)}: {', '.join(study.names)} ({study.task}: {', '.join(study.labels)})",
        "rounds": study.rounds,
        "seeds": ", ".join(map(str, study.seeds)),
        "set": ", ".join(f"{name}={value}" for name, value in study.settings.items()) or "none: all defaults",
        "FedMerit": version("fedmerit"),
    }
    asked = list_needs([*(one.artefact for one in shown), *to_come])
    if any(isinstance(need, Compared) and need.partition for need in asked):
        settings["partitioned into"] = f"{study.into} sites, unless an artefact has its own number"
    content = {"paper": paper, "shown": list(shown), "to_come": list(to_come), "settings": settings}
    write_page(page, "fedmerit_lab.papers", "paper.html.j2", **content)
    return page
