"""Worlds of sites in which worth differs, so that an estimator can be right or wrong: dealt from prepared patients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmerit.configuration import spec_syntax
from fedmerit.errors import BadInput
from fedmerit.files import write_json
from fedmerit.parameters import Checked, parameter
from fedmerit.trainers.monai_trainer.data import open_sites
from fedmerit_data.folders import is_occupied
from fedmerit_data.partition import partition
from fedmerit_data.partitioning.scheme import Scheme
from fedmerit_data.preparation import Preparation
from fedmerit_data.prepare import prepare
from fedmerit_evaluation.studies.study_folders import require_unchanged

GENERATED = "synthetic-prostate"


@dataclass(frozen=True)
class Scenario(Checked):
    """How many sites; one kind of world each, in which nothing else is planted."""

    sites: int = parameter(4, "in all, twins included", low=2, high=16)


@dataclass(frozen=True)
class KnownAnswer:
    """What a world's partition is asked for."""

    scheme: Scheme
    options: Mapping[str, Any]
    expected: str  # of the values, in words


def site_name(number: int, of: int) -> str:
    """That of a dealt site."""
    return f"site-{number:0{len(str(of))}d}"


def _equal(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    return KnownAnswer(Scheme("uniform", n, seed=seed), {}, "all alike but for who their patients are")


def _sizes(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    return KnownAnswer(Scheme("powerlaw", n, seed=seed), {}, "the more patients, the more")


def _double(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    first = site_name(1, n)
    dealt = Scheme("imbalanced", n, kappa=2 / (n + 1), holders=1, seed=seed)
    return KnownAnswer(dealt, {}, f"{first} first: it has twice as many patients as each of the others")


def _noise(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    noisy = {"label_noise": {site_name(n, n): 1.0}, "noise_rule": "shift"}
    return KnownAnswer(Scheme("uniform", n, seed=seed), noisy, f"{site_name(n, n)} last: its masks lie anywhere")


def _shifted(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    off = {"label_noise": {site_name(n, n): 1.0}, "noise_rule": "offset"}
    return KnownAnswer(
        Scheme("uniform", n, seed=seed), off, f"{site_name(n, n)} last: its masks lie all off in one way"
    )


def _duplicate(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    twin = site_name(1, n - 1)
    dealt = Scheme("uniform", n - 1, seed=seed)
    return KnownAnswer(dealt, {"duplicate": (twin,)}, f"{twin} and its copy together no more than one site of theirs")


def _narrow(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    bands = Scheme("banded", n, classes="intensity", seed=seed)
    return KnownAnswer(bands, {}, "each site has one range of intensities: nobody can be done without")


def _outlier(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    alone = "site5" if _are_generated(sources) else sources[0]
    dealt = Scheme("uniform", n, classes="source", seed=seed, alone=(alone,))
    return KnownAnswer(dealt, {}, f"{site_name(n, n)} holds {alone} alone, honest and unlike the others")


def _needed(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    alone = ("site4", "site6") if _are_generated(sources) else (sources[0],)
    dealt = Scheme("uniform", n, classes="source", seed=seed, alone=alone)
    expected = f"{site_name(n, n)} not last: it alone holds {' and '.join(alone)}, dark where all else is bright"
    return KnownAnswer(dealt, {"inverted": alone}, expected)


def _are_generated(sources: list[str]) -> bool:
    return sources == [f"site{place}" for place in range(1, 7)]


KINDS: Mapping[str, Callable[[int, int, list[str]], KnownAnswer]] = {
    "equal": _equal,
    "sizes": _sizes,
    "double": _double,
    "noise": _noise,
    "shifted": _shifted,
    "duplicate": _duplicate,
    "narrow": _narrow,
    "outlier": _outlier,
    "needed": _needed,
}


def parse(spec: str) -> tuple[str, Scenario]:
    """The kind and the world of a spec such as ``noise:sites=6``; `BadInput` where it is none."""
    world: Scenario = spec_syntax.parse(spec, dict.fromkeys(KINDS, Scenario), "--worlds")
    return spec_syntax.split_spec(spec)[0], world


def make_if_missing(folder: Path, asked: Mapping[str, Any], make: Callable[[], object]) -> None:
    """Make a folder that is not there; ``FOLDER.json`` beside it says what it was made of.

    Raises:
        BadInput: it is there, and was made of something else than what is ``asked`` for.
    """
    record = folder.with_name(f"{folder.name}.json")
    require_unchanged(record, asked)
    if not is_occupied(folder):
        make()
    write_json(record, asked)


def generate(out: Path, size: int, patients: int, seed: int = 0) -> Path:
    """The patients of generated hospitals that worlds are dealt from; what is there is left as it is.

    Raises:
        BadInput: what is there is of another size, other patients or another seed.
    """
    asked = Preparation(GENERATED, size=size, patients=patients, seed=seed)
    make_if_missing(out, {"size": size, "patients": patients, "seed": seed}, lambda: prepare(asked, out))
    return out


def make(spec: str, pool: Path, out: Path, seed: int = 0) -> str:
    """Deal a world from the prepared patients of ``pool``; what is to be expected of it. One that is there is left.

    Args:
        spec: of the world.
        pool: folder of prepared site folders.
        out: folder of the world's sites.
        seed: moves who goes where.

    Raises:
        BadInput: there are too few patients, or the world that is there was dealt from another pool.
    """
    kind, world = parse(spec)
    sources = [site.name for site in open_sites(pool)]
    planted = KINDS[kind](world.sites, seed, sources)
    if planted.scheme.alone and len(sources) < 2:
        raise BadInput(
            f"--worlds {spec}: {pool} holds {sources[0]} alone; an outlier takes another hospital's patients"
        )
    asked = {"pool": str(pool.resolve()), "seed": seed}
    make_if_missing(out, asked, lambda: partition(pool, out, planted.scheme, **planted.options))
    return planted.expected
