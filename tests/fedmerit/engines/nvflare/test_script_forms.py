"""Scripts and jobs in the forms of NVFlare's examples: each runs, or is refused before training."""

import json
import subprocess
import sys
import warnings
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from nvflare.recipe import PotentialSecretWarning, add_cross_site_evaluation, set_per_site_config
from torch import nn

from fedmerit import FedMeritRecipe
from fedmerit.errors import BadInput

NUMPY = """
import numpy as np
import nvflare.client as flare

flare.init()
step = int(flare.get_site_name()[-1])
while flare.is_running():
    received = flare.receive()
    weights = received.params["numpy_key"]
    change = step * np.eye(3, dtype=weights.dtype)
    flare.send(flare.FLModel(params={"numpy_key": change}, params_type="DIFF",
                             metrics={"weight_mean": float(weights.mean())}, current_round=received.current_round))
"""
PERCENT = """
import torch
from model import make
import nvflare.client as flare
from nvflare.client.tracking import SummaryWriter

flare.init()
network, writer, last = make(), SummaryWriter(), None
images = torch.randn(8, 4, generator=torch.Generator().manual_seed(int(flare.get_site_name()[-1])))
while flare.is_running():
    received = flare.receive()
    if flare.is_submit_model():
        flare.send(flare.FLModel(params=last))
        continue
    network.load_state_dict(received.params)
    accuracy = 100 * int((network(images) > 0).sum()) // 8
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"accuracy": accuracy}))
        continue
    loss = (network(images) - 1).square().mean()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    loss.backward()
    optimizer.step()
    writer.add_scalar(tag="loss", scalar=float(loss), global_step=received.current_round)
    last = {name: value.detach().clone() for name, value in network.state_dict().items()}
    flare.send(flare.FLModel(params=last, metrics={"accuracy": accuracy}, meta={"NUM_STEPS_CURRENT_ROUND": 1}))
"""
LIGHTNING = """
import torch
from pytorch_lightning import Trainer
from model import make
import nvflare.client.lightning as flare

flare.init()
module, trainer = make(), Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                                  enable_progress_bar=False, enable_model_summary=False)
flare.patch(trainer)
images = torch.randn(8, 4, generator=torch.Generator().manual_seed(int(flare.get_site_name()[-1])))
loader = torch.utils.data.DataLoader(images, batch_size=4)
while flare.is_running():
    flare.receive()
    trainer.validate(module, loader, verbose=False)
    trainer.fit(module, loader)
"""
LIGHTNING_MODEL = """
import pytorch_lightning
import torch

class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 1)
        self.__fl_meta__ = {}

    def training_step(self, batch, index):
        return (self.layer(batch) - 1).square().mean()

    def validation_step(self, batch, index):
        self.log("val_loss", (self.layer(batch) - 1).square().mean())
        self.log("val_acc", (self.layer(batch) > 0).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

make = Module
"""
TORCH_MODEL = "import torch\n\ndef make():\n    torch.manual_seed(0)\n    return torch.nn.Linear(4, 1)\n"
TRANSFORMER = """
import torch
from model import make
from transformers import Trainer, TrainingArguments
import nvflare.client.hf as flare

flare.init()
seed = int(flare.get_site_name()[-1])
tokens = torch.randint(0, 16, (8, 8), generator=torch.Generator().manual_seed(seed))
cases = [{"input_ids": one, "labels": one} for one in tokens]
arguments = TrainingArguments(output_dir="trained", num_train_epochs=1, use_cpu=True, report_to=[], disable_tqdm=True,
                              save_strategy="epoch", seed=seed)
trainer = Trainer(model=make(), args=arguments, train_dataset=cases, eval_dataset=cases,
                  compute_metrics=lambda found: {"accuracy": float((found[0].argmax(-1) == found[1]).mean())})
flare.patch(trainer)
while flare.is_running():
    trainer.evaluate()
    trainer.train()
"""
TRANSFORMER_MODEL = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

def make():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=2))
"""
FORMS = {  # client script, model, method, what the model is in the job, the note on scores
    "numpy": (NUMPY, "", "cgsv", "[[1, 2, 3], [4, 5, 6], [7, 8, 9]]", "no scores: the scripts report no dice"),
    "percent": (PERCENT, TORCH_MODEL, "cgsv", "make()", "scores are of accuracy %,"),
    "lightning": (LIGHTNING, LIGHTNING_MODEL, "scaffold", "make()", "scores are of val_acc,"),
    "transformers": (TRANSFORMER, TRANSFORMER_MODEL, "cgsv", "make()", "scores are of eval_accuracy,"),
}
JOB = """
import fedmerit
from nvflare.recipe import SimEnv, add_experiment_tracking
{import_model}

