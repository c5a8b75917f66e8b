"""The configuration of a run whose sites train by scripts of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from fedmerit.errors import BadInput, suggest
from fedmerit.guard.settings import GuardSettings
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.run import Network, RunConfiguration, Training, settable
from fedmerit.schema.configuration.script import SETTINGS, Script
from fedmerit.schema.configuration.sharing import with_sharing
from fedmerit.schema.configuration.spec_syntax import build
from fedmerit.trust import allow

TASK = "script"  # instead of a task of images


def configure_script(
    method: str,
    rounds: int,
    script: Script,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    values: Sequence[str] = (),
    keep_updates: bool = False,
    share_models: bool | None = None,
) -> RunConfiguration:
    """The configuration of a run with ``script``.

    Args:
        script: model and metric.
        seed: of what the server draws; scripts have their own.
        settings: of the method, the guard and those of `SETTINGS`.
        values: specs of observers.
        keep_updates: whether the server keeps every round's.
        share_models: whether sites may be sent models of single sites; None: if the method cannot do without.

    Raises:
        BadInput: a setting is unknown, or of FedMerit's own training; or the method needs what the script cannot do.
    """
    allow(method)
    if method not in METHODS:
        raise BadInput(f"method {method!r}: unknown{suggest(method, METHODS)}")
    groups: dict[str, list[str]] = {
        "parameters": [one.name for one in fields(METHODS[method])],
        "guard": [one.name for one in fields(GuardSettings)],
        "script": list(SETTINGS),
    }
    chosen: dict[str, dict[str, Any]] = {"parameters": {}, "guard": {}, "script": {}}
    for name, value in (settings or {}).items():
        group = next((group for group, names in groups.items() if name in names), None)
        if group is None:
            raise BadInput(_explain(name, method, groups))
        chosen[group][name] = value
    own = build(Script, asdict(script) | chosen["script"], "script") if chosen["script"] else script
    parts = {"method": method, "task": TASK, "rounds": rounds, "seed": seed, "values": tuple(values)}
    parts |= {"keep_updates": keep_updates, "parameters": chosen["parameters"], "guard": chosen["guard"]}
    config = RunConfiguration.from_dict(parts | {"script": own.to_dict()})
    shares = with_sharing(config, share_models, on_one_machine=True, has_server_images=False)
    return shares if shares.can_evaluate else replace(shares, guard=replace(shares.guard, rate_every=0))


def _explain(name: str, method: str, groups: Mapping[str, list[str]]) -> str:
    """Why a setting is none of the run's."""
    if name in {one.name for kind in (Training, Network) for one in settable(kind)}:
        return f"setting {name!r}: of FedMerit's own training, and this run trains by a script; give it to the script"
    known = [one for names in groups.values() for one in names]
    return f"setting {name!r}: unknown with method {method}{suggest(name, known)}"
