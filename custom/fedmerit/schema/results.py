"""The one results schema: a long, append-only table ``results.csv`` per run, and ``run.json`` beside it."""

import csv
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fedmerit.errors import BadInput
from fedmerit.files import require_disk_space, require_file, require_inside, write_atomically

if TYPE_CHECKING:
    import pandas as pd

FINAL_CANDIDATES = ("given", "local_only", "selected")  # after a split: of the models that a site selects from
NOBODY = "(nobody)"  # the coalition without a member
QUANTITIES: Mapping[str, str] = {
    "dice": "Dice of one case and label, 0 to 1; empty if reference and prediction are both empty",
    "hd95": "95th percentile of the distances between the surfaces of prediction and reference, the larger of both "
    "directions, in mm; of the final test only; empty if prediction or reference is empty. A volume of unknown "
    "spacing has none of these four",
    "nsd": "normalised surface Dice: share of both surfaces within `overlaps.TOLERANCE` of the other, 0 to 1; 0 if "
    "prediction or reference is empty; empty if both are",
    "hd95_px": "hd95 of a photograph or single slice of unknown spacing, in pixels of the stored image",
    "nsd_px": "nsd of such, likewise in pixels",
    "true_positives": "voxels in reference and prediction",
    "false_positives": "voxels only in the prediction",
    "false_negatives": "voxels only in the reference",
    "train_loss": "mean loss of the round's local training",
    "epsilon": "ε of each patient that the site's training by DP-SGD has spent until then, as the site accounts",
    "num_samples": "training images of the site",
    "weight": "aggregation weight of the round, 0 to 1, sums to 1 over sites",
    "contribution": "the method's estimate for the round, signed, higher is better",
    "reputation": "contribution remembered over rounds",
    "peer_reputation": "reputation that the site has with the one under coalition, 0 to 1",
    "misalignment": "(1 - cosine) / 2 of the gradients of cross-entropy at the one under coalition and of distillation "
    "from the site, 0 to 1",
    "agreement": "Dice of the site's predictions by that of the predictions of the one under coalition, with the "
    "validation masks of the latter, 0 to 1",
    "available": "1 if the site shared with the one under coalition, 0 if what it shared could not be used",
    "cosine": "cosine of the site's update and the mean of the others' (FedCE) or of all (CGSV, RFFL), -1 to 1",
    "minus_error": "1 - validation Dice of the model without the site, 0 to 1",
    "norm": "Euclidean norm of the site's update",
    "cosine_to_mean": "cosine of the site's update and the weighted mean of all, its own included, -1 to 1",
    "cosine_to_previous": "cosine of the site's update and the weighted mean of the round before, -1 to 1",
    "largest_pair_cosine": "cosine of the site's update and the nearest of the others' of the round, -1 to 1",
    "repeated": "1 if this very update, bit for bit, was sent before, or by another site in the same round",
    "quota": "fraction of the aggregated update that the site earned, 0 to 1",
    "reward_distance": "Euclidean distance of what the site downloads from the aggregated update (CGSV, Figure 5)",
    "model_distance": "Euclidean distance of the site's new model from the server's (CGSV, Figures 2 and 6)",
    "output_distance": "likewise, of only the parameters of the output layer (CGSV, Figure 6)",
    "neuron_share": "fraction of the model's neurons that the site holds, 0 to 1",
    "utility": "Dice of the site's trained model on the server validation set, 0 to 1",
    "divergence": "KL divergence of the received model's losses on the site's images from those on the server set",
    "loss": "mean soft Dice loss of the received model on the site's training images, 0 to 1",
    "innovation": "the site's part of what updates added beyond forecasts, summed over rounds until then, in soft Dice",
    "standard_error": "of a contribution estimated by sampling; of innovation over patients",
    "expelled": "1 if the method has expelled the site",
    "final_model_choice": "final model of the site: 0 the received one, 1 that with statistics of its own images, "
    "2 its local-only model, 2 + e the received one after e epochs of fine-tuning",
    "flagged": "1 if a site's claim differs from what the server computed",
    "clipped": "factor that the guard shortened the update by, 1: not at all",
    "counted_images": "training images that the guard counts the site for",
    "reward_group_share": "share of the site in its reward group (its organisation, or it and its near copies), 0 to 1",
    "evidence": "log odds that the site does not work, to the guard; a verdict begins at log (n T / rate)",
    "verdict": "1 if a verdict of the guard stands against the site",
    "work_test": "0 if the site declares a privacy filter, so that its work is not tested; only if any site does",
    "worked": "1 if the site sent something new in the round, and no verdict withheld its reward",
    "rater_outlier": "1 if the site's ratings of others are outliers, so that they do not count",
    "rater_distance": "how far the site's last ratings of others lie from what all raters found, once all are on one "
    "level: mean difference in Dice; empty if it rated nobody",
    "measured_error": "1 - Dice of the model without the site, as the others measured it, 0 to 1",
    "statistics_bound": "factor that the guard shortened the way of BatchNorm statistics by, 1: not at all",
    "rejected": "1 if the site's reply was left out of the round (the ledger says why)",
    "seconds": "wall-clock time of the site's round, what it evaluated for the server included",
    "server_seconds": "wall-clock time of the server's work on the round, the same for all sites",
    "bytes_sent": "size of what the site sent: update and statistics",
    "bytes_received": "size of what the site received: model (or what changed in it), statistics, models to evaluate",
}
MOST_TABLE = 1 << 30  # bytes of one, twelve million rows
PLAIN_TABLE = 85_000_000  # bytes; in a larger one a row of its size would take more memory than it may
CHUNK = 1 << 14  # rows read at a time
BESIDE = 128_000_000  # bytes of memory that a table may take, beside twice those of its file
MOST_COLUMNS, LONGEST_HEADER, LONGEST_ROW = 64, 4096, 1 << 20
EXPECTED = "expected what `fedmerit run` wrote: copy it again, or run again"
ROUND_SPLITS = ("", "validation", "validation_trained")  # splits of what a round's ledger record stands for
MACHINE_QUANTITIES = ("seconds", "server_seconds", "bytes_sent", "bytes_received")  # quantities that no two runs share
PAIRS = ("peer_reputation", "misalignment", "agreement", "available")  # what one site, the coalition, holds of another


