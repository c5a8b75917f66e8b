"""FedMerit's methods as an NVFlare recipe for a client script that stays unchanged."""

import inspect
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe.poc_env import PocEnv
from nvflare.recipe.run import Run
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv
from nvflare.tool.poc.poc_commands import get_poc_workspace
from pydantic import BaseModel, ConfigDict, create_model

from fedmerit.engines.nvflare.recipe import JOB_NAME, MeritRecipe, build_site_policy
from fedmerit.engines.site_errors import describe_errors, read_errors, warn_of_errors
from fedmerit.errors import BadInput, RunFailed, suggest
from fedmerit.files import write_json
from fedmerit.schema.configuration.options import Waiting
from fedmerit.schema.configuration.requirements import require_privacy
from fedmerit.schema.configuration.run import configure_script
from fedmerit.schema.configuration.settings import guarded
from fedmerit.schema.declarations import read
from fedmerit.schema.rules import Count, Number
from fedmerit.server.requirements import require_consistent
from fedmerit.trainers.factory import FIRST_MODEL
from fedmerit.trainers.script.description import describe_script, plain_weights, require_args
from fedmerit.trainers.script.model_forms import load_checkpoint, to_model

# of NVFlare's recipes, such as FedAvgRecipe: why an argument has no counterpart here
NOT_HERE: Mapping[str, str] = {
    "aggregator": "the method aggregates; as NVFlare's aggregator take MethodAggregator in FedAvgRecipe",
    "aggregator_data_kind": "updates are what the script trained minus what it received",
    "server_expected_format": "the server gets tensors, whatever the script has",
    "framework": "the server gets tensors, whatever the script has",
    "fedprox_mu": 'it is μ of method="fedprox": settings={"mu": ...}',
    "initial_model": "it is model here",
    "model_persistor": "models are saved in the run folder, models/",
    "model_locator": "models are saved in the run folder, models/",
    "per_site_config": "all sites get the same arguments; the script knows its site by flare.get_site_name()",
    "launch_once": "a script lives as long as the run, as some methods need what it remembers",
    "launch_timeout": "a script's start has NVFlare's 300 seconds; script_timeout bounds its answers",
    "shutdown_timeout": "a script's end has NVFlare's 30 seconds",
    "stop_cond": "contributions are over all rounds; the best round is saved beside the last one, models/best",
    "patience": "contributions are over all rounds; the best round is saved beside the last one, models/best",
    "best_model_filename": "the best round's model is models/best in the run folder",
    "save_filename": "the best round's model is models/best in the run folder",
    "exclude_vars": "leave the tensors out of model, and out of what the script sends",
    "aggregation_weights": "the method decides on weights; fedavg weighs by steps of training",
    "server_memory_gc_rounds": "memory is given back after every exchange",
    "enable_tensor_disk_offload": "the server keeps the round's updates in memory",
    "client_memory_gc_rounds": "memory is given back after every task",
    "cuda_empty_cache": "the script calls torch.cuda.empty_cache() itself",
}


NUMBER_PAIRS = [[one, other] for one in (int, float) for other in (int, float)]
# arguments that the configuration declares, or the constructor judges
JUDGED_ELSEWHERE = ("num_rounds", "seed", "keep_updates", "share_models", "key_metric_range", "params_transfer_type",
                    "model", "bring_code", "further", "return")  # fmt: skip


@cache
def _arguments() -> type[BaseModel]:
    """Return a model of the recipe's arguments, as its signature declares them."""
    kinds = get_type_hints(FedMeritRecipe.__init__, include_extras=True)
    fields: Any = {name: (kind, ...) for name, kind in kinds.items() if name not in JUDGED_ELSEWHERE}
    model: type[BaseModel] = create_model("Arguments", __config__=ConfigDict(strict=True), **fields)
    return model


def require_known(arguments: Mapping[str, Any]) -> None:
    """Raise `BadInput` with the reasons if arguments of `FedAvgRecipe` are none here, unless they are its defaults."""
    defaults = inspect.signature(FedAvgRecipe.__init__).parameters
    faults = []
    for name, value in arguments.items():
        if name not in NOT_HERE:
            faults.append(f"argument {name}: unknown{suggest(name, inspect.signature(FedMeritRecipe).parameters)}")
        elif name not in defaults or value != defaults[name].default:
            faults.append(f"argument {name}: {NOT_HERE[name]}, so leave it out")
    if faults:
        raise BadInput(f"{'; '.join(faults)} (docs/from_fedavg_recipe.md)")


