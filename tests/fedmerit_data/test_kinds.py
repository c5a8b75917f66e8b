"""All kinds: tasks, real images, and a card in the docs."""

import pickle

import numpy as np
import pytest
from layouts_fundus import only

from fedmerit.schema.configuration.settings import TASKS
from fedmerit_data.kinds import KINDS
from fedmerit_data.spatial.dicom import read_series
from fedmerit_data.spatial.volumes import read_itk, read_nifti


def test_kinds_that_crop_know_a_disc():
    for kind in KINDS.values():
        assert set(kind.crops) <= {"whole", "disc"}
        assert "disc" not in kind.crops or "disc" in kind.labels
        pickle.loads(pickle.dumps(kind))  # as the processes of a preparation get it


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].task.startswith("fundus")])
def test_kinds_are_of_a_task_that_can_be_trained(kind):
    task = TASKS[KINDS[kind].task]
    assert (KINDS[kind].labels, KINDS[kind].channels) == (tuple(task["labels"]), task["in_channels"])


# Shares of the frame that disc and cup take, of whole photographs.
REAL_PHOTOGRAPHS = {
    "drishti-gs1": ("layouts/Drishti-GS1_files", (0.005, 0.06)),
    "refuge": ("layouts/REFUGE", (0.005, 0.06)),
    "drions-db": ("fundus_disc/DRIONS-DB", (0.005, 0.12)),
    "ichallenge": ("fundus_disc/iChallenge", (0.002, 0.12)),
}


@pytest.mark.parametrize("kind", REAL_PHOTOGRAPHS)
def test_real_photographs(real_data, kind):
    folder, (least, most) = REAL_PHOTOGRAPHS[kind]
    site = only(kind, real_data / folder)
    assert site.cases
    for raw in site.cases[:12]:
        case = KINDS[kind].decode(raw)
        disc = case.label[0, 0].astype(bool)
        assert least < disc.mean() < most, raw.name
        edge = np.concatenate([disc[0], disc[-1], disc[:, 0], disc[:, -1]])
        assert not edge.any()
        # A disc is round and brighter than its surroundings, so that a flipped mask would be reported.
        rows, columns = np.nonzero(disc)
        assert 0.6 < np.ptp(rows) / np.ptp(columns) < 1.6, raw.name
        assert case.image[0, 1][disc].mean() > case.image[0, 1][~disc].mean(), raw.name
        if kind in ("drishti-gs1", "refuge"):
            cup = case.label[0, 1].astype(bool)
            assert not (cup & ~disc).any()
            assert 0.05 < cup.sum() / disc.sum() < 0.9


# The release's folder, and the millilitres of gland and the slices that show it as measured on its real cases.
REAL_VOLUMES = {
    "promise12": ("PROMISE12", [(26.6, 12), (51.9, 14)]),
    "prostatex": ("PROSTATEx", [(160.8, 18)]),
    "prostate158": ("Prostate158", [(57.0, 18), (70.7, 17)]),
}


def read_file(path):
    if path.is_dir():
        return read_series(path)
    return read_itk(path) if path.suffix in (".mhd", ".nrrd") else read_nifti(path)


@pytest.mark.parametrize("kind", REAL_VOLUMES)
def test_real_volumes(real_data, kind):
    folder, expected = REAL_VOLUMES[kind]
    (source, *_) = [path for path in sorted(real_data.glob(f"**/{folder}")) if path.is_dir()] or [None]
    if source is None:
        pytest.skip(f"no {folder} among the real images")
    seen = []
    for site in KINDS[kind].find_sites(source):
        assert site.left_out == ()
        for case in site.cases:
            decoded = KINDS[kind].decode(case)
            assert decoded.remarks == ()
            areas = decoded.label.sum(axis=(1, 2, 3))
            files = {path: read_file(path) for path in (case.image, case.label)}
            voxel = abs(np.linalg.det(files[case.image].affine))
            seen.append((round(float(areas.sum() * voxel / 1000), 1), np.count_nonzero(areas)))
            # Nothing marked is lost; one run of slices, with the gland in the middle half of them.
            assert areas.sum() == np.count_nonzero(files[case.label].voxels)
            assert (np.diff(np.flatnonzero(areas)) == 1).all()
            middle = np.argwhere(decoded.label[:, 0].any(axis=0)).mean(axis=0) / decoded.label.shape[2:]
            assert ((middle > 0.25) & (middle < 0.75)).all()
    assert sorted(seen) == expected