@dataclass(frozen=True)
class Row:
    """A line of results.csv; columns that do not apply stay empty."""

    run: str
    method: str
    seed: int
    round: int
    site: str
    quantity: str
    value: float | None
    split: str = ""
    case: str = ""
    label: str = ""
    coalition: str = ""
    patient: str = ""  # number of the case's patient at its site; "": it is a patient of its own
    fold: int | None = None  # of the run


COLUMNS = ["run", "method", "seed", "fold", "round", "site", "coalition", "split", "patient", "case", "label",
           "quantity", "value"]  # fmt: skip
assert set(COLUMNS) == {field.name for field in fields(Row)}
DIGEST_COLUMNS = COLUMNS[4:-1]  # all but run, method, seed, fold; and value


def rows_digest(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the SHA-256 of a round's rows in hexadecimal, without `MACHINE_QUANTITIES` and the columns of the run.

    Raises:
        ValueError: a value is no number.
    """
    whole = hashlib.sha256()
    for row in rows:
        whole.update(row_bytes(row))
    return whole.hexdigest()


def row_bytes(row: Mapping[str, Any]) -> bytes:
    """Return the bytes of a row for `rows_digest`, none of `MACHINE_QUANTITIES`; `ValueError` without a number."""
    if row["quantity"] in MACHINE_QUANTITIES:
        return b""
    value = "" if row["value"] in (None, "") else repr(float(row["value"]))
    return json.dumps([str(row[name]) for name in DIGEST_COLUMNS] + [value]).encode()


class ResultsFile:
    """The file ``results.csv``, open for appending complete rounds and for forgetting incomplete ones."""

    def __init__(self, path: Path):
        self.path = path

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows and flush them to disk; writes the header first if the file is new."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self.size:
            writer.writerow(COLUMNS)
        for row in rows:
            if row.quantity not in QUANTITIES:
                raise ValueError(f"quantity {row.quantity!r} is not named in fedmerit.schema.results.QUANTITIES")
            writer.writerow([getattr(row, name) for name in COLUMNS])
        with require_disk_space(self.path), self.path.open("a") as file:
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())

    @property
    def size(self) -> int:
        """The bytes on disk, which a checkpoint remembers."""
        return self.path.stat().st_size if self.path.exists() else 0

    def truncate(self, size: int) -> None:
        """Cut the file back to ``size`` bytes, as a checkpoint remembered it; `BadInput` if it is shorter."""
        if self.size < size:
            raise BadInput(
                f"{self.path}: {self.size} bytes, the run's last complete round left {size}; bring the file back from "
                "a copy, or start another run"
            )
        if self.size > size:
            content = self.path.read_bytes()[:size]
            write_atomically(self.path, lambda file: file.write(content))


def read_results(run: Path) -> "pd.DataFrame":
    """Read results.csv of a run folder, columns `COLUMNS`; `BadInput` if it is none or has two rows of one thing."""
    path = Path(run) / "results.csv"
    require_inside(Path(run))
    if not path.exists():
        begun = (Path(run) / "run.json").exists()
        advice = "continue with `fedmerit run --resume`" if begun else "a run folder is what `fedmerit run --out` wrote"
        raise BadInput(f"{run}: no results.csv in it{', no round is complete' if begun else ''}; {advice}")
    table = read_table(path)
    if unknown := [fold for fold in table["fold"].unique() if not re.fullmatch("[0-9]{0,4}", fold)]:
        raise BadInput(f"{path}: has the fold {unknown[0]!r:.80}, expected a whole number, or none; {EXPECTED}")
    require_each_once(table, COLUMNS[1:-1], path)  # whatever the run is called in it
    return table


def require_each_once(table: "pd.DataFrame", columns: Sequence[str], path: Path) -> None:
    """Raise `BadInput` that names the first row of results.csv with the same in ``columns`` as a row above it."""
    twice = table[table.duplicated(columns)]
    if len(twice):
        row = twice.iloc[0]
        which = f", {row['split']} case {row['case']}, {row['label']}" if row["case"] else f", {row['split']}"
        raise BadInput(
            f"{path}: has {row['quantity']} of {row['site']} in round {row['round']}{which.rstrip(', ')} twice; "
            "expected one row of each"
        )


def read_table(path: Path) -> "pd.DataFrame":
    """Read a table of the results schema from its CSV file; `BadInput` that names the file if it is none."""
    types: dict[str, type] = dict.fromkeys(COLUMNS, str) | {"seed": int, "round": int, "value": float}
    table, header = read_csv(path, types)
    if lacking := [name for name in COLUMNS if name not in table]:
        raise BadInput(f"{path}: no table of results, it lacks {', '.join(lacking)}; expected what FedMerit wrote")
    if twice := [name for name in COLUMNS if header.count(name) > 1]:  # readers would differ
        raise BadInput(f"{path}: has the column {twice[0]} twice; {EXPECTED}")
    texts = (one for name in COLUMNS if types[name] is str for one in table[name].unique())
    if unsafe := next((one for one in texts if not one.isprintable()), ""):  # readers differ in NUL, people in others
        raise BadInput(f"{path}: has {unsafe!r:.80}, expected names that can be printed; {EXPECTED}")
    return table


def read_csv(path: Path, types: Mapping[str, type]) -> "tuple[pd.DataFrame, list[str]]":
    """Read a CSV file, and the names of its columns as the file has them; only ``value`` may be empty.

    Raises:
        BadInput: the file is missing, is no table of this size, or a column is not of its type.
    """
    import pandas as pd  # sites and the server write results, and read none

    size = require_file(path, MOST_TABLE)
    try:
        with path.open(newline="") as file:
            header = next(csv.reader([file.readline(LONGEST_HEADER)]), [])
        if len(header) > MOST_COLUMNS:
            raise ValueError(f"{len(header)} columns")
        options: Any = {"keep_default_na": False, "na_values": {"value": [""]}, "index_col": False}
        taken, parts = 0, list["pd.DataFrame"]()
        with path.open("rb") as file:
            rows = file if size <= PLAIN_TABLE else io.BufferedReader(_BoundedRows(file))
            for part in pd.read_csv(rows, dtype=dict(types), chunksize=CHUNK, **options):
                taken += sum(_memory(part[name]) for name in part)
                if taken > BESIDE + 2 * size:
                    raise ValueError("more different texts than a table of its size may have")
                parts.append(part)
        return pd.concat(parts, ignore_index=True), header
    except (OSError, ValueError, OverflowError, csv.Error) as error:  # those are all of a file that is no such table
        raise BadInput(f"{path}: not readable as results ({error}); repeat the command that wrote it") from error


class _BoundedRows(io.RawIOBase):
    """The bytes of a table; `ValueError` at a row, with line breaks in quotes, of more than `LONGEST_ROW`."""

    def __init__(self, file: BinaryIO):
        self.file, self.length, self.is_quoted = file, 0, False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes into the buffer, and return their number."""
        data = self.file.read(len(buffer))
        for place, part in enumerate(data.split(b"\n")):
            self.length = len(part) + 1 + (self.length if self.is_quoted or not place else 0)
            self.is_quoted ^= bool(part.count(b'"') % 2)
            if self.length > LONGEST_ROW:
                raise ValueError(f"a row of more than {LONGEST_ROW} bytes")
        buffer[: len(data)] = data
        return len(data)


def _memory(column: "pd.Series[Any]") -> int:
    """Return the bytes of a column; equal texts in it count once."""
    texts = column.unique() if column.dtype == object or str(column.dtype) == "str" else ()
    return int(column.nbytes) + sum(map(sys.getsizeof, texts))
