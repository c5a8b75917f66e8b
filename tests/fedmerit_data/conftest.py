from dataclasses import replace

import pytest
from layouts import prepare, prostate_site

from fedmerit_data.kinds import KINDS


def _generate(folder, seed, patients):
    for number, cases in enumerate((4, 3)):
        prostate_site(folder / f"site{number + 1}", cases=cases, seed=10 * seed + number)


@pytest.fixture
def few_generated(monkeypatch):
    """Kind synthetic-prostate writes a few tiny cases."""
    monkeypatch.setitem(KINDS, "synthetic-prostate", replace(KINDS["synthetic-prostate"], generate=_generate))


@pytest.fixture(scope="session")
def two_hospitals(tmp_path_factory):
    """Prepared site folders HK and UCL of five volumes each: never change them."""
    folder = tmp_path_factory.mktemp("two_hospitals")
    prostate_site(folder / "raw" / "HK", cases=5, seed=1)
    prostate_site(folder / "raw" / "UCL", cases=5, seed=2)
    prepare("prostate-multisite", folder / "sites", source=folder / "raw", size=24, field_of_view=24)
    return folder / "sites"
