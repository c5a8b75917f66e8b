"""Models of a run against its ledger's digests: of every tensor, and of what was trained."""

import io
import json
import shutil

import pytest
import torch
from ledger_records import sentences
from signed_runs import closed_again, rewritten

from fedmerit.contract import flat
from fedmerit.errors import BadInput
from fedmerit.evidence.digests import state_digest
from fedmerit.evidence.verification.models import trained_tensors
from fedmerit.evidence.verification.run import verify_run
from fedmerit.files import read_json, record_hash, write_json
from fedmerit.schema.configuration import settings
from fedmerit.schema.configuration.settings import Network
from fedmerit.trainers.factory import initial_network
from fedmerit.trainers.monai.networks import CONSTRUCTORS

STATISTICS = "running_mean"


@pytest.mark.parametrize("patch", [(), (16, 64, 64)], ids=["slices", "volumes"])
@pytest.mark.parametrize("architecture", sorted(CONSTRUCTORS))
def test_what_is_trained_of_known_networks_is_reported_from_their_files(architecture, patch):
    sizes = {"swinunetr": {"width": 12}, "basicunet": {"depth": 5}}.get(architecture, {"depth": 3})
    network = initial_network(
        Network(in_channels=1, labels=("disc",), architecture=architecture, patch=patch, **sizes), 0
    )
    file = io.BytesIO()
    torch.save(network.state_dict(), file)
    file.seek(0)
    found = torch.cat([one.reshape(-1) for one in trained_tensors(torch.load(file, weights_only=True))])
    assert torch.equal(found, flat.get_parameters(network))
    assert set(settings.ARCHITECTURES) == set(CONSTRUCTORS)


@pytest.fixture(params=["fedavg", "standalone", "fedbn"])
def run(request, trained, tmp_path):
    """A copy of a run with one model for all, or one of each site, or one with statistics of each site's own."""
    return shutil.copytree(trained("architecture=unet", method=request.param), tmp_path / "run")


def resaved(run):
    """As if the ledger had digests of the models that are there now."""
    files = {path.relative_to(run).as_posix(): path for path in (run / "models").rglob("*.pt")}
    digests = {name: state_digest(torch.load(path, weights_only=True)) for name, path in files.items()}
    rewritten(run / "ledger.jsonl", lambda lines: lines[-1]["saved"].update(digests))
    shutil.rmtree(run / "sites")
    closed_again(run)


def changed(path, which):
    """Another number in the first tensor of a model whose name ends so."""
    state = torch.load(path, weights_only=True)
    next(one for name, one in state.items() if name.endswith(which)).view(-1)[0] += 1
    torch.save(state, path)


@pytest.mark.parametrize("rewrites", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("best", [False, True])
def test_a_model_that_was_swapped_is_found(run, rewrites, best):
    folder = run / "models/best" if best else run / "models"
    if not folder.exists():
        pytest.skip("the last round was the best")
    verify_run(run)
    path = sorted(folder.glob("*.pt"))[-1]
    changed(path, "weight")
    if rewrites:
        resaved(run)
    closed_again(run)
    with pytest.raises(BadInput, match=r"\.pt: is not .* it was swapped or changed: take the model from a site"):
        verify_run(run)


def test_statistics_are_part_of_a_saved_model(run):
    path = sorted((run / "models").glob("*.pt"))[0]
    changed(path, STATISTICS)
    closed_again(run)
    with pytest.raises(BadInput, match=rf"{path.name}: is not the model that .* has a digest of"):
        verify_run(run)
    resaved(run)
    verify_run(run)


def test_a_model_that_is_gone_is_missed(run):
    path = sorted((run / "models").glob("*.pt"))[0]
    path.unlink()
    closed_again(run)
    with pytest.raises(BadInput, match=rf"{path.name}: is missing; .*ledger\.jsonl, line \d has a digest of it"):
        verify_run(run)


def test_what_is_put_beside_them_is_said_to_be_unknown(run):
    torch.save({}, run / "models/other.pt")
    closed_again(run)
    assert "what models/other.pt are: models of sites" in " ".join(sentences(verify_run(run)))


@pytest.mark.parametrize(
    "content",
    [b"no model", {"a": 1}, {"a": torch.zeros(1).expand(1 << 40)}, {"a": torch.zeros(1, dtype=torch.bfloat16)}],
)
def test_what_is_no_model_is_named(run, content):
    path = sorted((run / "models").glob("*.pt"))[0]
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    closed_again(run)
    reported = "not a file of tensors|not the state_dict of a network|names torch|not readable as tensors"
    with pytest.raises(BadInput, match=rf"{path.name}: ({reported}).*swapped"):
        verify_run(run)


def test_of_networks_of_others_and_of_models_that_the_server_never_saw_it_is_said_that_it_is_not_known(run):
    changed(sorted((run / "models").glob("*.pt"))[-1], "weight")
    resaved(run)
    for file in (run / "run.json", *(run / "models").rglob("model.json")):
        file.write_text(file.read_text().replace('"architecture": "unet"', '"architecture": "Mine"'))
    plan = record_hash(json.loads((run / "run.json").read_text())["plan"])
    rewritten(run / "ledger.jsonl", lambda lines: lines[0].update(plan=plan))
    closed_again(run)
    assert "which numbers of such a network are trained" in " ".join(sentences(verify_run(run)))
    write_json(run / "run.json", read_json(run / "run.json") | {"privacy": ["he"]})
    closed_again(run)
    with pytest.raises(BadInput, match=r"line 1: .*size is \d+, the server saw no updates"):
        verify_run(run)
    if read_json(run / "run.json")["method"] == "fedavg":  # which may be encrypted
        unseen = {"size": 0, "products": {}}
        rewritten(run / "ledger.jsonl", lambda lines: [line["inputs"].update(unseen) for line in lines])
        closed_again(run)
        assert "whose digests are of what the server saw: not the models" in " ".join(sentences(verify_run(run)))
