"""A model of a run as nnU-Net's own model folder: python export.py PLAN RUN/models/global.pt FOLDER.

nnUNetv2_predict_from_modelfolder -i IMAGES -o OUT -m FOLDER -f 0
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from plan import Net

from fedmerit.errors import BadInput
from fedmerit.tensor_files import load_state


def export(plan: Path, model: Path, folder: Path) -> Path:
    """Write dataset.json, plans.json and fold_0/checkpoint_final.pth into a folder; the checkpoint.

    Raises:
        BadInput: the model was trained by another plan.
    """
    network, weights = Net(plan), load_state(model)
    own = network.state_dict()
    if weights.keys() != own.keys():
        of_run = next((name for name in weights if name.startswith("plan_")), "no plan")
        raise BadInput(f"{model}: trained by {of_run}, and {plan} has another; give the run's plan folder")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(weights[name])
    plans = json.loads((plan / "plans.json").read_text())
    (configuration,) = plans["configurations"]
    mirrored = len(plans["configurations"][configuration]["patch_size"])
    file = folder / "fold_0" / "checkpoint_final.pth"
    file.parent.mkdir(parents=True, exist_ok=True)
    for name in ("plans.json", "dataset.json", "dataset_fingerprint.json"):
        shutil.copy(plan / name, folder)
    checkpoint = {
        "network_weights": network.network.state_dict(),
        "trainer_name": nnUNetTrainer.__name__,
        "init_args": {"configuration": configuration, "fold": 0},
        "inference_allowed_mirroring_axes": tuple(range(mirrored)),  # nnU-Net's augmentation mirrors all
    }
    torch.save(checkpoint, file)
    return file


if __name__ == "__main__":
    print(export(*map(Path, sys.argv[1:4])))
