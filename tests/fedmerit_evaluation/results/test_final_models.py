"""Which final model a site has."""

from pathlib import Path

import pytest
import torch
from run_factory import add_models, make_run, make_sites

from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.schema.configuration.data import Preprocessing
from fedmerit.schema.site_folder import open_sites
from fedmerit_evaluation.results.evaluation import final_model, final_models, list_preparation_differences


def test_final_model_of_withheld_site_is_its_own(tmp_path: Path) -> None:
    run, sites = make_run(tmp_path / "run", sites=("A", "B")), make_sites(tmp_path / "sites", ("A", "B"))
    add_models(run)
    shared = torch.load(run / "models" / "global.pt", weights_only=True)
    torch.save({name: value + 1 for name, value in shared.items()}, run / "models" / "B.pt")
    found = final_models(run)
    for folder, more in zip(open_sites(sites), (0, 1), strict=True):
        state = found(folder).state_dict()
        assert all(torch.equal(state[name], value + more) for name, value in shared.items())


def test_final_model_prefers_selected_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", sites=("A", "B"))
    add_models(run)
    (run / "models" / "selected").mkdir()
    (run / "models" / "selected" / "A.pt").touch()
    assert final_model(run, "A") == run / "models" / "selected" / "A.pt"
    assert final_model(run) == final_model(run, "global") == run / "models" / "global.pt"
    with pytest.raises(BadInput, match="has no model of 'B'"):
        final_model(run, "B")


def test_list_preparation_differences_names_fields(tmp_path: Path) -> None:
    run, sites = make_run(tmp_path / "run"), make_sites(tmp_path / "sites", ("A", "B", "C"))
    add_models(run)
    assert list_preparation_differences(run, sites) == []
    fed = Preprocessing(size=(32, 32), field_of_view=150, normalisation="ct_lung").to_dict()
    model = read_json(run / "models" / "model.json")
    write_json(run / "models" / "model.json", model | {"preprocessing": fed})
    for name, said in {
        "A": {"field_of_view": 150.0, "crop": "whole", "normalisation": "ct_lung"},
        "B": {"field_of_view": None, "crop": "disc", "crop_multiple": 3.0, "normalisation": "ct_lung"},
        "C": {"field_of_view": None, "normalisation": "ct_lung"},
    }.items():
        info = read_json(sites / name / "site.json")
        write_json(sites / name / "site.json", info | said)
    assert [text.replace(str(run), "RUN") for text in list_preparation_differences(run, sites)] == [
        "site A, B, C: prepared with size [64, 64], but RUN was trained with [32, 32]",
        "site B, C: prepared with field_of_view null, but RUN was trained with 150",
        'site B: prepared with crop "disc", but RUN was trained with "whole"',
        "site B: prepared with crop_multiple 3.0, but RUN was trained with null",
    ]
    for name in ("A", "B", "C"):
        info = read_json(sites / name / "site.json")
        write_json(sites / name / "site.json", info | {"normalisation": "mri"})
    normalised = 'site A, B, C: prepared with normalisation "mri", but RUN was trained with "ct_lung"'
    assert normalised in [text.replace(str(run), "RUN") for text in list_preparation_differences(run, sites)]
