"""What a run is: method, parameters, network, training, rounds, seed. Made once, sent to server and sites."""

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.method import Method
from fedmerit.contract.observers import OBSERVERS
from fedmerit.errors import BadInput, require_known, suggest
from fedmerit.files import record_hash
from fedmerit.methods.registry import METHODS, build_method, estimates_contributions, undefined_quantities
from fedmerit.schema.configuration.data import Preprocessing
from fedmerit.schema.configuration.requirements import (
    require_observers,
    require_private_training,
    require_script_support,
)
from fedmerit.schema.configuration.script import DERIVED, SETTINGS, Script, derived_parts
from fedmerit.schema.configuration.settings import (
    ARCHITECTURES,
    LOSSES,
    OPTIMIZERS,
    SHARED_GROUPS,
    SYNONYMS,
    GuardSettings,
    Network,
    Privacy,
    Training,
    settable,
    with_preset,
    with_recipe,
)
from fedmerit.schema.declarations import Checked, parameters, read, split_spec
from fedmerit.schema.rules import About, Count
from fedmerit.schema.run_info import read_run
from fedmerit.trust import allow
from fedmerit.version import code_commit, installed_versions, package_version


@dataclass(frozen=True)
class RunConfiguration(Checked):
    """A run, whatever the engine."""

    method: str
    task: str
    rounds: Annotated[int, Count(1, 1_000_000), About("Rounds to train.")]
    seed: Annotated[int, Count(), About("Random seed of the first model and of every draw.")]
    network: Network
    training: Training = field(default_factory=Training)
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the method, by the paper's names
    values: tuple[str, ...] = ()  # specs of the observers, for values of the sites
    keep_updates: bool = False  # whether the server keeps every round's in the run folder, for values afterwards
    share_models: bool = False  # whether sites may be sent models from which another site's update follows
    guard: GuardSettings = field(default_factory=GuardSettings)
    privacy: Privacy = field(default_factory=Privacy)  # of sites that train by DP-SGD
    preprocessing: Preprocessing | None = None  # of all sites' images; None: not known, or not the same
    server_images: str = ""  # SHA-256 of the server's own images, `images_digest`; "": it has none
    study: str = ""  # that the run is for, by the name that hospitals know; "": none
    script: Script | None = None  # sites train by scripts of their own; network and training follow from it
    fold: Annotated[int | None, Count(), About("Fold of the sites' folders whose splits the run uses.")] = None

    @property
    def can_evaluate(self) -> bool:
        """Whether sites evaluate models that they are not asked to train from; only a script may not."""
        return self.script is None or bool(self.script.evaluates and self.script.metric)

    @property
    def can_enrol(self) -> bool:
        """Whether sites know their cases; a script may not say."""
        return self.script is None or "cases" in self.script.uses

    def build_method(self) -> Method:
        """Return the method with its parameters."""
        return build_method(self.method, self.parameters)

    def build_guarded_method(self) -> Method:
        """Return the method of server and sites: under the guard its
        `fedmerit.contract.capabilities.HasGuardedForm.guarded_form`.
        """
        method = self.build_method()
        other = capabilities(method).guarded if self.is_guarded(method) else None
        return other.guarded_form if other else method

    def is_guarded(self, method: Method) -> bool:
        """Return whether the guard is on and needed: not if no site receives anything from another."""
        return self.guard.guard == "on" and not method.needs.unfiltered

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as JSON holds it, without `values`, `keep_updates`, `privacy`, `preprocessing`,
        `server_images` and `study` if they are empty.

        Of a script's run without `network` and `training`, else without `script`.
        """
        optional = ("values", "keep_updates", "privacy", "preprocessing", "server_images", "study", "script")
        off = {name for name in optional if not getattr(self, name)} | set(DERIVED if self.script else ())
        off |= {"fold"} if self.fold is None else set()
        content = super().to_dict()
        content |= {"preprocessing": self.preprocessing.to_dict()} if self.preprocessing else {}
        return {name: value for name, value in content.items() if name not in off}

    @property
    def digest(self) -> str:
        """The SHA-256 of `to_dict`, in hexadecimal: server and sites record it."""
        return record_hash(self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfiguration":
        """Return the configuration that `to_dict` wrote; `BadInput` if a name or value is unknown."""
        values = dict(values)
        if script := values.get("script"):
            if given := sorted({*DERIVED} & {*values}):
                raise BadInput(f"plan: {' and '.join(given)} of a run by script; leave them out")
            values |= derived_parts(script)
        if preprocessing := values.pop("preprocessing", None):
            values["preprocessing"] = Preprocessing.from_dict(preprocessing)
        config = read(cls, values, "plan")
        return config.checked()

    def checked(self) -> "RunConfiguration":
        """Return the configuration with the method's parameters complete and of their types, or `BadInput`."""
        require_known("method", [self.method], METHODS)
        method = read(METHODS[self.method], self.parameters, f"method {self.method}", texts=True)
        can = capabilities(method)
        if self.script:
            guarded = replace(self, parameters=asdict(method)).build_guarded_method()
            require_script_support(self.method, guarded, self.script, self.values)
        if self.rounds < method.needs.rounds:
            raise BadInput(
                f"rounds={self.rounds}: method {self.method} needs {method.needs.rounds} or more: {method.needs.why}"
            )
        if can.leave_one_out and can.leave_one_out.needs_others and self.guard.guard != "on":
            raise BadInput(
                f"guard={self.guard.guard}: {self.method} needs the others' error without a site, which only the "
                "guard has them measure; take guard=on (in a list of methods, too: "
                f"{self.method}:error=others:guard=on), or error=absolute"
            )
        if can.leave_one_out and can.leave_one_out.needs_others and not self.guard.rate_every:
            raise BadInput(f"rate_every=0: {self.method} needs the others' error without a site; expected 1 or more")
        if can.optimizers and not self.script and self.training.optimizer not in can.optimizers:
            raise BadInput(
                f"optimizer={self.training.optimizer}: method {self.method} needs {' or '.join(can.optimizers)}; "
                f"add --set optimizer={can.optimizers[0]}"
            )
        for name in ("momentum", "clip_norm") if can.optimizers and not self.script else ():
            if value := getattr(self.training, name):
                raise BadInput(
                    f"{name}={value:g}: method {self.method} needs steps of the learning rate times the gradient; "
                    f"leave {name} out"
                )
        if self.privacy:
            guarded = replace(self, parameters=asdict(method)).build_guarded_method()
            require_private_training(self.method, guarded, self.training)
        observers = require_observers(self.values, self.keep_updates, self.method, method)
        return RunConfiguration(**vars(self) | {"parameters": asdict(method), "values": observers})


