"""What a dossier is about: which site folders are here."""

from pathlib import Path

import pytest
from dossier_files import made_run, made_sites

from fedmerit.errors import BadInput
from fedmerit_evaluation.dossier.sources import open_sources


def test_site_folders_are_those_of_the_runs_where_none_are_named(tmp_path: Path) -> None:
    sites = made_sites(tmp_path / "sites", Alder={}, Yew={})
    assert [site.name for site in open_sources([made_run(tmp_path, sites_folder=str(sites))], None).folders] == [
        "Alder"
    ]
    assert open_sources([made_run(tmp_path, sites_folder=str(tmp_path / "gone"))], None).folders == []
    assert open_sources([made_run(tmp_path)], None).folders == []
    with pytest.raises(BadInput, match=r"--sites .*: holds none of Alder, Birch, Cedar"):
        open_sources([made_run(tmp_path)], made_sites(tmp_path / "others", Yew={}))
