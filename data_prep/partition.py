"""Prepared patients dealt anew into site folders, as papers deal theirs: ``fedmerit partition``."""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_prep.dealing import Scheme, deal
from data_prep.folders import partial_folder, require_free
from data_prep.label_noise import Disturbed, TrainingMasks, disturb
from fedmerit.errors import BadInput
from fedmerit.files import read_json, sha256, write_atomically, write_json
from fedmerit.training.data import SERVER_SPLIT, SPLITS, Case, SiteFolder, load_array, open_sites

LOCAL = ("training", "validation")  # what a site owns: dealt by the scheme
COMMON = ("testing", SERVER_SPLIT)  # what all are judged on: dealt evenly, the same patients in every partition
QUANTILES = 4
# What site.json says of one site; everything else is of all its cases.
OF_A_SITE = {
    *("name", "counts", "used", "unreadable_cases", "left_out", "remarks", "checksums", "partition"),
    "fedmerit_version",
}


@dataclass(frozen=True)
class Pooled:
    """One prepared case, where it comes from, and its name in the partition."""

    name: str
    source: SiteFolder
    case: Case
    entry: Mapping[str, Any]  # of the source's datalist.json


@dataclass(frozen=True)
class Patient:
    """A patient of the pool. ``split`` is that of its source; ``of_class`` its class."""

    name: str
    split: str
    cases: tuple[Pooled, ...]
    of_class: str

    @property
    def source(self) -> SiteFolder:
        """The site it comes from."""
        return self.cases[0].source


@dataclass(frozen=True)
class Share:
    """What a site of the partition gets, and of which it is a twin or a half."""

    patients: list[Patient] = field(default_factory=list)
    copy_of: str | None = None
    half_of: str | None = None


def partition(
    sites: Path,
    out: Path,
    scheme: Scheme,
    *,
    label_noise: Mapping[str, float] | None = None,
    noise_rule: str = "shift",
    duplicate: Sequence[str] = (),
    split_site: Sequence[str] = (),
) -> list[Path]:
    """Write ``site-1`` to ``site-N`` below ``out`` and return the folders, sorted by name; all of them or none.

    From ten sites on, numbers have leading zeros.

    Whole patients are dealt, each once, and each stays in its split: training and validation by the scheme,
    testing and the server's split evenly, so that the test patients of all sites together are the same in every
    partition of the same folders. Arrays are hard links to the sources' where the file system has them, else copies.

    Args:
        sites: Folder of prepared site folders, which stay as they are.
        out: Folder to make; must be absent or empty, and apart from ``sites``.
        scheme: How to deal.
        label_noise: By site, above 0 to 1: the share of its training slices with a mask whose mask is disturbed.
        noise_rule: A key of `data_prep.label_noise.RULES`.
        duplicate: Sites that get a twin ``<site>-copy`` with the same training and validation patients.
        split_site: Sites in whose place stand ``<site>-a`` and ``<site>-b``, each with half of its patients.

    Raises:
        BadInput: a folder or an argument is unusable, or there are too few patients.
    """
    sites, out = Path(sites), Path(out)
    if sites.resolve().is_relative_to(out.resolve()) or out.resolve().is_relative_to(sites.resolve()):
        raise BadInput(f"{out}: the partition and what it deals ({sites}) need folders apart, neither within the other")
    require_free(out)
    sources = open_sites(sites)
    for source in sources:
        if source.info.get("spacing") != sources[0].info.get("spacing"):
            told = f"spacing {source.info.get('spacing')} mm, but {sources[0].name} {sources[0].info.get('spacing')}"
            raise BadInput(f"{source.path}: has {told}; sites dealt together have to be prepared alike")
    classes = scheme.classes or ("source" if len(sources) > 1 or scheme.by != "dirichlet" else "size")
    patients = _pool(sources, classes)
    dealt = _deal_all(sites, patients, scheme, duplicate, split_site)
    noise = {site: float(share) for site, share in (label_noise or {}).items()}
    _require_sites("label noise", noise, dealt)
    # Before anything is written: what noise lacks is told first. The wrong masks of a few sites fit in memory.
    wrong = {
        site: disturb(site, _training_masks(dealt[site].patients), share, noise_rule, [scheme.seed, *site.encode()])
        for site, share in noise.items()
    }
    record = {
        "by": scheme.by,
        "into": scheme.into,
        **scheme.parameters,
        "classes": classes,
        "seed": scheme.seed,
        "dealt_by_scheme": list(LOCAL),
        "dealt_evenly": list(COMMON),
    }
    with partial_folder(out) as folder:
        try:
            shutil.rmtree(folder / "sites", ignore_errors=True)  # a killed process's
            for site, own in dealt.items():
                disturbed = wrong.get(site, {})
                about = record | {"copy_of": own.copy_of, "half_of": own.half_of, "label_noise": None}
                if site in noise:
                    slices = {name: list(case.positions) for name, case in disturbed.items()}
                    about["label_noise"] = {"rule": noise_rule, "share": noise[site], "slices": slices}
                _write(folder / "sites" / site, own.patients, disturbed, about)
            (folder / "sites").replace(out)
        except OSError as error:
            raise BadInput(f"{out}: cannot be written ({error}); make room or name another folder") from error
        finally:
            shutil.rmtree(folder)
    return [out / site for site in sorted(dealt)]


