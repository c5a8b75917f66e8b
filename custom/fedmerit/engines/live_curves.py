"""Live curves of a run: the scalars of each round, by site, for TensorBoard or MLflow.

The server knows every number already, so sites send nothing for them. On NVFlare its receivers write them
(`fedmerit.engines.nvflare.scalars`), on the local engine the writers here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fedmerit.engines.engine import OnRound
from fedmerit.schema.configuration.specs import MLflow, parse_tracker

EXPERIMENT = "FedMerit"  # in MLflow
TENSORBOARD, MLFLOW = "tensorboard", "mlflow.db"  # in the run folder
SCALARS = {"weight": "weights", "contribution": "contributions", "validation_dice": "validation_dice"}  # of the ledger

Write = Callable[[str, str, float, int], None]  # writes a site's tag, value and round


def scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield site, tag and value of every scalar in the ledger record of a round."""
    for tag, part in SCALARS.items():
        for site, value in record[part].items():
            if value is not None:
                yield site, tag, float(value)


@contextmanager
def write_curves(specs: Sequence[str], folder: Path, sites: Sequence[str]) -> Iterator[OnRound]:
    """Open the trackers of a run of the local engine, to be called with the ledger record of each round.

    Args:
        specs: of `fedmerit.schema.configuration.specs`.
        folder: the run folder, in which TensorBoard's files are, and MLflow's unless its spec names a server.
        sites: the names of the sites.
    """
    with ExitStack() as stack:
        trackers = [parse_tracker(spec) for spec in specs]
        writers = [
            stack.enter_context(
                _mlflow(tracker.uri or f"sqlite:///{(folder / MLFLOW).resolve()}", sites)
                if isinstance(tracker, MLflow)
                else _tensorboard(folder / TENSORBOARD, sites)
            )
            for tracker in trackers
        ]

        def on_round(record: Mapping[str, Any]) -> None:
            for site, tag, value in scalars(record):
                for write in writers:
                    write(site, tag, value, record["round"])

        yield on_round


@contextmanager
def _tensorboard(folder: Path, sites: Sequence[str]) -> Iterator[Write]:
    """Write event files, a folder per site."""
    from torch.utils.tensorboard import SummaryWriter  # an optional package

    with ExitStack() as stack:
        writers = {site: stack.enter_context(SummaryWriter(str(folder / site), flush_secs=5)) for site in sites}

        def write(site: str, tag: str, value: float, number: int) -> None:
            writers[site].add_scalar(tag, value, number)

        yield write


@contextmanager
def _mlflow(uri: str, sites: Sequence[str]) -> Iterator[Write]:
    """Write a run of MLflow per site."""
    from mlflow import MlflowClient  # an optional package

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    number = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
    runs = {site: client.create_run(number, run_name=site).info.run_id for site in sites}

    def write(site: str, tag: str, value: float, number: int) -> None:
        client.log_metric(runs[site], tag, value, step=number)

    try:
        yield write
    finally:
        for run in runs.values():
            client.set_terminated(run)
