"""Evidence of how the model was trained: network, method, settings, machines."""

import inspect

from evaluation.dossier.file import File
from fedmerit.methods.registry import METHODS


def network(file: File) -> str:
    """The architecture."""
    plan = file.info.get("plan", {}).get("network", {})
    told = ", ".join(f"{name} {value}" for name, value in plan.items() if name != "labels" and value not in ({}, None))
    return f"{told}." if told else ""


def training(file: File) -> str:
    """The settings of local training."""
    told = ", ".join(f"{name} {value}" for name, value in file.info["training"].items())
    return f"{file.run.rounds_done} of {file.run.rounds} rounds; local training: {told}."


def method(file: File) -> str:
    """The federated method and its parameters."""
    name = str(file.info["method"])
    about = METHODS[name].about if name in METHODS else None
    told = ", ".join(f"{key} {value}" for key, value in file.info["parameters"].items())
    text = f"Method {name}{f' ({told})' if told else ''}"
    return f"{text}. Weights: {about.weights}. {inspect.cleandoc(about.paper)}." if about else f"{text}."


def seeds(file: File) -> str:
    """Seeds of the runs."""
    numbers = sorted({run.seed for run in file.honest if run.label == file.run.label})
    return f"Parameters begin at random by seed: {', '.join(map(str, numbers))}."


def selection(file: File) -> str:
    """Which round's model."""
    if not file.run.tested:
        return ""
    if file.info["training"].get("finish", "none") != "none":
        return "Each site took home what was best for its own validation patients: results.csv says which."
    return f"The model after the last round, {file.run.rounds - 1} counted from 0."


def ensembles(file: File) -> str:
    """None is used."""
    return "None: one model is tested at a time." if file.run.tested else ""


def software(file: File) -> str:
    """Versions."""
    packages = ", ".join(f"{name} {number}" for name, number in file.info.get("packages", {}).items())
    version = file.info.get("fedmerit_version")
    return f"FedMerit {version}{f' ({packages})' if packages else ''}, Apache-2.0." if version else ""


def hardware(file: File) -> str:
    """What a run says of devices."""
    return f"Trained on {file.info['device']}, engine {file.info['engine']}." if file.info.get("device") else ""


def cost(file: File) -> str:
    """Seconds and bytes."""
    costs = file.run.results.rounds.costs
    if "seconds" not in costs:
        return ""
    rounds = file.run.rounds_done
    text = f"{costs['seconds'].sum() * rounds / 60:.0f} minutes of sites' time in the run"
    sent = f", {costs['bytes_sent'].sum() * rounds / 1e6:.0f} MB sent" if "bytes_sent" in costs else ""
    return f"{text}{sent}. Energy was not measured."


TRAINING = (network, training, method, seeds, selection, ensembles, software, hardware, cost)
