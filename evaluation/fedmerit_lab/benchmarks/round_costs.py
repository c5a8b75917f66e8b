"""Seconds of a round: by method relative to FedAvg, and of observed values relative to none, by number of sites."""

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fedmerit.engines import runs
from fedmerit.engines.image_sites import configure_images
from fedmerit.errors import BadInput
from fedmerit.machine import pick_device
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.site_folder import open_sites
from fedmerit.trainers.factory import build_network
from fedmerit.trainers.monai.local_training import train
from fedmerit.trainers.monai.samples import build_samples
from fedmerit_lab.benchmarks.benchmark import Benchmark, Measure, bars
from fedmerit_lab.benchmarks.generated_sites import generated_sites

BASE = "fedavg"
STEPS = "steps"  # instead of a method: the optimiser's steps of a round, on the images of all sites pooled, only
SECONDS, WALL, GPU_MEMORY = "CPU seconds per round", "seconds per round", "GPU memory [MB]"
SETTINGS: Mapping[str, Mapping[str, Any]] = {  # so that the rounds after the first are those of the method proper
    "fedsac": {"importance": "taylor", "standalone_rounds": 1},
    "cycle": {"warmup": 0},
}


def method_costs(
    out: Path,
    sites: Path,
    methods: Sequence[str],
    rounds: int,
    repetitions: int,
    settings: Mapping[str, Any],
    on: Any,
    threads: int = 1,
) -> Benchmark:
    """Measure short trainings in this process; a round's is the mean of all but the first.

    Args:
        out: folder of the measurements.
        sites: folder of site folders, with images set aside for the server if a method needs them.
        methods: beside `BASE`, which always is among them; or `STEPS`.
        rounds: of each training.
        repetitions: of every method, interleaved.
        settings: of all of them, beneath `SETTINGS`.
        on: called before every measurement.
        threads: sites at work at a time.

    Raises:
        BadInput: an unknown method, or fewer than two rounds.
    """
    if unknown := [name for name in methods if name not in (*METHODS, STEPS)]:
        raise BadInput(f"--methods {unknown[0]}: unknown; there are {', '.join((*METHODS, STEPS))}")
    if rounds < 2:
        raise BadInput(f"--rounds {rounds}: expected 2 or more, as the first is not counted")
    names = list(dict.fromkeys([BASE, *methods]))
    asked = {"sites": str(sites), "methods": names, "rounds": rounds, "settings": dict(settings), "of": SETTINGS}
    benchmark = Benchmark("methods", asked | {"threads": threads})
    cases = {
        name: _steps_of(sites, settings)
        if name == STEPS
        else rounds_of(
            out / "work" / name, name, sites, rounds, {**settings, **SETTINGS.get(name, {})}, threads=threads
        )
        for name in names
    }
    benchmark.measure(cases, repetitions, on, out)
    benchmark.write(out, {"methods": bars(benchmark.table, SECONDS, SECONDS)})
    return benchmark


class _RoundsDone(Exception):
    """A signal after the last round: what a run does then is not measured, and not done."""


def rounds_of(
    work: Path,
    method: str,
    sites: Path,
    rounds: int,
    settings: Mapping[str, Any],
    values: Sequence[str] = (),
    threads: int = 1,
) -> Measure:
    """Return a measure of a round's seconds in this process, the mean of all but the first; ``values`` are observed."""

    def measured() -> Mapping[str, float]:
        shutil.rmtree(work, ignore_errors=True)
        runs.create(work, method, sites, rounds, engine="local", threads=threads, settings=settings, values=values)
        _forget_gpu_memory()
        ends: list[tuple[float, float]] = []

        def note(record: Mapping[str, Any]) -> None:
            ends.append((time.process_time(), time.perf_counter()))
            if len(ends) == rounds:
                raise _RoundsDone

        with suppress(_RoundsDone):
            runs.execute(work, note)
        return _costs(ends)

    return measured


def _steps_of(sites: Path, settings: Mapping[str, Any]) -> Measure:
    """Return seconds of `STEPS`, after a round of them that is not counted."""

    def measured() -> Mapping[str, float]:
        folders, device = open_sites(sites), pick_device("auto", STEPS)
        config = configure_images(folders, RunOptions(method=BASE, rounds=1), settings)
        training = replace(config.training, steps=config.training.steps * len(folders))
        torch.set_num_threads(1)
        cases = [case for folder in folders for case in folder.cases("training")]
        samples, network = build_samples(cases, config.network.patch), build_network(config.network, device)
        _forget_gpu_memory()
        ends = []
        for round in range(2):
            train(network, samples, training, training.lr, seed=round)
            ends.append((time.process_time(), time.perf_counter()))
        return _costs(ends)

    return measured


def _forget_gpu_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _costs(ends: Sequence[tuple[float, float]]) -> Mapping[str, float]:
    """Return the costs of a round by the CPU and wall seconds at the end of each."""
    cpu, wall = ((last - first) / (len(ends) - 1) for first, last in zip(ends[0], ends[-1], strict=True))
    gpu = {GPU_MEMORY: torch.cuda.max_memory_reserved() / 1e6} if torch.cuda.is_available() else {}
    return {SECONDS: cpu, WALL: wall, **gpu}


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
        out: folder of the measurements.
        numbers: of sites, from 2.
        values: specs of `fedmerit run --values`, observed one at a time.
        size: pixels of the images.
        rounds: of each training, the first of which is not counted.
        repetitions: of every case, interleaved.
        settings: of the training.
        on_case: called before every measurement.

    Returns:
        Sites, observed values, seconds, and their ratio to those of a round of as many sites without: the
        median, the least and the most of those within a repetition. Written to ``out``, too.

    Raises:
        BadInput: fewer than two rounds or sites, or something that cannot be observed.
    """
    if rounds < 2:
        raise BadInput(f"--rounds {rounds}: expected 2 or more, as the first is not counted")
    if few := [number for number in numbers if number < 2]:
        raise BadInput(f"--sites {few[0]}: expected 2 or more, as a single site has the whole value")
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
