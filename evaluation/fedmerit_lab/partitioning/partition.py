"""Prepared patients split again into site folders, as papers partition theirs: ``fedmerit data partition``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import SiteFolder, load_array, open_sites
from fedmerit_data.folders import new_folder, require_free
from fedmerit_lab.partitioning.assignment import (
    COMMON_SPLITS,
    LOCAL_SPLITS,
    Patient,
    Share,
    assign_patients,
    pool_patients,
    require_sites,
)
from fedmerit_lab.partitioning.label_noise import TrainingMasks, disturb
from fedmerit_lab.partitioning.scheme import Scheme
from fedmerit_lab.partitioning.site_writer import write_site


def partition(
    sites: Path,
    out: Path,
    scheme: Scheme,
    *,
    label_noise: Mapping[str, float] | None = None,
    noise_rule: str = "shift",
    duplicate: Sequence[str] = (),
    inverted: Sequence[str] = (),
    trained_on: Mapping[str, Path] | None = None,
    folds: bool = False,
) -> list[Path]:
    """Write ``site-1`` to ``site-N`` below ``out`` and return the folders, sorted by name; all of them or none.

    From ten sites on, numbers have leading zeros.

    Every patient goes to one site and stays in its split: training and validation patients by the scheme, those of
    testing and of the server's split evenly, so the test patients of all sites together are the same in every
    partition of the same folders. Of sources with folds that is the split of fold 0, without the others, unless
    ``folds`` are kept: then every patient goes to one site by the scheme, fold by fold, and its site tests it in its
    fold; the test patients of all sites together are those of the fold in every partition. Arrays are hard links to the
    sources' if the file system has them, else copies; masks with noise and inverted images are new files.

    Args:
        sites: Folder of prepared site folders, which are not changed.
        out: Folder to make; must be absent or empty, and neither within ``sites`` nor around it.
        scheme: Number of sites and their shares.
        label_noise: By site, above 0 to 1: the share of its labelled training slices that get a wrong mask.
        noise_rule: A key of `fedmerit_lab.partitioning.label_noise.RULES`.
        duplicate: Sites that get a twin ``<site>-copy`` with the same training and validation patients.
        inverted: Source sites in all of whose images bright and dark are exchanged.
        trained_on: By site, another folder of site folders of the same cases: the site trains on its cases as they are
            there, such as with the masks by one expert; without those that are missing there.
        folds: Keep the folds of the sources. A patient is then trained on and tested with one mask, and at one site: no
            ``label_noise``, ``duplicate`` or ``trained_on``.

    Raises:
        BadInput: a folder or an argument is unusable, or there are too few patients.
    """
    sites, out = Path(sites), Path(out)
    if sites.resolve().is_relative_to(out.resolve()) or out.resolve().is_relative_to(sites.resolve()):
        raise BadInput(f"{out}: the partition and its source ({sites}) need separate folders, neither within the other")
    require_free(out)
    sources = open_sites(sites)
    for source in sources:
        if source.info.get("spacing") != sources[0].info.get("spacing"):
            spacings = f"{source.info.get('spacing')} mm, but {sources[0].name} {sources[0].info.get('spacing')}"
            raise BadInput(f"{source.path}: has spacing {spacings}; prepare sites alike to partition them together")
    if folds:
        _require_folds(sources, {"label noise": label_noise, "duplicate": duplicate, "other masks": trained_on})
    require_sites("inverted", inverted, [source.name for source in sources])
    classes = scheme.classes or _usual_classes(scheme.by, sources)
    patients = pool_patients(sources, classes, folds)
    shares = assign_patients(sites, patients, scheme, duplicate)
    others = dict(trained_on or {})
    require_sites("trained on", list(others), shares)
    shares |= {site: _training_on(open_sites(other), site, shares[site]) for site, other in others.items()}
    noise = {site: float(share) for site, share in (label_noise or {}).items()}
    require_sites("label noise", noise, shares)
    # Before anything is written, so an error comes first. The wrong masks of a few sites fit in memory.
    wrong = {
        site: disturb(site, _training_masks(shares[site].patients), share, noise_rule, [scheme.seed, *site.encode()])
        for site, share in noise.items()
    }
    record = {
        "by": scheme.by,
        "into": scheme.into,
        **scheme.parameters,
        "classes": classes,
        "seed": scheme.seed,
        **({"outlier": list(scheme.outlier)} if scheme.outlier else {}),
        **({"inverted": list(inverted)} if inverted else {}),
        **({"trained_on_other_masks": sorted(others)} if others else {}),
        "split_by_scheme": ["folds"] if folds else list(LOCAL_SPLITS),
        "split_evenly": [] if folds else list(COMMON_SPLITS),
    }
    try:
        with new_folder(out, "partition") as folder:
            for site, own in shares.items():
                disturbed = wrong.get(site, {})
                about = record | {"copy_of": own.copy_of, "label_noise": None}
                if site in noise:
                    slices = {name: list(case.positions) for name, case in disturbed.items()}
                    about["label_noise"] = {"rule": noise_rule, "share": noise[site], "slices": slices}
                write_site(folder / site, own.patients, disturbed, about, inverted)
    except OSError as error:
        raise BadInput(f"{out}: cannot be written ({error}); make room or name another folder") from error
    return [out / site for site in sorted(shares)]


def _require_folds(sources: Sequence[SiteFolder], without: Mapping[str, object]) -> None:
    """Raise `BadInput` unless all sources have the same folds and nothing is asked that folds do not allow."""
    numbers = {source.name: source.folds for source in sources}
    if len(set(numbers.values())) > 1 or not sources[0].folds:
        there = ", ".join(f"{name} {number or 'none'}" for name, number in numbers.items())
        raise BadInput(f"folds: {there}; prepare all sites with the same `--folds`")
    for what, given in without.items():
        if given:
            raise BadInput(
                f"folds: {what}: each patient is trained on in some folds and tested in another, so its site would "
                "be tested on it too; partition without folds"
            )


def _usual_classes(by: str, sources: Sequence[SiteFolder]) -> str:
    """Return the default of `Scheme.classes`."""
    if by == "variety":
        return "labels" if len(sources[0].labels) > 1 else "size"
    return "source" if len(sources) > 1 or by != "dirichlet" else "size"


def _training_on(others: Sequence[SiteFolder], site: str, share: Share) -> Share:
    """Return a site that trains on its cases as other folders have them; without those that they lack."""
    cases = {item.name: item for patient in pool_patients(others, "source") for item in patient.cases}
    patients = []
    for patient in share.patients:
        if patient.split == "training":
            own = tuple(cases[item.name] for item in patient.cases if item.name in cases)
            patients += [replace(patient, cases=own)] if own else []
        else:
            patients.append(patient)
    if not any(patient.split == "training" for patient in patients):
        raise BadInput(f"{others[0].path.parent}: has no training case of {site}; prepare both from the same files")
    return replace(share, patients=patients)


def _training_masks(patients: Iterable[Patient]) -> list[TrainingMasks]:
    """Return what a site trains on, sorted by case: noise does not depend on the order of its patients."""
    cases = [(item, patient.name) for patient in patients if patient.split == "training" for item in patient.cases]
    masks = []
    for item, patient in sorted(cases, key=lambda pair: pair[0].name):
        label = np.array(load_array(item.case.label_file))  # a memory map would keep its file open
        used = range(len(label)) if item.case.slices is None else item.case.slices
        masks.append(TrainingMasks(item.name, patient, label, used))
    return masks
