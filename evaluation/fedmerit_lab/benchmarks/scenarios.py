"""Known-answer scenarios: sites whose values differ in a known way, partitioned from prepared patients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fedmerit.errors import BadInput
from fedmerit.files import write_json
from fedmerit.schema.declarations import Checked, parse_spec, split_spec
from fedmerit.schema.rules import About, Count
from fedmerit.schema.site_folder import open_sites
from fedmerit_data.folders import is_occupied
from fedmerit_data.preparation import Preparation
from fedmerit_data.prepare import prepare
from fedmerit_evaluation.studies.study import require_unchanged
from fedmerit_lab.partitioning.partition import partition
from fedmerit_lab.partitioning.scheme import Scheme

GENERATED = "synthetic-prostate"


@dataclass(frozen=True)
class Scenario(Checked):
    """The number of sites; each kind of scenario has one known answer."""

    sites: Annotated[int, Count(2, 16), About("twins included")] = 4


@dataclass(frozen=True)
class KnownAnswer:
    """The partition of a scenario, and its known answer."""

    scheme: Scheme
    options: Mapping[str, Any]
    expected: str  # of the values, in words


def site_name(number: int, sites: int) -> str:
    """Return the name of a site of the partition."""
    return f"site-{number:0{len(str(sites))}d}"


def _equal(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    return KnownAnswer(Scheme("uniform", n, seed=seed), {}, "all equal, up to their patients")


def _sizes(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    return KnownAnswer(Scheme("powerlaw", n, seed=seed), {}, "more patients, more value")


def _double(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    first = site_name(1, n)
    scheme = Scheme("imbalanced", n, kappa=2 / (n + 1), holders=1, seed=seed)
    return KnownAnswer(scheme, {}, f"{first} first: it has twice as many patients as each of the others")


def _noise(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    noisy = {"label_noise": {site_name(n, n): 1.0}, "noise_rule": "shift"}
    return KnownAnswer(
        Scheme("uniform", n, seed=seed), noisy, f"{site_name(n, n)} last: its masks are at random places"
    )


def _shifted(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    off = {"label_noise": {site_name(n, n): 1.0}, "noise_rule": "offset"}
    return KnownAnswer(Scheme("uniform", n, seed=seed), off, f"{site_name(n, n)} last: its masks are all shifted alike")


def _expert(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    last = site_name(n, n)
    return KnownAnswer(
        Scheme("uniform", n, seed=seed), {"of_other": (last,)}, f"unknown answer; {last} has other masks"
    )


def _duplicate(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    twin = site_name(1, n - 1)
    scheme = Scheme("uniform", n - 1, seed=seed)
    return KnownAnswer(
        scheme, {"duplicate": (twin,)}, f"{twin} and its copy together no more than the site without copy"
    )


def _narrow(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    bands = Scheme("banded", n, classes="intensity", seed=seed)
    return KnownAnswer(bands, {}, "each site has its own range of intensities and is needed")


def _outlier(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    source = "site5" if _are_generated(sources) else sources[0]
    scheme = Scheme("uniform", n, classes="source", seed=seed, outlier=(source,))
    return KnownAnswer(scheme, {}, f"{site_name(n, n)} has only {source}, honest and unlike the others")


def _needed(n: int, seed: int, sources: list[str]) -> KnownAnswer:
    own = ("site4", "site6") if _are_generated(sources) else (sources[0],)
    scheme = Scheme("uniform", n, classes="source", seed=seed, outlier=own)
    expected = f"{site_name(n, n)} not last: only it has {' and '.join(own)}, with inverted intensities"
    return KnownAnswer(scheme, {"inverted": own}, expected)


def _are_generated(sources: list[str]) -> bool:
    return sources == [f"site{place}" for place in range(1, 7)]


KINDS: Mapping[str, Callable[[int, int, list[str]], KnownAnswer]] = {
    "equal": _equal,
    "sizes": _sizes,
    "double": _double,
    "noise": _noise,
    "shifted": _shifted,
    "expert": _expert,
    "duplicate": _duplicate,
    "narrow": _narrow,
    "outlier": _outlier,
    "needed": _needed,
}


def parse(spec: str) -> tuple[str, Scenario]:
    """Return the kind and the scenario of a spec such as ``noise:sites=6``; `BadInput` if it is not one."""
    scenario: Scenario = parse_spec(spec, dict.fromkeys(KINDS, Scenario), "--scenarios")
    return split_spec(spec)[0], scenario


def make_if_missing(folder: Path, asked: Mapping[str, Any], make: Callable[[], object]) -> None:
    """Make a missing folder; ``FOLDER.json`` next to it records the options.

    Raises:
        BadInput: it exists and was made with other options than ``asked``.
    """
    record = folder.with_name(f"{folder.name}.json")
    require_unchanged(record, asked)
    if not is_occupied(folder):
        make()
    write_json(record, asked)


def generate(out: Path, size: int, patients: int, seed: int = 0) -> Path:
    """Return the generated hospitals whose patients scenarios partition; existing ones are reused.

    Raises:
        BadInput: existing ones are of another size, other patients or another seed.
    """
    asked = Preparation(GENERATED, size=size, patients=patients, seed=seed)
    make_if_missing(out, {"size": size, "patients": patients, "seed": seed}, lambda: prepare(asked, out))
    return out


def make(spec: str, pool: Path, out: Path, seed: int = 0, other: Path | None = None, folds: bool = False) -> str:
    """Partition the prepared patients of ``pool`` into a scenario, unless it exists; its known answer.

    Args:
        spec: of the scenario.
        pool: folder of prepared site folders.
        out: folder of the scenario's sites.
        seed: of the partition.
        other: the same cases with other masks, for ``expert``.
        folds: keep the pool's folds.

    Raises:
        BadInput: there are too few patients, the existing scenario is of another pool, or a scenario cannot have folds.
    """
    kind, scenario = parse(spec)
    sources = [site.name for site in open_sites(pool)]
    answer = KINDS[kind](scenario.sites, seed, sources)
    if answer.scheme.outlier and len(sources) < 2:
        raise BadInput(
            f"--scenarios {spec}: {pool} holds only {sources[0]}; an outlier needs the patients of a second hospital"
        )
    asked, options = {"pool": str(pool.resolve()), "seed": seed}, dict(answer.options)
    if folds:
        asked["folds"] = options["folds"] = True
    if "of_other" in options:
        if other is None:
            raise BadInput(f"--scenarios {spec}: needs the same cases with other masks; name their --other-pool")
        asked["other"] = str(other.resolve())
        options["trained_on"] = dict.fromkeys(options.pop("of_other"), other)
    make_if_missing(out, asked, lambda: partition(pool, out, answer.scheme, **options))
    return answer.expected
