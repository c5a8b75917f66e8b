"""Refuses a job that names a class which is not allowed here, at its deployment, with the reason.

NVFlare itself looks when the job's processes build their parts. By then the job runs at the server, which
learns only the exit code of the first site's process.
"""

from pathlib import Path
from typing import Any

from nvflare.apis.app_validation import AppValidator
from nvflare.apis.fl_constant import WorkspaceConstants
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.utils.config_factory import ConfigFactory

from fedmerit.engines.nvflare.components import find_components
from fedmerit.errors import BadInput
from fedmerit.plugin_references import refusal
from fedmerit.plugins import find_reference
from fedmerit.schema.configuration.run import find_external_parts
from fedmerit.trainers.monai.manifest import read_manifest_file


class ClassValidator(AppValidator):
    """NVFlare's app validator of our kits, by the class allow list in ``local/resources.json``.

    Of a plan, which names methods, networks, losses and optimisers, those that are not FedMerit's have to be approved.

    Args:
        config: the file of a job that is for this machine, ``config_fed_client.json`` or ``config_fed_server.json``.
        manifest: the file in which the parts of others stand that are approved here.
    """

    def __init__(self, config: str, manifest: str = ""):
        self.config, self.manifest = config, manifest
        self.authorizer = ComponentPathAuthorizer()

    def validate(self, app_folder: str) -> tuple[str, dict[str, Any]]:
        """Why the job is refused, "" if it is not; and nothing else."""
        app = Path(app_folder)
        if not (app / WorkspaceConstants.CUSTOM_FOLDER_NAME).exists():  # a job with code is judged by the byoc right
            content = ConfigFactory.load_config(self.config, [str(app / "config")]).to_dict()
            try:
                for part in find_components(content, []):
                    self.authorizer.authorize_component_config(part.element, part)
                    self._require_approved(part.element.get("args", {}).get("plan"))
            except (UnsafeComponentError, BadInput) as error:
                return str(error), {}
        return "", {}

    def _require_approved(self, plan: Any) -> None:
        """`BadInput` if a plan names a part of others that is not approved here, or is no plan."""
        if plan is None:
            return
        approved = read_manifest_file(Path(self.manifest)).approved if self.manifest else {}
        if approved is None:
            return
        for group, name in find_external_parts(plan):
            reference = find_reference(group, name)
            if reference is not None and (refused := refusal(reference, approved)):
                raise BadInput(f"{group}: {name!r}: {refused}")