if __name__ == "__main__":
    recipe = fedmerit.FedMeritRecipe(name="form", method="{method}", min_clients=2, num_rounds=2, model={model},
                                     train_script="client.py")
    add_experiment_tracking(recipe, tracking_type="tensorboard")
    {add_model}
    recipe.execute(SimEnv(num_clients=2, workspace_root="ws"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_scripts_in_the_forms_of_nvflares_examples_give_contributions_in_every_round(tmp_path, form):
    if form == "transformers" and not find_spec("transformers"):
        pytest.skip("transformers is not installed")
    client, model, method, made, note = FORMS[form]
    (tmp_path / "client.py").write_text(client)
    (tmp_path / "model.py").write_text(model)
    job = JOB.format(
        import_model="from model import make" if model else "",
        add_model="recipe.add_client_file('model.py')" if model else "",
        method=method,
        model=made,
    )
    (tmp_path / "job.py").write_text(job)
    done = subprocess.run([sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    ledger = tmp_path / "ws" / "form" / "server" / "simulate_job" / "fedmerit" / "ledger.jsonl"
    records = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [sorted(record["contributions"]) for record in records] == [["site-1", "site-2"]] * 2
    assert note in records[0]["notes"][0]
    assert f"round 0: {note}" in done.stdout + done.stderr


def make_recipe(folder, **more):
    (folder / "client.py").write_text("import nvflare.client as flare\n")
    arguments = {
        "method": "cgsv",
        "model": nn.Linear(2, 1),
        "train_script": str(folder / "client.py"),
        "min_clients": 2,
    }
    return FedMeritRecipe(**arguments | more)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"framework": "numpy", "exclude_vars": "head"},
            "argument framework: .*; argument exclude_vars: leave the tensors",
        ),
        ({"launch_once": False, "num_round": 2}, "argument launch_once: .*; argument num_round: unknown.*num_rounds"),
        ({"min_clients": 0}, "^FedMeritRecipe: min_clients=0: expected a whole number, 1 or more"),
        ({"train_args": ["--epochs", "1"]}, "^FedMeritRecipe: train_args=.*expected"),
        ({"key_metric_range": 5}, r"^key_metric_range=5: expected \(LOWEST, HIGHEST\)"),
        ({"name": "a b"}, "^name='a b': expected letters"),
        ({"script_timeout": -1}, "^FedMeritRecipe: script_timeout=-1: expected"),
        ({"params_transfer_type": "HALF"}, "^params_transfer_type='HALF': expected FULL or DIFF"),
        ({"values": "multi_round"}, "^FedMeritRecipe: values='multi_round': "),
        ({"settings": [1]}, r"^FedMeritRecipe: settings=\[1\]: expected"),
        ({"model": {"w": torch.ones(2, 2).to_sparse()}}, "^model: w is sparse; expected a dense tensor"),
        ({"fedprox_mu": 0.1}, 'μ of method="fedprox"'),
        ({"model": None}, "^model: is None; expected"),
        ({"model": None, "initial_ckpt": "absent.npy"}, "^initial_ckpt absent.npy: file not found"),
        ({"method": "scaffold"}, "^method scaffold: .*have the script use PTScaffoldHelper"),
    ],
)
def test_arguments_of_nvflares_recipes_are_refused_together_with_reasons(tmp_path, arguments, words):
    with pytest.raises(BadInput, match=words):
        make_recipe(tmp_path, **arguments)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (add_cross_site_evaluation, "tests its final models at the sites by itself"),
        (lambda recipe: set_per_site_config(recipe, {"site-1": {}, "site-2": {}}), "all sites get the same arguments"),
        (lambda recipe: recipe.enable_tensor_streaming(), "tensors travel in FedMerit's messages"),
    ],
)
def test_changes_by_nvflares_helpers_that_would_do_nothing_are_refused(tmp_path, change, words):
    with pytest.raises(BadInput, match=words):
        change(make_recipe(tmp_path))


def test_array_of_a_checkpoint_is_the_model_if_no_other_is_given(tmp_path):
    np.save(tmp_path / "first.npy", np.ones((2, 2)))
    recipe = make_recipe(tmp_path, model=None, initial_ckpt=tmp_path / "first.npy")
    assert recipe._first["numpy_key"].tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(("arguments", "warned"), [("--epochs 2", 0), (f"--api_key {'0123456789abcdef' * 4}", 3)])
def test_export_warns_of_secrets_in_arguments_and_not_of_the_digest_of_the_model(tmp_path, arguments, warned):
    (tmp_path / "client.py").write_text("import nvflare.client as flare")
    recipe = FedMeritRecipe(
        method="cgsv",
        model=nn.Linear(2, 1),
        train_script=str(tmp_path / "client.py"),
        min_clients=2,
        train_args=arguments,
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        recipe.export(str(tmp_path / "job"))
    assert len([one for one in found if one.category is PotentialSecretWarning]) == warned
