"""Known-answer scenarios: sites whose values differ in a known way, partitioned from prepared patients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    expected: str  # of the values, in words
    options: Mapping[str, Any] = field(default_factory=dict)  # of `fedmerit_lab.partitioning.partition.partition`


KINDS = ("equal", "sizes", "double", "noise", "shifted", "expert", "duplicate", "narrow", "outlier", "needed")


def known_answer(kind: str, n: int, seed: int, sources: Sequence[str]) -> KnownAnswer:
    """Return the scenario of a kind of `KINDS` with n sites from the patients of the hospitals ``sources``."""
    first, last = (f"site-{number:0{len(str(n))}d}" for number in (1, n))
    is_generated = list(sources) == [f"site{place}" for place in range(1, 7)]
    uniform, by_source = Scheme("uniform", n, seed=seed), Scheme("uniform", n, classes="source", seed=seed)
    if kind == "equal":
        return KnownAnswer(uniform, "all equal, up to their patients")
    if kind == "sizes":
        return KnownAnswer(Scheme("powerlaw", n, seed=seed), "more patients, more value")
    if kind == "double":
        scheme = Scheme("imbalanced", n, kappa=2 / (n + 1), holders=1, seed=seed)
        return KnownAnswer(scheme, f"{first} first: it has twice as many patients as each of the others")
    if kind == "noise":
        noisy = {"label_noise": {last: 1.0}, "noise_rule": "shift"}
        return KnownAnswer(uniform, f"{last} last: its masks are at random places", noisy)
    if kind == "shifted":
        off = {"label_noise": {last: 1.0}, "noise_rule": "offset"}
        return KnownAnswer(uniform, f"{last} last: its masks are all shifted alike", off)
    if kind == "expert":
        return KnownAnswer(uniform, f"unknown answer; {last} has other masks", {"of_other": (last,)})
    if kind == "duplicate":
        twin = f"site-{1:0{len(str(n - 1))}d}"
        expected = f"{twin} and its copy together no more than the site without copy"
        return KnownAnswer(replace(uniform, into=n - 1), expected, {"duplicate": (twin,)})
    if kind == "narrow":
        bands = Scheme("banded", n, classes="intensity", seed=seed)
        return KnownAnswer(bands, "each site has its own range of intensities and is needed")
    if kind == "outlier":
        source = "site5" if is_generated else sources[0]
        scheme = replace(by_source, outlier=(source,))
        return KnownAnswer(scheme, f"{last} has only {source}, honest and unlike the others")
    own = ("site4", "site6") if is_generated else (sources[0],)
    expected = f"{last} not last: only it has {' and '.join(own)}, with inverted intensities"
    return KnownAnswer(replace(by_source, outlier=own), expected, {"inverted": own})


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
    answer = known_answer(kind, scenario.sites, seed, sources)
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
