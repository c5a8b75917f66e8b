"""What a user would run instead: NVFlare's own FedCERecipe on its simulator, the peer of the benchmarks.

``python -m fedmerit_lab.benchmarks.nvflare_peer RUN ENDS WORKSPACE THREADS`` trains the run's network on its sites with
`nvflare_client`, a client after NVFlare's documentation; THREADS is what it gives torch, 0: torch's default.
"""

import json
import sys
from pathlib import Path

from nvflare.app_opt.pt.recipes.fedce import FedCERecipe
from nvflare.recipe.sim_env import SimEnv

from fedmerit.schema.run_info import read_run
from fedmerit_lab.benchmarks import nvflare_client
from fedmerit_lab.benchmarks.nvflare_client import PeerNetwork


def main(run: str, ends: str, workspace: str, threads: str) -> None:
    """Run the job to its end."""
    info = read_run(Path(run))
    sites = info["sites"]
    model = PeerNetwork(json.dumps(info["plan"]["network"]))
    recipe = FedCERecipe(
        model=model,
        min_clients=len(sites),
        num_rounds=info["rounds"],
        train_script=nvflare_client.__file__,
        train_args=f"--run {Path(run).resolve()} --ends {Path(ends).resolve()} --threads {threads}",
        fedce_mode="times",
    )
    recipe.execute(SimEnv(clients=list(sites), num_threads=len(sites), workspace_root=str(Path(workspace).resolve())))


if __name__ == "__main__":
    main(*sys.argv[1:])
