"""Runs in which sites attack, and studies of them: every site in turn attacks, beside honest runs to compare with.

``OUT/runs`` holds a run folder for each, ``OUT/sites`` the site folders that Sybil attacks change.
"""

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from fedmerit.contract.capabilities import capabilities
from fedmerit.engines import runs
from fedmerit.engines.engine import Laboratory
from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.settings import ROUNDS
from fedmerit.schema.results import COLUMNS
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit.server.checkpoint import is_finished
from fedmerit.trainers.monai.samples import Slices
from fedmerit_evaluation.figures.tables import file_name
from fedmerit_evaluation.results.runs import open_run
from fedmerit_evaluation.results.views import Results
from fedmerit_evaluation.studies.execution import OnEnd, OnRound, Workers, execute_all
from fedmerit_evaluation.studies.study import MethodSpec, recorded_digests, require_same, require_same_images, scratch
from fedmerit_lab.attacks.attack import ATTACKS, format_attack, parse_attack
from fedmerit_lab.attacks.attacker_site import wrap_attacker
from fedmerit_lab.partitioning.site_writer import link_or_copy

HONEST = "honest"
IMAGES = "images.json"  # digests of the sites that Sybil attacks changed
OPTIONS = {"engine": "local"}
SIMULATOR = "fedmerit_lab.attacks.simulator"
SETTINGS = {"validate_trained": "true"}  # the free-rider value needs it
COLLUSIONS = {  # attacks that need more than the site
    "twin": "needs a second site with the same images; take duplicate",
    "near-twin": "needs a second site with the same images; take `fedmerit lab run --attack`",
    "rigged": "needs the names of friends; take `fedmerit lab run --attack`",
}


def create(run: Path, attacks: Mapping[str, str], **options: Any) -> None:
    """Create a run folder by `fedmerit.engines.runs.create`, and record in run.json which sites attack.

    Args:
        run: the folder.
        attacks: by site, the spec of its attack; the others are honest.
        **options: of `fedmerit.engines.runs.create`.

    Raises:
        BadInput: an option, a site or a spec cannot be used; or the engine is one of real machines.
    """
    if attacks and options.get("engine", "sim") == "poc":
        raise BadInput("--attack: sites of a provisioned federation do not attack; take --engine local or sim")
    if attacks:  # before anything is written
        names = [folder.name for folder in open_sites(Path(options["sites"]), options.get("only"))]
        attacks = _complete_specs(attacks, names, options.get("rounds", ROUNDS))
        if capabilities(METHODS[options["method"]]()).pools_images:
            raise BadInput(f"--attack: {options['method']} has one training for all sites, so no site can attack it")
    runs.create(run, **options)
    if attacks:
        write_json(run / "run.json", {**read_run(run), "attacks": attacks})


def _complete_specs(specs: Mapping[str, str], sites: Sequence[str], rounds: int) -> dict[str, str]:
    """Return the specs by site with all defaults; raise `BadInput` for unknown sites, or too few ``rounds``."""
    complete = {}
    for site, spec in specs.items():
        if (kind := str(spec).partition(":")[0]) in SYBILS:
            raise BadInput(
                f"attack {site}={spec}: changes the site folders, which a run does not; use "
                f"`fedmerit lab attacks --kinds {kind} --attackers {site}`"
            )
        attack = parse_attack(str(spec))
        if unknown := [name for name in (site, *attack.others) if name not in sites]:
            raise BadInput(f"attack {site}={spec}: no site {unknown[0]}; there are {', '.join(sites)}")
        if attack.first >= rounds:
            raise BadInput(
                f"attack {site}={spec}: begins in round {attack.first}, counted from 0, and there are {rounds}; "
                "train more rounds, or let it begin earlier"
            )
        complete[site] = format_attack(attack)
    return complete


def require_same_attacks(run: Path, attacks: Mapping[str, str]) -> None:
    """Raise `BadInput` if a run was created with other attacks."""
    info = read_run(run)
    before, asked = info.get("attacks", {}), _complete_specs(attacks, info["sites"], info["rounds"])
    if before != asked:
        raise BadInput(f"{run}: was started with attacks {before}, not {asked}; choose another --out")


def execute(run: Path, on_round: Callable[[Mapping[str, Any]], None], *places: Any, **options: Any) -> None:
    """Execute a run by `fedmerit.engines.runs.execute`, in which the sites that run.json names attack."""
    if specs := read_run(run).get("attacks"):
        options["laboratory"] = Laboratory(lambda site: wrap_attacker(site, specs), SIMULATOR)
    runs.execute(run, on_round, *places, **options)


@dataclass(frozen=True)
class AttackedRun:
    """A run. In an honest run, ``kind`` is `HONEST` and ``site`` is empty."""

    label: str  # of the method
    kind: str  # spec of an attack, or a key of `SYBILS`
    site: str
    seed: int
    folder: Path
    attackers: tuple[str, ...] = ()  # the names under which the site takes part
    first: int = 0  # its first round that is not honest
    fold: int | None = None

    @property
    def finished(self) -> bool:
        """Whether it is trained and tested."""
        return is_finished(self.folder, int(read_run(self.folder)["rounds"]))