def plan_network(plan: Mapping[str, Any]) -> Any:
    """Return the network in a plan as JSON holds it; None: there is none."""
    if "script" not in plan:
        return plan.get("network")
    return Network.from_dict(derived_parts(plan["script"])["network"]).to_dict()


def parameter_names(method: str) -> dict[str, list[str]]:
    """Return the names of the settings, by group: of the method, the training, the network, the guard."""
    groups: dict[str, type[Any]] = {"parameters": METHODS[method], **SHARED_GROUPS}
    return {group: list(settable(kind)) for group, kind in groups.items()}


def make_configuration(
    method: str,
    task: str,
    rounds: int,
    seed: int,
    network: Mapping[str, Any],
    settings: Mapping[str, Any],
    values: Sequence[str] = (),
    keep_updates: bool = False,
    preprocessing: Preprocessing | None = None,
    fold: int | None = None,
) -> RunConfiguration:
    """Return a configuration from defaults and ``settings``, which a person chose: what they name may be imported.

    Each setting names a parameter of the method, the training, the network or the guard, or is the "recipe" of the
    defaults or the "preset" of a paper, which goes before a recipe.
    ``values``, ``keep_updates`` and ``fold`` are those of `RunConfiguration`.

    Raises:
        BadInput: a name is unknown or a value is not of its type; the message lists the known names.
    """
    allow(method, *(str(settings.get(name, "")) for name in ("architecture", "loss", "optimizer")))
    require_known("method", [method], METHODS)
    names = parameter_names(method)
    chosen: dict[str, dict[str, Any]] = {group: {} for group in names} | {"network": dict(network)}
    for name, value in with_recipe(with_preset(settings, method), task).items():
        group = next((group for group in names if name in names[group]), None)
        if group is None:
            known = [name for there in names.values() for name in there]
            raise BadInput(f"parameter {name!r}: unknown with method {method}{suggest(name, known, SYNONYMS)}")
        chosen[group][name] = value
    parts = {"method": method, "task": task, "rounds": rounds, "seed": seed, "preprocessing": preprocessing}
    parts |= {"values": tuple(values), "keep_updates": keep_updates, "fold": fold, "parameters": chosen["parameters"]}
    parts |= {group: read(kind, chosen[group], group, texts=True) for group, kind in SHARED_GROUPS.items()}
    config = read(RunConfiguration, parts, "plan", texts=True)
    if config.guard.guard == "off" and config.guard != GuardSettings():
        others = ", ".join(name for name in chosen["guard"] if name != "guard")
        raise BadInput(f"{others}: has no effect with the guard off; leave it out")
    return config.checked()


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
    """Return the configuration of a run with ``script``.

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
    require_known("method", [method], METHODS)
    groups: dict[str, list[str]] = {
        "parameters": list(parameters(METHODS[method])),
        "guard": list(parameters(GuardSettings)),
        "script": list(SETTINGS),
    }
    chosen: dict[str, dict[str, Any]] = {"parameters": {}, "guard": {}, "script": {}}
    for name, value in (settings or {}).items():
        group = next((group for group, names in groups.items() if name in names), None)
        if group is None:
            raise BadInput(_explain(name, method, groups))
        chosen[group][name] = value
    own = read(Script, asdict(script) | chosen["script"], "script", texts=True) if chosen["script"] else script
    parts = {"method": method, "task": TASK, "rounds": rounds, "seed": seed, "values": tuple(values)}
    parts |= {"keep_updates": keep_updates, "parameters": chosen["parameters"]}
    parts |= {"guard": read(GuardSettings, chosen["guard"], "guard", texts=True)}
    config = RunConfiguration.from_dict(parts | {"script": own.to_dict()})
    shares = with_sharing(config, share_models, on_one_machine=True, has_server_images=False)
    return shares if shares.can_evaluate else replace(shares, guard=replace(shares.guard, rate_every=0))


def _explain(name: str, method: str, groups: Mapping[str, list[str]]) -> str:
    """Return why a setting is none of the run's."""
    if name in {*settable(Training), *settable(Network), *settable(Privacy)}:
        return f"setting {name!r}: of FedMerit's own training, and this run trains by a script; give it to the script"
    known = [one for names in groups.values() for one in names]
    return f"setting {name!r}: unknown with method {method}{suggest(name, known)}"


