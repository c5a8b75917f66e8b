"""Run folders and site folders synthetic for the tests, small and alike on every machine."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmerit.files import read_json, write_json
from fedmerit.methods.registry import undefined_quantities
from fedmerit.schema.configuration.settings import Network
from fedmerit.schema.results import ResultsFile, Row
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.saved_networks import save_network
from fedmerit.trust import allow_places

SITES = ("Alder", "Birch", "Cedar", "Dogwood")


def make_run(
    folder: Path,
    *,
    method: str = "fedce",
    seed: int = 0,
    sites: Sequence[str] = SITES,
    labels: Sequence[str] = ("prostate",),
    rounds: int = 12,
    done: int | None = None,
    level: float = 0.8,
    parameters: Mapping[str, Any] | None = None,
    surfaces: bool = False,
    **changes: Any,
) -> Path:
    """A run folder of believable numbers; ``changes`` are put into run.json.

    With ``surfaces``, the HD95 of a case is 20 mm less 20 times its Dice, its NSD is its Dice.
    """
    done = rounds if done is None else done
    random = np.random.default_rng([seed, len(method)])
    folder.mkdir(parents=True, exist_ok=True)
    info = {
        "run": folder.name, "method": method, "parameters": dict(parameters or {}), "seed": seed,
        "undefined": undefined_quantities(method), "sites": list(sites), "task": "prostate", "labels": list(labels),
        "rounds": rounds, "engine": "local",
        "training": {"loss": "dice_ce", "lr": 1e-3, "batch_size": 8, "epochs": 1}, "sites_folder": None,
        "fedmerit_version": "0.1.0", "packages": {"torch": "2.13.0", "monai": "1.6.1"},
        "command": ["fedmerit", "run", method, "--seed", str(seed)], "started": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    write_json(folder / "run.json", info | changes)
    allow_places(*(Path(str(place)) for name, place in changes.items() if name == "sites_folder" and place))
    results = ResultsFile(folder / "results.csv")
    results.append([])
    merit = np.linspace(0.6, 1.0, len(sites))
    for number in range(done):
        results.append(_round(folder.name, method, seed, number, sites, labels, merit, level, random))
    if done == rounds:
        tested = list(_testing(folder.name, method, seed, rounds - 1, sites, labels, merit, level, random))
        results.append(row for one in tested for row in (one, *(_surface(one) if surfaces else ())))
    return folder


def _round(
    run: str, method: str, seed: int, number: int, sites: Sequence[str], labels: Sequence[str],
    merit: np.ndarray, level: float, random: np.random.Generator,
) -> Iterator[Row]:  # fmt: skip
    noisy = merit + random.normal(0, 0.08, len(sites))
    weights = noisy / noisy.sum()
    grown = 1 - np.exp(-(number + 0.3) / 3)
    for index, site in enumerate(sites):
        head = (run, method, seed, number, site)
        for quantity, value in {
            "num_samples": 40.0 + 10 * index, "weight": weights[index], "contribution": noisy[index] - 0.6,
            "reputation": merit[index], "train_loss": 1 - grown, "seconds": 2.5 + index, "bytes_sent": 7.5e6,
            "bytes_received": 7.5e6,
        }.items():  # fmt: skip
            yield Row(*head, quantity, float(value))
        for case in range(3):
            for label in labels:
                dice = np.clip(level * grown * (0.85 + 0.05 * index) + random.normal(0, 0.03), 0, 1)
                yield Row(*head, "dice", float(dice), "validation", f"{case:03d}", label)


def _testing(
    run: str, method: str, seed: int, number: int, sites: Sequence[str], labels: Sequence[str],
    merit: np.ndarray, level: float, random: np.random.Generator,
) -> Iterator[Row]:  # fmt: skip
    for index, site in enumerate(sites):
        for case in range(5):
            for label in labels:
                dice = np.clip(level * (0.9 + 0.05 * index) + random.normal(0, 0.04), 0, 1)
                yield Row(run, method, seed, number, site, "dice", float(dice), "testing", f"{case:03d}", label)


def _surface(row: Row) -> tuple[Row, Row]:
    assert row.value is not None
    return replace(row, quantity="hd95", value=20 - 20 * row.value), replace(row, quantity="nsd")


def add_rows(run: Path, rows: Sequence[Row]) -> None:
    """Append rows to a synthetic run."""
    ResultsFile(run / "results.csv").append(rows)


def make_sites(
    root: Path,
    sites: Sequence[str] = SITES,
    labels: Sequence[str] = ("prostate",),
    *,
    channels: int = 1,
    size: int = 64,
) -> Path:
    """Site folders with five cases a split of three slices: bright discs on a dim ground."""
    for index, site in enumerate(sites):
        lists: dict[str, list[dict[str, Any]]] = {}
        for split in ("training", "validation", "testing"):
            lists[split] = []
            for number in range(5):
                name = f"{split}{number}" if split != "testing" else f"scan_{number}"
                image, label = _disc(np.random.default_rng([index, number]), channels, len(labels), size)
                for kind, array in (("image", image), ("label", label)):
                    file = root / site / f"{name}_{kind}.npy"
                    file.parent.mkdir(parents=True, exist_ok=True)
                    np.save(file, array)
                lists[split].append({"case": name, "patient": f"{site}-{split}-{number}",
                                     "image": f"{name}_image.npy", "label": f"{name}_label.npy"})  # fmt: skip
        write_json(root / site / "datalist.json", lists)
        write_json(
            root / site / "site.json",
            {
                "name": site,
                "task": "prostate",
                "labels": list(labels),
                "channels": channels,
                "image_size": [size, size],
            },
        )
    return root


def prepare_again(site: Path) -> None:
    """Have a site folder say that it was split by another seed."""
    info = read_json(site / "site.json")
    write_json(site / "site.json", info | {"seed": info.get("seed", 0) + 1})


def _disc(random: np.random.Generator, channels: int, labels: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.mgrid[:size, :size]
    image = random.normal(0, 0.15, (3, channels, size, size))
    label = np.zeros((3, labels, size, size), np.uint8)
    centre = size / 2 + random.uniform(-size / 10, size / 10, 2)
    for position, radius in enumerate((size / 8, size / 4, size / 6)):
        for number in range(labels):
            inside = np.hypot(rows - centre[0], columns - centre[1]) < radius / (1 + number)
            label[position, number] = inside
            image[position] += inside
    return image.astype(np.float32), label


def add_models(run: Path, names: Sequence[str] = ("global",), *, labels: Sequence[str] = ("prostate",)) -> None:
    """Untrained tiny networks as the run's final models."""
    description = Network(in_channels=1, labels=tuple(labels), architecture="unet", width=2, depth=3)
    for number, name in enumerate(names):
        save_network(run / "models", name, initial_network(description, number), description)


def write_ledger(run: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """ledger.jsonl of a synthetic run."""
    (run / "ledger.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