def _pool(sources: Sequence[SiteFolder], classes: str) -> list[Patient]:
    """Every patient of the sources, sorted by name.

    Raises:
        BadInput: a patient stands in two splits or sites, or two cases would get one name.
    """
    cases: dict[str, list[Pooled]] = {}
    places: dict[str, tuple[str, str]] = {}
    names: set[str] = set()
    for source in sources:
        lists = read_json(source.path / "datalist.json")
        for split, listed in source.splits.items():
            for case, entry in zip(listed, lists.get(split, []), strict=True):
                home, there = places.setdefault(case.patient, (source.name, split))
                if (home, there) != (source.name, split):
                    raise BadInput(
                        f"{source.path}: patient {case.patient} stands in {split} and in {there} of site {home}; "
                        "expected one split of one site: `fedmerit check` tells more, prepare the sites again"
                    )
                name = f"{source.name}-{case.name}"
                if name in names:
                    raise BadInput(f"{source.path}: two cases would be named {name}; rename the site or one case")
                names.add(name)
                cases.setdefault(case.patient, []).append(Pooled(name, source, case, entry))
    of_class = _of_class(cases, classes)
    return [Patient(name, places[name][1], tuple(cases[name]), of_class[name]) for name in sorted(cases)]


def _of_class(patients: Mapping[str, Sequence[Pooled]], classes: str) -> dict[str, str]:
    """The class of every patient: its source, or its quarter of all patients."""
    if classes == "source":
        return {name: cases[0].source.name for name, cases in patients.items()}
    measure = {"size": _size, "intensity": _intensity}[classes]
    values = {name: float(np.mean([measure(case.case) for case in patients[name]])) for name in sorted(patients)}
    ordered = sorted(values, key=lambda name: values[name])
    return {name: f"{classes} {rank * QUANTILES // len(ordered) + 1}" for rank, name in enumerate(ordered)}


def _size(case: Case) -> float:
    """The largest cross-section of the labelled organ, as a share of the frame."""
    return float(load_array(case.label_file).any(axis=1).mean(axis=(1, 2)).max())


def _intensity(case: Case) -> float:
    """The mean intensity within the organ, where the whole image has mean 0 and deviation 1; 0 without a label."""
    organ = load_array(case.label_file).any(axis=1)
    return float(load_array(case.image_file).mean(axis=1, dtype=np.float64)[organ].mean()) if organ.any() else 0.0


def _deal_all(
    sites: Path, patients: Sequence[Patient], scheme: Scheme, duplicate: Sequence[str], split_site: Sequence[str]
) -> dict[str, Share]:
    """What every site gets, by its name."""
    names = [f"site-{number:0{len(str(scheme.into))}d}" for number in range(1, scheme.into + 1)]
    _require_sites("duplicate", duplicate, names)
    _require_sites("split site", split_site, names)
    number = scheme.into + len(duplicate) + len(split_site)
    _require_enough(sites, patients, dict.fromkeys(LOCAL, scheme.into) | dict.fromkeys(COMMON, number))
    classes = sorted({patient.of_class for patient in patients})
    np.random.default_rng([scheme.seed, *b"classes"]).shuffle(classes)  # in every split the same row of classes
    shares = dict(zip(classes, scheme.shares(len(classes)), strict=True))

    def of(split: str) -> list[Patient]:
        chosen = [patient for patient in patients if patient.split == split]
        np.random.default_rng([scheme.seed, *split.encode()]).shuffle(chosen)
        return sorted(chosen, key=lambda patient: classes.index(patient.of_class))

    dealt = {name: Share() for name in names}
    for split in LOCAL:
        for patient, site in _deal(of(split), shares, names):
            dealt[site].patients.append(patient)
    for site in duplicate:
        dealt[f"{site}-copy"] = Share([*dealt[site].patients], copy_of=site)
    for site in split_site:
        whole = dealt.pop(site)
        halves = [f"{site}-a", f"{site}-b"]
        dealt |= {half: Share(half_of=site) for half in halves}
        for split in LOCAL:
            own = [patient for patient in whole.patients if patient.split == split]
            if len(own) < 2:
                raise BadInput(f"split site {site}: {len(own)} {split} patient, but its halves need 2; choose another")
            for patient, half in _deal(own, dict.fromkeys(classes, np.full(2, 0.5)), halves):
                dealt[half].patients.append(patient)
    everyone = sorted(dealt)
    for split in COMMON:
        if common := of(split):
            for patient, site in _deal(common, dict.fromkeys(classes, np.full(number, 1 / number)), everyone):
                dealt[site].patients.append(patient)
    return dealt