WAYS_OUT = "add --share-models if all sites agree"
OR_IMAGES = f"give the server images of its own with --server-sites, or {WAYS_OUT}"


def why_shared(config: RunConfiguration, has_server_images: bool) -> str:
    """Return what of a run cannot do without sharing, with a way out; empty if it can."""
    method = config.build_guarded_method()
    can = capabilities(method)
    if can.peers:
        return f"method {config.method}: its sites learn from each other's models; {WAYS_OUT}"
    if method.reveals_updates:
        return f"method {config.method}: it sends sites what another site trained; {WAYS_OUT}"
    if config.values:
        return f"--values {config.values[0]}: sites evaluate models of a part of the sites; {WAYS_OUT}"
    if has_server_images:
        return ""
    if can.candidates and can.candidates.most_candidates(2):
        return f"method {config.method}: models of single sites are evaluated; {OR_IMAGES}"
    if can.leave_one_out and can.leave_one_out.needs_others:
        return f"error=others: the models without each site are evaluated; {OR_IMAGES}"
    return ""


def require_sharing(config: RunConfiguration, has_server_images: bool) -> None:
    """Raise `BadInput` if a run needs ``share_models`` and its plan does not have it."""
    if not config.share_models and (why := why_shared(config, has_server_images)):
        raise BadInput(why)


