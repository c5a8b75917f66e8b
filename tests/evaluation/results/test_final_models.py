"""Which final model a site has."""

from pathlib import Path

import pytest
import torch
from run_factory import add_models, make_run, make_sites

from evaluation.results.final_models import final_model, final_models
from fedmerit.errors import BadInput
from fedmerit.training.data import open_sites


def test_a_site_from_which_the_global_model_was_withheld_has_its_own(tmp_path: Path) -> None:
    run, sites = make_run(tmp_path / "run", sites=("A", "B")), make_sites(tmp_path / "sites", ("A", "B"))
    add_models(run)
    shared = torch.load(run / "models" / "global.pt", weights_only=True)
    torch.save({name: value + 1 for name, value in shared.items()}, run / "models" / "B.pt")
    found = final_models(run)
    for folder, more in zip(open_sites(sites), (0, 1), strict=True):
        state = found(folder).state_dict()
        assert all(torch.equal(state[name], value + more) for name, value in shared.items())


def test_what_a_site_took_home_is_its_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", sites=("A", "B"))
    add_models(run)
    (run / "models" / "finished").mkdir()
    (run / "models" / "finished" / "A.pt").touch()
    assert final_model(run, "A") == run / "models" / "finished" / "A.pt"
    assert final_model(run) == final_model(run, "global") == run / "models" / "global.pt"
    with pytest.raises(BadInput, match="has no model of 'B'"):
        final_model(run, "B")
