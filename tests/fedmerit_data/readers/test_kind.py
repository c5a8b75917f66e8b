import shutil

import layouts_fundus as layouts
import numpy as np
import pytest
from layouts import prepare
from layouts_fundus import WRITE, decoded

from fedmerit.trainers.monai_trainer.data import open_sites


@pytest.mark.parametrize("kind", ["drishti-gs1", "refuge"])
def test_the_disc_alone(tmp_path, kind):
    WRITE[kind](tmp_path)
    both, disc = decoded(kind, tmp_path), decoded(f"{kind}-disc", tmp_path)
    assert both.keys() == disc.keys()
    for name in both:
        np.testing.assert_array_equal(disc[name].label, both[name].label[:, :1])
        np.testing.assert_array_equal(disc[name].image, both[name].image)


def test_prepared_together_all_disc_sources_are_one_task(tmp_path):
    for kind in ("drishti-gs1-disc", "refuge-disc", "drions-db", "ichallenge"):
        WRITE[kind.removesuffix("-disc")](tmp_path / kind)
    layouts.ichallenge(tmp_path / "ichallenge", cases=("H0002", "P0195", "N0003"))
    for kind in ("drishti-gs1-disc", "refuge-disc", "drions-db", "ichallenge"):
        prepare(kind, tmp_path / "sites" / kind, source=tmp_path / kind, size=32)
        (site,) = open_sites(tmp_path / "sites" / kind)
        assert (site.task, site.labels, site.channels) == ("fundus-disc", ("disc",), 3)


def test_real_crops_for_the_disc_alone(real_data, tmp_path):
    raw = tmp_path / "raw"
    for site in ("Drishti-GS", "REFUGE"):
        for part in ("image", "mask"):
            for path in sorted((real_data / "fundus" / site / "train" / "ROIs" / part).iterdir())[:4]:
                (raw / site / "train" / "ROIs" / part).mkdir(parents=True, exist_ok=True)
                shutil.copy(path, raw / site / "train" / "ROIs" / part)
    prepare("fundus-rois-disc", tmp_path / "sites", source=raw, size=32)
    assert [(site.name, site.labels) for site in open_sites(tmp_path / "sites")] == [
        ("Drishti-GS", ("disc",)), ("REFUGE", ("disc",))
    ]  # fmt: skip
