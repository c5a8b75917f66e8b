"""Evidence of what is segmented, where images come from, and what was done to them."""

from collections.abc import Callable

import pandas as pd

from evaluation.dossier.file import File
from evaluation.report.words import listed
from fedmerit.training.data import SPLITS, SiteFolder


def task(file: File) -> str:
    """What is segmented."""
    labels = listed([str(label) for label in file.info["labels"]])
    return f"Segmentation (task {file.info['task']}): of each image a mask of {labels}, compared with a reference mask."


def centres(file: File) -> str:
    """Who took part."""
    return f"{len(file.run.sites)} sites train together: {', '.join(file.run.sites)}."


def sources(file: File) -> str:
    """Of site.json."""
    return _by_site(file, lambda site: f"{site.info.get('source', '')}".strip())


def licences(file: File) -> str:
    """Of site.json."""
    return _by_site(file, lambda site: str(site.info.get("licence") or ""))


def left_out(file: File) -> str:
    """Files left out, with the reasons."""

    def told(site: SiteFolder) -> str:
        reasons = pd.Series([str(one["reason"]) for one in site.info["left_out"]], dtype=object).value_counts()
        text = "; ".join(f"{_counted(int(count), 'file')}: {reason}" for reason, count in reasons.items())
        return f"{text or 'no file left out'}, {_counted(site.info.get('unreadable_cases', 0), 'unreadable case')}"

    return _by_site(file, told)


def preparation(file: File) -> str:
    """What was done to images."""
    planned = file.info.get("plan", {}).get("preprocessing", {}).get("size")  # all that a deployment's run.json has
    size = file.info.get("image_size") or planned or (file.folders[0].image_size if file.folders else None)
    if size is None:
        return ""
    text = f"Slices of {size[0]} x {size[1]} pixels"
    if file.folders and (spacing := file.folders[0].info.get("spacing")):
        text += f" of {' x '.join(f'{side:g}' for side in spacing)} mm"
    kept = (
        {name: file.folders[0].info.get(name) for name in ("field_of_view", "crop", "slices")} if file.folders else {}
    )
    told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in kept.items() if value)
    return f"{text}{'; ' if told else ''}{told}."


def splits(file: File) -> str:
    """How cases were split."""
    told = _by_site(
        file,
        lambda site: (
            f"shares {'/'.join(f'{share:g}' for share in site.info['ratios'])}, seed {site.info['seed']}"
            if "ratios" in site.info
            else ""
        ),
    )
    how = "Training, validation and testing are split by patient, as file names or a table tell them, at each site."
    return f"{how} {told}" if told else ""


def counts(file: File) -> str:
    """Patients and slices by split."""

    def told(site: SiteFolder) -> str:
        of = site.info["counts"]
        return ", ".join(f"{split} {of[split]['patients']} patients, {of[split]['slices']} slices" for split in SPLITS)

    return _by_site(file, told)


def not_biometric(file: File) -> str:
    """Of the task."""
    return "Does not apply: the task is segmentation of organs." if file.info["task"] in ("prostate", "fundus") else ""


DATA = (task, centres, sources, licences, left_out, preparation, splits, counts, not_biometric)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _by_site(file: File, told: Callable[[SiteFolder], str]) -> str:
    """Of the sites whose folders are here, those that say alike together; who is not here is named."""
    said: dict[str, list[str]] = {}
    for site in file.folders:
        try:
            text = told(site)
        except (KeyError, TypeError):  # an older site.json has no such field
            text = ""
        said.setdefault(text, []).append(site.name)
    lacking = [*said.pop("", []), *sorted(set(file.run.sites) - {site.name for site in file.folders})]
    if not said:
        return ""
    text = "; ".join(f"{', '.join(names)}: {one}" for one, names in said.items())
    return f"{text}{f'; not known of {listed(lacking)}' if lacking else ''}."