def parse_attack_kinds(text: str, labels: Sequence[str]) -> list[str]:
    """Return the kinds of ``repeat,noise:from=5,duplicate``; ``all`` is every kind with its defaults.

    With one label, ``all`` leaves out ``swapped``, which is the same as ``inverted`` then.

    Raises:
        BadInput: a kind is unknown or there twice, or a parameter cannot be used.
    """
    kinds: list[str] = []
    for part in text.split(","):
        if part.strip() == "all":
            same = ("swapped",) if len(labels) == 1 else ()
            kinds += [kind for kind in (*ATTACKS, *SYBILS) if kind not in (*COLLUSIONS, *same)]
        else:
            kinds.append(part.strip())
    for kind in kinds:
        if kinds.count(kind) > 1:
            raise BadInput(f"--kinds: {kind} is given twice; name each once")
        if kind.split(":")[0] in COLLUSIONS:
            raise BadInput(f"--kinds: {kind} {COLLUSIONS[kind.split(':')[0]]}")
        if kind not in SYBILS:
            try:
                parse_attack(kind)
            except BadInput as error:
                raise BadInput(f"--kinds: {error}; or one of {', '.join(SYBILS)}, which change the sites") from None
    return kinds


def prepare(
    out: Path,
    items: Sequence[MethodSpec],
    kinds: Sequence[str],
    attackers: Sequence[str],
    seeds: Sequence[int],
    settings: Mapping[str, str],
    options: Mapping[str, Any],
    folds: Sequence[int] = (),
) -> list[AttackedRun]:
    """Check every run, then create the missing ones; if one cannot be created, none is.

    Args:
        out: the study's folder.
        items: the methods.
        kinds: of attack, from `parse_attack_kinds`.
        attackers: the sites that attack, one in each run.
        seeds: of every run.
        settings: of every run, in addition to `SETTINGS`.
        options: further ones of `fedmerit.engines.runs.create`; ``sites`` and ``rounds`` among them.
        folds: of the sites, each to train on; none: the splits of datalist.json.

    Returns:
        The runs, honest ones first.

    Raises:
        BadInput: a run cannot be created, or exists with other options or sites; or an attack begins after the last
            round; or sites were prepared again after copies of them were made here.
    """
    root = Path(options["sites"])
    folders = open_sites(root)
    everyone = [site.name for site in folders]
    if unknown := [site for site in attackers if site not in everyone]:
        raise BadInput(f"{root}: holds no site {', '.join(unknown)}; there are {', '.join(everyone)}")
    for kind in kinds:
        if (first := _first(kind)) >= options["rounds"]:
            raise BadInput(f"--kinds {kind}: begins in round {first}, the last of {options['rounds']} rounds is before")
    parts: list[int | None] = list(folds) or [None]
    attacks = [
        (item, _attack(out, item.label, kind, site, seed, fold))
        for kind, site in [(HONEST, ""), *product(kinds, attackers)]
        for item in items
        for seed in seeds
        for fold in parts
    ]
    require_same_images(out / IMAGES, folders)
    sybils = [kind for kind in kinds if kind in SYBILS]
    with scratch(out) as new:
        for kind, site, fold in product(sybils, attackers, parts):
            if not _changed_sites(out, kind, site, fold).exists():
                write_sybils(kind, root, site, _changed_sites(new, kind, site, fold), fold)
        if sybils:
            write_json(out / IMAGES, recorded_digests(folders, ()))
        _take_over(new / "sites", out / "sites")
        for item, attack in attacks:
            asked = {
                **OPTIONS,
                **options,
                "method": item.method,
                "seed": attack.seed,
                "fold": attack.fold,
                "settings": {**SETTINGS, **settings, **item.settings},
            }
            specs = _specs(attack)
            if attack.kind in SYBILS:
                asked["sites"] = _changed_sites(out, attack.kind, attack.site, attack.fold)
            if (attack.folder / "run.json").exists():
                require_same(attack.folder, asked, open_sites(Path(asked["sites"])))
                require_same_attacks(attack.folder, specs)
            else:
                create(new / "runs" / attack.folder.name, specs, **asked)
        _take_over(new / "runs", out / "runs")
    return [attack for _, attack in attacks]


def _changed_sites(out: Path, kind: str, site: str, fold: int | None) -> Path:
    """Return the folder of site folders that a Sybil attack changed."""
    return out / "sites" / (f"{kind}_{site}" + ("" if fold is None else f"_fold{fold}"))


def _take_over(new: Path, folder: Path) -> None:
    for made in sorted(new.glob("*")):
        folder.mkdir(parents=True, exist_ok=True)
        made.rename(folder / made.name)


