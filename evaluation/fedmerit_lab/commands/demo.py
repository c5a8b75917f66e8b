"""The demonstration: six generated hospitals, and everything that a report can show, in a few minutes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmerit.schema.configuration.settings import guarded
from fedmerit_cli.terminal import Commands, console

SIZE, PATIENTS, RATIOS = 48, 14, (0.15, 0.1, 0.75)  # one or two patients to train on: quick, and in need of help
SETTINGS = {"recipe": "quick", "batch_size": "4", "schedule": "cosine"}  # the last of so few rounds are no chance
SEEDS = (1, 2)  # besides 0: two seeds say little
ATTACKS = {"freerider": {"site4": "zero"}}  # by run: this hospital returns the model that it received

commands = Commands()


@commands.add("demo --out demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder to work in; finished runs in it are reused.")] = Path("demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run.")] = 10,
) -> None:
    """Run a demonstration: six generated hospitals, trained together and locally, a free rider, the report."""
    from fedmerit_evaluation.studies.run_processes import begin_processes

    begin_processes()  # they import what step 3 needs while this process prepares
    from fedmerit_cli.printing import print_runs, print_sites, run_with_progress
    from fedmerit_data.preparation import Preparation
    from fedmerit_data.prepare import prepare as prepare_sites
    from fedmerit_evaluation.report.report import write_report

    sites = out / "sites"
    shared: dict[str, Any] = {"sites": sites, "rounds": rounds, "settings": SETTINGS}
    if not sites.exists():
        _print_step(1, "Six generated hospitals")
        preparation = Preparation("synthetic-prostate", size=SIZE, patients=PATIENTS, ratios=RATIOS)
        print_sites(sites, len(prepare_sites(preparation, sites)))
    fedce = {"method": "fedce"}
    _print_step(2, "FedCE on NVFlare's simulator")
    first = _create(out, {"fedce": fedce}, shared)
    run_with_progress(first[0])
    _print_step(3, "Further seeds, local training, a run with a free rider")
    others: dict[str, Mapping[str, Any]] = {
        **{f"fedce-seed{seed}": {**fedce, "seed": seed} for seed in SEEDS},
        "freerider": fedce,
        **{f"standalone-seed{seed}": {"method": "standalone", "seed": seed} for seed in (0, *SEEDS)},
    }
    local = _create(out, others, shared | {"engine": "local"})
    _train(local, rounds)
    _print_step(4, "Dice and contribution")
    print_runs([*first, *local])
    path = write_report([*first, *local], out / "report.html")
    console.print(f"report: {path.resolve()}", soft_wrap=True)


def _print_step(number: int, what: str) -> None:
    console.print(f"{number}. {what}", style="bold")


def _create(out: Path, wanted: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any]) -> list[Path]:
    """Run folders by their names; missing ones are created."""
    from fedmerit_lab.attacks.attacked_runs import create

    for name, options in wanted.items():
        if not (out / name / "run.json").exists():
            given = {**shared, **options}
            create(out / name, ATTACKS.get(name, {}), **{**given, "settings": guarded(given["settings"])})
    return [out / name for name in wanted]


def _train(folders: Sequence[Path], rounds: int) -> None:
    """Train unfinished runs on the local engine, several at a time."""
    from fedmerit.server.checkpoint import is_finished
    from fedmerit_cli.printing import RunBars, exit_if_failed, progress, resumable
    from fedmerit_evaluation.studies.execution import Workers, execute_all
    from fedmerit_lab.attacks.attacked_runs import execute

    left = [folder for folder in folders if not is_finished(folder, rounds)]
    with Workers() as workers, resumable(), progress() as bars:
        each = RunBars(bars)
        failed = execute_all(
            left,
            workers,
            lambda folder, error: each.remove(folder),
            lambda folder, record: each.on_round(folder, record, folder.name),
            execute=execute,
        )
    exit_if_failed(failed)
