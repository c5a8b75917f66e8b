"""``python -m fedmerit.flare.simulate PLAN WORKSPACE THREADS SITE...``: one job on NVFlare's simulator.

A process of its own, so that the simulator's output goes to a log and its end takes all its children along.
"""

import sys
from pathlib import Path

from nvflare.recipe.sim_env import SimEnv

from fedmerit.files import read_json
from fedmerit.flare.recipe import MeritRecipe
from fedmerit.plan import Plan


def main(plan_file: str, workspace: str, threads: str, *sites: str) -> None:
    """Run the plan on ``sites`` with as many threads; where images and run lie stands in the environment."""
    plan = Plan.from_dict(read_json(Path(plan_file))["plan"])
    recipe = MeritRecipe(plan, name="job", min_sites=len(sites))
    recipe.execute(SimEnv(clients=list(sites), num_threads=int(threads), workspace_root=workspace))


if __name__ == "__main__":
    main(*sys.argv[1:])
