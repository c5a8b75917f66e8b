"""The sites of a study: prepared folders, or clients that run one script."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmerit.engines.script_runs import read_scripts
from fedmerit.errors import BadInput
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.configuration.run import RunConfiguration, make_configuration
from fedmerit.schema.configuration.script import Script
from fedmerit.schema.configuration.script_runs import configure_script
from fedmerit.trainers.monai.data import SiteFolder, open_sites


@dataclass(frozen=True)
class StudySites:
    """Either ``folders`` or a ``script``."""

    names: list[str]
    folders: Sequence[SiteFolder] = ()
    script: Script | None = None

    def configure(self, method: str, rounds: int, settings: Mapping[str, Any]) -> RunConfiguration:
        """A run of theirs, with seed 0; `BadInput` if it cannot be."""
        if self.script:
            return configure_script(method, rounds, self.script, settings=settings)
        first = self.folders[0]
        network = {"in_channels": first.channels, "labels": list(first.labels)}
        return make_configuration(method, first.task, rounds, 0, network, settings)

    def require_evaluation(self, what: str) -> None:
        """`BadInput` if ``what``, a study, has to test models at sites that took no part, and a script does not."""
        if self.script and not (self.script.evaluates and self.script.metric):
            raise BadInput(
                f"{what}: tests models at sites that did not train them; have the script answer flare.is_evaluate() "
                "with its metric"
            )


def open_study_sites(options: Mapping[str, Any]) -> StudySites:
    """Of a study with ``options`` of `fedmerit.engines.runs.create`; `BadInput` if they name none that can be used."""
    if options.get("script"):
        names = {name: value for name, value in options.items() if name in RunOptions.model_fields}
        scripts = read_scripts(RunOptions.read(names))
        return StudySites(scripts.names, script=scripts.script)
    folders = open_sites(Path(options["sites"]), options.get("only") or None)
    return StudySites([folder.name for folder in folders], folders)
