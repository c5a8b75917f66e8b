"""Tiny site folders, the rounds of a site under an attack, played once each, and a synthetic study."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
from attack_study import make_study
from playing import LABELS, config_of, following, play, write_site
from run_factory import make_sites

from fedmerit.schema.messages import Reply, Task
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.site.site import Site, image_site


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, SiteFolder]:
    """By task."""
    return {task: write_site(tmp_path_factory.mktemp(task) / "A", task) for task in LABELS}


@pytest.fixture(scope="session")
def played(
    folders: Mapping[str, SiteFolder], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[list[Task], list[Reply]]]:
    """Tasks and replies of a site that follows the attack of a spec, or is honest; keywords are settings."""
    folder = folders["prostate"]

    @cache
    def make(spec: str | None = None, **settings: object) -> tuple[list[Task], list[Reply]]:
        site = image_site(folder, config_of(folder, **settings), tmp_path_factory.mktemp("memory"), "cpu")
        return play(following(site, spec))

    return make


@pytest.fixture
def open_site(folders: Mapping[str, SiteFolder], tmp_path: Path) -> Callable[..., Site]:
    """The site of a spec, always the same one."""
    folder = folders["prostate"]
    return lambda spec=None: following(image_site(folder, config_of(folder), tmp_path / str(spec), "cpu"), spec)


@pytest.fixture(scope="session")
def sites(tmp_path_factory):
    """Three sites of a few patients: never change them."""
    return make_sites(tmp_path_factory.mktemp("attacks") / "sites", ("site1", "site2", "site3"), size=16)


@pytest.fixture
def study():
    """Attacks and results of two seeds: A and B send zeros in turn, and A takes part twice."""
    return make_study()
