"""FedMerit's methods as an NVFlare recipe for a client script that stays unchanged."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from nvflare.client.config import TransferType
from nvflare.recipe.sim_env import SimEnv
from nvflare.recipe.spec import ExecEnv

from fedmerit.engines.nvflare.recipe import MeritRecipe, build_site_policy
from fedmerit.errors import BadInput
from fedmerit.files import write_json
from fedmerit.schema.configuration.options import Waiting
from fedmerit.schema.configuration.requirements import require_privacy
from fedmerit.schema.configuration.run import configure_script
from fedmerit.schema.configuration.settings import guarded
from fedmerit.server.requirements import require_consistent
from fedmerit.trainers.factory import FIRST_MODEL
from fedmerit.trainers.script.description import describe_script, plain_weights, require_args
from fedmerit.trainers.script.named_tensors import Model


class FedMeritRecipe(MeritRecipe):
    """A method of FedMerit around a script of NVFlare's Client API, for SimEnv, PocEnv and ProdEnv, or to export.

    Args:
        method: such as "cgsv"; `fedmerit methods` lists all.
        model: a torch.nn.Module with the first weights, or its state_dict; of NumPy arrays the script gets such.
        train_script: the script, or at a hospital its name in the site's manifest.
        min_clients: sites without whose answers no round ends; so many have to be there to begin.
        num_rounds: to train.
        train_args: of the script; with quotes around spaces only if ``launch_external_process``.
        name: of the job.
        key_metric: among the script's metrics, of the model it receives; None: it reports none that counts.
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
        bring_code: whether the job carries script and first model. Hospitals refuse jobs that do: there each site's
            manifest names the script, and `save_first_model` writes what the server's operator puts beside it.

    Raises:
        BadInput: the method needs what the script cannot do, with the reason; or an argument cannot be used.
    """

    def __init__(
        self,
        *,
        method: str,
        model: Model,
        train_script: str,
        min_clients: int,
        num_rounds: int,
        train_args: str = "",
        name: str = "fedmerit",
        key_metric: str | None = "dice",
        key_metric_range: tuple[float, float] = (0.0, 1.0),
        key_metric_mode: str = "max",
        evaluates: bool | None = None,
        settings: Mapping[str, Any] | None = None,
        seed: int = 0,
        values: Sequence[str] = (),
        keep_updates: bool = False,
        share_models: bool | None = None,
        privacy: Sequence[str] = (),
        track: Sequence[str] = (),
        round_timeout: float = 0.0,
        script_timeout: float = 0.0,
        launch_external_process: bool = False,
        command: str = "python3 -u",
        params_transfer_type: TransferType | str = TransferType.FULL,
        bring_code: bool = True,
    ):
        file = Path(train_script).resolve()
        if not file.is_file():
            raise BadInput(f"train_script {train_script}: file not found; expected the sites' Python script")
        require_args(train_args, launch_external_process)
        script = describe_script(model, file, key_metric, key_metric_range, key_metric_mode, evaluates)
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
        super().__init__(config, name, waiting, min_clients, filters, track, launch)
        self._first = plain_weights(model)
        if bring_code:
            self._folder = tempfile.TemporaryDirectory(prefix="fedmerit")
            self.add_server_file(str(self.save_first_model(Path(self._folder.name))))
            self._job.to_clients(str(file))

    def save_first_model(self, folder: Path) -> Path:
        """Write the weights to begin with into a folder, such as local/ of the server's kit; the file."""
        torch.save(self._first, folder / FIRST_MODEL)
        return folder / FIRST_MODEL

    def process_env(self, env: ExecEnv) -> None:
        """Let NVFlare's simulator build FedMerit's classes."""
        if isinstance(env, SimEnv):
            local = Path(env.workspace_root) / self.name / "local" / "resources.json"
            if not local.exists():
                local.parent.mkdir(parents=True, exist_ok=True)
                write_json(local, build_site_policy())