def _deal(
    patients: Sequence[Patient], shares: Mapping[str, NDArray[np.float64]], sites: Sequence[str]
) -> Iterator[tuple[Patient, str]]:
    """`deal` for named classes and sites; ``shares`` of each class are (sites,)."""
    rows = {name: row for row, name in enumerate(shares)}
    classes = np.array([rows[patient.of_class] for patient in patients])
    for patient, site in zip(patients, deal(classes, np.stack([*shares.values()])), strict=True):
        yield patient, sites[site]


def _require_sites(what: str, asked: Iterable[str], known: Iterable[str]) -> None:
    for site, times in Counter(asked).items():
        if site not in known or times > 1:
            problem = "named twice" if times > 1 else "no such site"
            raise BadInput(f"{what} {site}: {problem}; there are {', '.join(sorted(known))}")


def _require_enough(sites: Path, patients: Sequence[Patient], needed: Mapping[str, int]) -> None:
    """A patient of each split for every site; of the server's split only where there is one."""
    there = Counter(patient.split for patient in patients)
    for split, number in needed.items():
        if there[split] < number and (there[split] or split in SPLITS):
            raise BadInput(
                f"{sites}: {there[split]} {split} patients, but the sites need {number}, one each; deal into fewer "
                "sites, add patients or prepare with other ratios"
            )


def _training_masks(patients: Iterable[Patient]) -> list[TrainingMasks]:
    """What a site trains on, sorted by case: noise does not depend on the order in which patients were dealt."""
    cases = [(item, patient.name) for patient in patients if patient.split == "training" for item in patient.cases]
    masks = []
    for item, patient in sorted(cases, key=lambda pair: pair[0].name):
        label = np.array(load_array(item.case.label_file))  # a map would keep its file open
        used = range(len(label)) if item.case.slices is None else item.case.slices
        masks.append(TrainingMasks(item.name, patient, label, used))
    return masks


def _write(folder: Path, patients: Sequence[Patient], wrong: Mapping[str, Disturbed], about: Mapping[str, Any]) -> None:
    """One site folder: arrays, datalist.json, site.json."""
    entries: dict[str, list[dict[str, Any]]] = {split: [] for split in (*SPLITS, SERVER_SPLIT)}
    counts = {split: {"cases": 0, "patients": 0, "slices": 0} for split in entries}
    checksums: dict[str, str] = {}
    remarks: list[dict[str, str]] = []
    for patient in sorted(patients, key=lambda patient: patient.name):
        counts[patient.split]["patients"] += 1
        for item in patient.cases:
            entry = {**item.entry, "case": item.name, "origin": item.source.name}
            stored = {"image": item.case.image_file, "label": item.case.label_file}
            slices = {key: len(load_array(file)) for key, file in stored.items()}  # BadInput where one is not there
            for key, file in stored.items():
                name = entry[key] = f"cases/{item.name}_{key}.npy"
                if key == "label" and item.name in wrong:
                    write_atomically(folder / name, partial(np.save, arr=wrong[item.name].label))
                    checksums[name] = sha256(folder / name)
                else:
                    link_or_copy(file, folder / name)
                    checksums[name] = _stated(item.source, file)
            used = item.case.slices
            counts[patient.split]["cases"] += 1
            counts[patient.split]["slices"] += slices["image"] if used is None else len(used)
            entries[patient.split].append(entry)
            stated = item.source.info.get("remarks", ())
            remarks += [{**remark, "case": item.name} for remark in stated if remark["case"] == item.case.name]
    sources = {patient.source.name: patient.source for patient in patients}
    there = Counter((patient.source.name, patient.split) for patient in patients)
    origin = [
        {
            "site": name,
            "site_json": sha256(sources[name].path / "site.json"),
            "patients": {split: there[name, split] for split in entries},
        }
        for name in sorted(sources)
    ]
    write_json(folder / "datalist.json", entries)
    write_json(
        folder / "site.json",
        {
            "name": folder.name,
            **_agreed([sources[name].info for name in sorted(sources)]),
            "counts": counts,
            "used": {"cases": sum(count["cases"] for count in counts.values()), "files": len(checksums)},
            "unreadable_cases": 0,
            "left_out": [],
            "remarks": remarks,
            "partition": {**about, "origin": origin},
            "checksums": checksums,
            "fedmerit_version": version("fedmerit"),
        },
    )


def link_or_copy(source: Path, target: Path) -> None:
    """Make ``target`` the same file as ``source``, or one of the same bytes where the file system has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _stated(source: SiteFolder, file: Path) -> str:
    """The checksum that site.json has of an array: `check` then finds out whether it changed since."""
    name = file.relative_to(source.path).as_posix()
    try:
        return str(source.info["checksums"][name])
    except KeyError:
        raise BadInput(f"{source.path / 'site.json'}: has no checksum of {name}; prepare the site again") from None


def _agreed(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the sources' site.json say of all their cases: texts that differ one after the other, else None."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for info in infos for name in info if name not in OF_A_SITE):
        values: list[Any] = []
        for value in (info.get(name) for info in infos):
            if value not in values:
                values.append(value)
        texts = all(isinstance(value, str) for value in values)
        merged[name] = values[0] if len(values) == 1 else "; ".join(values) if texts else None
    return merged