def _first(kind: str) -> int:
    return 0 if kind in SYBILS or kind == HONEST else parse_attack(kind).first


def _attack(out: Path, label: str, kind: str, site: str, seed: int, fold: int | None) -> AttackedRun:
    name = file_name("_".join(filter(None, (label, kind, site, f"seed{seed}", "" if fold is None else f"fold{fold}"))))
    names = () if kind == HONEST else sybil_names(kind, site) if kind in SYBILS else (site,)
    return AttackedRun(label, kind, site, seed, out / "runs" / name, names, _first(kind), fold)


def _specs(attack: AttackedRun) -> dict[str, str]:
    """Return the attack of each site of a run, by its name."""
    if attack.kind == "duplicate":
        return {attack.attackers[1]: f"twin:of={attack.site}"}
    return {} if attack.kind in SYBILS or attack.kind == HONEST else {attack.site: attack.kind}


def execute_runs(
    attacks: Sequence[AttackedRun], workers: Workers, on_end: OnEnd, on_round: OnRound = lambda folder, record: None
) -> dict[Path, str]:
    """Execute the unfinished runs concurrently, and return the failed runs with the reason."""
    left = [attack.folder for attack in attacks if not attack.finished]
    return execute_all(left, workers, on_end, on_round, after=forget, execute=execute)


def forget(folder: Path, sites: Path) -> None:
    """Delete the sites' memory of a finished run: models, of which a study would keep hundreds."""
    shutil.rmtree(folder / "sites", ignore_errors=True)


def collect_results(attacks: Sequence[AttackedRun]) -> Results:
    """Return the results of the finished runs; column ``run`` has their folders."""
    finished = [attack for attack in attacks if attack.finished]
    tables = [open_run(attack.folder).results.rows.assign(run=attack.folder.name) for attack in finished]
    return Results(pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=COLUMNS))


# Sybil attacks, in which a site takes part under two names; {} is its own.
SYBILS: Mapping[str, tuple[str, str]] = {"duplicate": ("{}", "{}-copy"), "split": ("{}-a", "{}-b")}


def sybil_names(kind: str, site: str) -> tuple[str, ...]:
    """Return both names under which ``site`` takes part in a Sybil attack of a ``kind``."""
    return tuple(name.format(site) for name in SYBILS[kind])


def write_sybils(kind: str, sites: Path, site: str, out: Path, fold: int | None = None) -> None:
    """Write the site folders of a Sybil attack: all sites, one of them under two names.

    A duplicate has all images of the site. The halves of a split site train on every other of its training patients;
    both have all validation, test and server images, so that a site of few patients can be split. Arrays are hard links
    to those of ``sites`` if the file system has them, else copies.

    Args:
        kind: a key of `SYBILS`.
        sites: folder of site folders.
        site: the attacker.
        out: folder to write the site folders into; new.
        fold: for which they are written; None: for the splits of datalist.json.

    Raises:
        BadInput: there is no such site, one of the new name exists, or a site to split has one training patient.
    """
    folders, names = {folder.name: folder for folder in open_sites(sites, fold=fold)}, sybil_names(kind, site)
    if site not in folders:
        raise BadInput(f"site {site}: {sites} holds none of that name; there are {', '.join(folders)}")
    if taken := [name for name in names if name in folders and name != site]:
        raise BadInput(f"{sites}: holds a site {taken[0]} already; rename it, or choose another site")
    source = folders.pop(site)
    patients = sorted({case.patient for case in source.cases("training")})
    if kind == "split" and len(patients) < 2:
        raise BadInput(f"site {site}: has one training patient, its halves need one each; choose another site")
    for name, folder in folders.items():
        _link(folder, out / name)
    for number, name in enumerate(names):
        if kind == "split":
            _link(source, out / name, patients[number::2], half_of=site)
        else:
            _link(source, out / name, **({"copy_of": site} if name != site else {}))


def _link(source: SiteFolder, folder: Path, trained: Collection[str] | None = None, **about: Any) -> None:
    """Write a copy of a site folder, with some of its training patients, or with all."""
    stored = read_json(source.path / "datalist.json")
    by_case = {entry["case"]: entry for entries in stored.values() for entry in entries}
    chosen = {
        split: [case for case in source.splits[split]
                if split != "training" or trained is None or case.patient in trained]
        for split in stored
    }  # fmt: skip
    lists = {split: [by_case[case.name] for case in cases] for split, cases in chosen.items()}
    for entry in (entry for entries in lists.values() for entry in entries):
        for kind in ("image", "label"):
            link_or_copy(source.path / entry[kind], folder / entry[kind])
    counts = {
        split: {"cases": len(cases), "patients": len({case.patient for case in cases}), "slices": len(Slices(cases))}
        for split, cases in chosen.items()
    }
    write_json(folder / "datalist.json", lists)
    write_json(folder / "site.json", {**source.info, **about, "name": folder.name, "counts": counts})
