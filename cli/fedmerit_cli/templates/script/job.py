"""The project's job. NVFlare's own would be ``FedAvgRecipe(model=..., train_script=..., ...)``: the same lines."""

import sys

from model import Net
from nvflare.recipe import SimEnv

from fedmerit import FedMeritRecipe

if __name__ == "__main__":
    method, clients, rounds, workspace = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    recipe = FedMeritRecipe(
        method=method,
        model=Net(),
        train_script="client.py",
        min_clients=clients,
        num_rounds=rounds,
        settings=dict(one.split("=") for one in sys.argv[5:]),
    )
    run = recipe.execute(SimEnv(num_clients=clients, workspace_root=workspace))
    print("Result:", run.get_result())
