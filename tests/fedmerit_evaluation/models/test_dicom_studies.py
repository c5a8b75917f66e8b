"""Studies as hospitals have them, from their archives to masks that the archives take: all in DICOM."""

import subprocess

import numpy as np
import pydicom
import pytest
import SimpleITK
from layouts import prepare
from layouts_dicom import save_enhanced, save_seg, save_structures, shuffle_frames
from layouts_prostate import LPS, OBLIQUE, save_series
from skimage.measure import find_contours

SHAPE = (32, 28, 6)


def patient(seed):
    """A bright organ in a dark body: voxels and mask."""
    random = np.random.default_rng(seed)
    middle = np.array([15, 14, 2.5]) + random.uniform(-4, 4, 3) * (1, 1, 0.2)
    mask = sum(((at - a) / b) ** 2 for at, a, b in zip(np.indices(SHAPE), middle, (8, 7, 2.4), strict=True)) <= 1
    return (random.normal(200, 15, SHAPE) + 400 * mask).astype(np.uint16), mask


def contours(mask):
    return [
        (z, points) for z in range(SHAPE[2]) for points in find_contours(np.pad(mask[..., z], 1).astype(float), 0.5)
    ]


def hospitals(raw):
    """One has series and segmentations, the other enhanced files and structure sets beside a contour of the body."""
    body = np.ones(SHAPE, bool)
    for number in range(6):
        voxels, mask = patient(number)
        slices = save_series(raw / "north" / "images" / f"p{number}", voxels, seed=number)
        save_seg(
            raw / "north" / "masks" / f"p{number}" / "seg.dcm",
            slices,
            {"Body": body, "Prostate": mask},
            edit=shuffle_frames,
        )
        voxels, mask = patient(100 + number)
        slices = save_series(raw / "series" / f"{number}", voxels)
        save_enhanced(raw / "south" / "images" / f"p{number}.dcm", slices)
        drawn = {
            name: [(z, points - 1) for z, points in contours(of)] for name, of in (("BODY", body), ("prostate ", mask))
        }
        save_structures(raw / "south" / "masks" / f"p{number}.dcm", slices, drawn)
    for folder in (raw / "series").iterdir():
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    (raw / "series").rmdir()


@pytest.mark.slow
def test_studies_go_in_and_segmentations_come_out_at_their_place(fedmerit, tmp_path):
    hospitals(tmp_path / "raw")
    prepare(
        "generic", tmp_path / "sites", source=tmp_path / "raw", channels=1, size=32, labels={"organ": ("prostate",)}
    )
    for site in ("north", "south"):
        for number in range(6):
            stored = np.load(tmp_path / "sites" / site / "cases" / f"p{number}_label.npy")
            _, mask = patient(number + 100 * (site == "south"))
            assert stored[:, 0].mean() == pytest.approx(mask.mean() * 28 / 32, rel=0.1)
    settings = ("width=4", "depth=3", "lr=0.01", "largest=false")
    made = [part for one in settings for part in ("--set", one)]
    run = ["--sites", tmp_path / "sites", "--out", tmp_path / "run", "--rounds", 8, "--recipe", "quick", *made]
    assert fedmerit("run", "--method", "fedavg", "--engine", "local", *run).exit_code == 0
    voxels, mask = patient(77)
    save_series(tmp_path / "new", voxels)
    assert fedmerit("predict", tmp_path / "run", tmp_path / "new", "--out", tmp_path / "masks").exit_code == 0
    file = tmp_path / "masks" / "new.seg.dcm"
    checked = subprocess.run(["dciodvfy", "-new", file], capture_output=True, text=True, check=False)
    assert "Error" not in checked.stdout + checked.stderr
    series = pydicom.dcmread(next((tmp_path / "new").iterdir()))
    assert pydicom.dcmread(file).ReferencedSeriesSequence[0].SeriesInstanceUID == series.SeriesInstanceUID
    converter = ["segimage2itkimage", "--inputDICOM", file, "--outputDirectory", tmp_path]
    subprocess.run(converter, check=True, capture_output=True)
    found = SimpleITK.ReadImage(str(tmp_path / "1.nrrd"))
    places = {
        tuple(np.round(found.TransformIndexToPhysicalPoint(at[::-1].tolist()), 2))
        for at in np.argwhere(SimpleITK.GetArrayFromImage(found))
    }
    drawn = np.column_stack([np.argwhere(mask), np.ones(mask.sum())]) @ (LPS @ OBLIQUE).T
    expected = {tuple(point) for point in np.round(drawn[:, :3], 2)}
    assert 2 * len(places & expected) / (len(places) + len(expected)) > 0.8