class OwnRun(Run):
    """A run on PocEnv, whose sites are the caller's own, so that their errors are raised.

    Args:
        env: NVFlare's environment.
        job_id: NVFlare's id of the job.
        began: seconds since 1970.
    """

    def __init__(self, env: ExecEnv, job_id: str, began: float):
        super().__init__(env, job_id)
        self.began = began

    def get_result(self, timeout: float = 0.0, clean_up: bool = True) -> str | None:
        """Return the folder of the results, as NVFlare does; `RunFailed` if the run ended before its end."""
        self.exec_env.get_job_result(self.job_id, timeout=timeout)  # waits; the workspace is still there
        status = self.get_status()
        workspace = Path(get_poc_workspace())
        try:
            if status and "COMPLETED" not in status:
                raise_errors(workspace, self.began, f"the job ended as {status}")
            warn_of_errors(workspace, self.began)
        finally:
            result: str | None = super().get_result(timeout, clean_up)
        return result


def raise_errors(workspace: Path, began: float, text: str) -> None:
    """Raise `RunFailed` with the errors of the sites below a workspace since ``began``, if there are any."""
    if errors := describe_errors(read_errors(workspace, began)):
        raise RunFailed("\n".join([text, *errors])) from None


class FedMeritRecipe(MeritRecipe):
    """A method of FedMerit around a script of NVFlare's Client API, for SimEnv, PocEnv and ProdEnv, or to export.

    Args:
        method: such as "cgsv"; `fedmerit methods` lists all.
        model: a torch.nn.Module with the first weights, or its state_dict; of NumPy arrays the script gets such. Also
            the other forms of `fedmerit.trainers.script.model_forms`, such as {"class_path": ..., "args": ...}. None:
            the weights of ``initial_ckpt`` by name.
        train_script: the script, or at a hospital its name in the site's manifest.
        min_clients: sites without whose answers no round ends; so many have to be there to begin.
        num_rounds: to train.
        train_args: of the script; with quotes around spaces only if ``launch_external_process``.
        name: of the job.
        key_metric: among the script's metrics, of the model it receives; None: dice, else accuracy, else its only
            one, which the ledger names; "": none counts.
        key_metric_range: lowest and highest value of it.
        key_metric_mode: "max": higher is better; "min": lower.
        evaluates: whether the script answers flare.is_evaluate(); None: if it names that.
        settings: of the method and the guard, which is on if they do not say.
        seed: of what the server draws.
        values: specs of observers.
        keep_updates: whether the server keeps every round's.
        share_models: whether sites may be sent models of single sites; None: if the method cannot do without.
        privacy: specs of `fedmerit.schema.configuration.specs`.
        track: specs of `fedmerit.schema.configuration.specs`.
        round_timeout: seconds to wait for sites beyond ``min_clients``; 0: as NVFlare's workflow here chooses.
        script_timeout: seconds to wait for an answer of the script; 0: as long as it takes.
        launch_external_process: whether the script runs in a process of its own.
        command: that starts it there.
        params_transfer_type: "FULL" or "DIFF": what NVFlare makes of the script's parameters.
        initial_ckpt: a file with the weights to begin with, instead of the model's.
        bring_code: whether the job carries script and first model. Hospitals refuse jobs that do: there each site's
            manifest names the script, and `save_first_model` writes what the server's operator puts beside it.
        **further: arguments of NVFlare's FedAvgRecipe that mean nothing here; their default is accepted.

    Raises:
        BadInput: the method needs what the script cannot do, with the reason; or an argument cannot be used.
    """

    def __init__(
        self,
        *,
        method: str,
        model: Any = None,
        train_script: str | Path,
        min_clients: Annotated[int, Count(1)],
        num_rounds: int = 2,
        train_args: str = "",
        name: str = "fedmerit",
        key_metric: str | None = None,
        key_metric_range: tuple[float, float] = (0.0, 1.0),
        key_metric_mode: str | None = "max",
        evaluates: bool | None = None,
        settings: Mapping[str, Any] | None = None,
        seed: int = 0,
        values: Sequence[str] = (),
        keep_updates: bool = False,
        share_models: bool | None = None,
        privacy: Sequence[str] = (),
        track: Sequence[str] = (),
        round_timeout: Annotated[float, Number(0)] = 0.0,
        script_timeout: Annotated[float, Number(0)] = 0.0,
        launch_external_process: bool = False,
        command: str = "python3 -u",
        params_transfer_type: TransferType | str = TransferType.FULL,
        initial_ckpt: str | Path | None = None,
        bring_code: bool = True,
        **further: Any,
    ):
        require_known(further)
        given = locals()
        read(_arguments(), {name: given[name] for name in _arguments().model_fields}, "FedMeritRecipe")
        if not JOB_NAME.fullmatch(name):
            raise BadInput(f"name={name!r}: expected letters, digits, '.', '_' and '-', first a letter or digit")
        if not (isinstance(key_metric_range, Sequence) and list(map(type, key_metric_range)) in NUMBER_PAIRS):
            raise BadInput(f"key_metric_range={key_metric_range!r}: expected (LOWEST, HIGHEST)")
        if str(getattr(params_transfer_type, "value", params_transfer_type)) not in list(TransferType):
            raise BadInput(f"params_transfer_type={params_transfer_type!r}: expected FULL or DIFF")
        if model is not None or not initial_ckpt:
            model = to_model(model)
        model = load_checkpoint(model, initial_ckpt) if initial_ckpt else model
        file = Path(train_script).resolve()
        if not file.is_file():
            raise BadInput(f"train_script {train_script}: file not found; expected the sites' Python script")
        require_args(train_args, launch_external_process)
        script = describe_script(model, file, key_metric, key_metric_range, key_metric_mode or "max", evaluates)
        more: dict[str, Any] = {"seed": seed, "values": values, "keep_updates": keep_updates}
        more |= {"settings": guarded(settings or {}), "share_models": share_models}
        config = configure_script(method, num_rounds, script, **more)
        filters = require_privacy(list(privacy), config.method, config.build_method())
        require_consistent(config, filters)
        launch = {
            "file": file.name,
            "args": train_args,
            "command": command if launch_external_process else "",
            "transfer": TransferType(params_transfer_type).value,
            "timeout": script_timeout,
        }
        waiting = Waiting(min_clients, round_timeout)
        self.train_args, self.command = train_args, command  # in which NVFlare looks for secrets
        super().__init__(config, name, waiting, min_clients, filters, track, launch)
        self._first = plain_weights(model)
        if bring_code:
            self._folder = tempfile.TemporaryDirectory(prefix="fedmerit")
            self.add_server_file(str(self.save_first_model(Path(self._folder.name))))
            self._job.to_clients(str(file))

    def _apply_per_site_config(self, config: dict[str, dict[str, Any]]) -> None:
        """Raise `BadInput`: NVFlare's helper for arguments of single sites calls this."""
        raise BadInput(f"set_per_site_config: {NOT_HERE['per_site_config']}, so leave it out")

    def enable_tensor_streaming(self, *args: Any, **more: Any) -> None:
        """Raise `BadInput`: tensors travel in FedMerit's messages."""
        raise BadInput("enable_tensor_streaming: tensors travel in FedMerit's messages; leave it out")

    @property
    def framework(self) -> str:
        """Raise `BadInput`: NVFlare asks a recipe for it to add a cross-site evaluation, which runs have already."""
        raise BadInput(
            "NVFlare's cross-site evaluation: a run tests its final models at the sites by itself "
            "(cross_site_val/cross_val_results.json in the run folder); leave it out"
        )

    def save_first_model(self, folder: Path) -> Path:
        """Write the weights to begin with into a folder, such as local/ of the server's kit; the file."""
        torch.save(self._first, folder / FIRST_MODEL)
        return folder / FIRST_MODEL

    def run(self, env: ExecEnv, *args: Any, **more: Any) -> Run:
        """Run the job as NVFlare does; where the sites are the caller's own, an error has their reasons.

        Raises:
            RunFailed: the run on SimEnv ended before its end, with the last error of each site. On PocEnv
                `OwnRun.get_result` raises it.
        """
        began = time.time()
        try:
            run = super().run(env, *args, **more)
        except RuntimeError as error:
            if isinstance(env, SimEnv):
                raise_errors(Path(env.workspace_root) / self.name, began, str(error))
            raise
        if isinstance(env, SimEnv):
            warn_of_errors(Path(env.workspace_root) / self.name, began)
        return OwnRun(env, run.get_job_id(), began) if isinstance(env, PocEnv) else run

    def process_env(self, env: ExecEnv) -> None:
        """Let NVFlare's simulator build FedMerit's classes."""
        if isinstance(env, SimEnv):
            local = Path(env.workspace_root) / self.name / "local" / "resources.json"
            if not local.exists():
                local.parent.mkdir(parents=True, exist_ok=True)
                write_json(local, build_site_policy())
