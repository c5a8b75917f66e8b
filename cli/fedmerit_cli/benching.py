"""``fedmerit bench``: a sub-command a file. What measures stands in evaluation/benchmarks."""

import typer

from fedmerit_cli import (
    bench_aggregation,
    bench_detection,
    bench_estimators,
    bench_growth,
    bench_memory,
    bench_methods,
    bench_planted,
    bench_prepare,
    bench_speed,
    bench_values,
)

commands = typer.Typer()
bench = typer.Typer(help="Measure what is built: speed, memory, values, detectors.", no_args_is_help=True)
for file in (
    bench_speed, bench_memory, bench_growth, bench_aggregation, bench_methods, bench_prepare, bench_values,
    bench_estimators, bench_planted, bench_detection,
):  # fmt: skip
    bench.add_typer(file.commands)
commands.add_typer(bench, name="bench")