def with_sharing(
    config: RunConfiguration, asked: bool | None, on_one_machine: bool, has_server_images: bool
) -> RunConfiguration:
    """Return the plan with ``share_models`` as ``asked``; None: only on one machine, and if the run uses it.

    FedCE's sites rate the models without each other only if that is asked for, whatever else of the run needs sharing.

    Raises:
        BadInput: the run needs it.
    """
    if asked is None and on_one_machine:
        asked = bool(why_shared(config, has_server_images)) or ends_with_private_models(config)
        measures = capabilities(config.build_method()).leave_one_out
        rated = measures and not measures.needs_others and config.guard.guard == "on"
        if asked and rated and not has_server_images:
            config = replace(config, guard=replace(config.guard, rate_every=0))
    config = replace(config, share_models=bool(asked))
    require_sharing(config, has_server_images)
    return config


def ends_with_private_models(config: RunConfiguration) -> bool:
    """Return whether final models hold parts of what a single site trained."""
    return config.build_method().has_private_models or config.training.last_round == "own"


def tests_all_models(config: RunConfiguration) -> bool:
    """Return whether every site may test every final model, if no verdict stands: else each tests only its own."""
    return config.share_models or not ends_with_private_models(config)


def describe(name: str, config: RunConfiguration, sites: Sequence[str], engine: str) -> dict[str, Any]:
    """Return what every run.json says, of `fedmerit run` and of the server of a deployment."""
    return {
        "run": name,
        **run_plan(config),
        "sites": list(sites),
        "engine": engine,
        "fedmerit_version": package_version(),
        "commit": code_commit(),
        "packages": installed_versions(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def run_plan(config: RunConfiguration) -> dict[str, Any]:
    """Return the part of run.json that follows from the configuration."""
    return {
        "method": config.method,
        "parameters": dict(config.parameters),
        "seed": config.seed,
        "fold": config.fold,
        "task": config.task,
        "labels": list(config.network.labels),
        "undefined": undefined_quantities(config.method),
        "estimates": estimates_contributions(config.method),
        "rounds": config.rounds,
        "training": {} if config.script else vars(config.training),  # a script's settings are its own
        "plan": config.to_dict(),
    }


def read_plan(run: Path) -> RunConfiguration:
    """Return the configuration that run.json of a run folder holds; `BadInput` naming the file if it holds none."""
    info = read_run(run)
    plan = info["plan"]
    try:
        return RunConfiguration.from_dict(plan)
    except BadInput as error:
        raise BadInput(f"{info.file}: {error}") from None


PLACES: Mapping[str, tuple[str, str, Iterable[str]]] = {  # of a plan: part of it, field, ours
    "networks": ("network", "architecture", ARCHITECTURES),
    "losses": ("training", "loss", LOSSES),
    "optimizers": ("training", "optimizer", OPTIMIZERS),
}


def find_external_parts(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (group, name) of the parts in a plan, `RunConfiguration.to_dict`, that are not ours.

    Loads none of them.
    """
    found = [("methods", str(plan.get("method")))] if plan.get("method") not in METHODS.ours else []
    for group, (part, name, ours) in PLACES.items():
        value = (plan.get(part) or {}).get(name, next(iter(ours)))
        if value not in ours:
            found.append((group, str(value)))
    observers = [split_spec(spec)[0] for spec in plan.get("values") or ()]
    return found + [("observers", name) for name in observers if name not in OBSERVERS.ours]
