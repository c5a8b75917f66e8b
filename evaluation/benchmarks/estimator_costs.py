"""CPU seconds of a FedAvg round in which values are observed, beside one in which none are, by number of sites."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.benchmarks.benchmark import Benchmark
from evaluation.benchmarks.generated_sites import generated_sites
from evaluation.benchmarks.method_costs import BASE, SECONDS, rounds_of
from fedmerit.errors import BadInput

NOTHING = "nothing"


def estimator_costs(
    out: Path,
    numbers: Sequence[int],
    values: Sequence[str],
    size: int,
    rounds: int,
    repetitions: int,
    settings: Mapping[str, Any],
    on_case: Any,
) -> pd.DataFrame:
    """Measure short trainings of generated sites, all alike, in this process, one site at a time.

    Args:
        out: folder of what was measured.
        numbers: of sites, from 2.
        values: what is observed, as `fedmerit run --values` takes it, one at a time.
        size: pixels of the images.
        rounds: of each training, the first of which is not counted.
        repetitions: of every case, interleaved.
        settings: of the training.
        on_case: called before every measurement.

    Returns:
        Sites, what is observed, seconds, and their ratio to those of a round of as many sites in which nothing is: the
        median, the least and the most of those within a repetition. Written to ``out``, too.

    Raises:
        BadInput: fewer than two rounds or sites, or something that cannot be observed.
    """
    if rounds < 2:
        raise BadInput(f"--rounds {rounds}: expected 2 or more, as the first is not counted")
    if few := [number for number in numbers if number < 2]:
        raise BadInput(f"--sites {few[0]}: expected 2 or more, as one site alone is worth everything")
    asked = {"sites": list(numbers), "values": list(values), "size": size, "rounds": rounds, "settings": dict(settings)}
    benchmark = Benchmark("estimators", asked)
    cases = {
        _name(number, observed): rounds_of(
            out / "work" / _name(number, observed).replace(" ", "-").replace(":", "-"),
            BASE,
            generated_sites(out, size, number),
            rounds,
            settings,
            [] if observed == NOTHING else [observed],
        )
        for number in numbers
        for observed in (NOTHING, *values)
    }
    benchmark.measure(cases, repetitions, on_case, out)
    medians = benchmark.table.set_index(["case", "quantity"])["median"]
    rows = []
    for number in numbers:
        ratios = benchmark.ratios(SECONDS, _name(number, NOTHING)).set_index("case")
        for observed in (NOTHING, *values):
            case = _name(number, observed)
            row = {"Sites": number, "Observed": observed, SECONDS: medians[case, SECONDS]}
            rows.append(row | ratios.loc[case, ["median", "least", "most"]].add_prefix("Ratio, ").to_dict())
    table = pd.DataFrame(rows)
    benchmark.write_with(out, table)
    return table


def _name(number: int, observed: str) -> str:
    return f"{number} sites {observed}"
