"""NVFlare's simulator with attackers: ``python -m fedmerit_lab.attacks.simulator RUN WORKSPACE THREADS SITE...``.

The run's run.json names the attackers. No deployed machine allows a job to name `AttackerExecutor`, and it refuses to
work where a startup kit is.
"""

import sys
from typing import Any

from fedmerit.engines.nvflare import simulator
from fedmerit.engines.nvflare.executor import MeritExecutor
from fedmerit.errors import BadInput
from fedmerit.schema.run_info import read_run
from fedmerit.site.machine_settings import run_folder
from fedmerit.site.site import Site
from fedmerit_lab.attacks.attacker_site import wrap_attacker


class AttackerExecutor(MeritExecutor):
    """An executor of the simulator whose site follows the attack that run.json has for it, if any."""

    def open_site(self, fl_ctx: Any) -> Site:
        """Return the site, which may attack; raise `BadInput` on a provisioned machine."""
        workspace = fl_ctx.get_engine().get_workspace()
        if self._follow_manifest(fl_ctx) is not None:
            raise BadInput("simulated attacks are for the simulator; a provisioned site simulates none")
        specs = read_run(run_folder(workspace.get_run_dir(fl_ctx.get_job_id()))).get("attacks", {})
        return wrap_attacker(super().open_site(fl_ctx), specs)


if __name__ == "__main__":
    from fedmerit_lab.attacks import simulator as module  # the job names the class by its module, not by __main__

    simulator.run_program(*sys.argv[1:], executor=module.AttackerExecutor)
