import shutil

import layouts_fundus as layouts
import numpy as np
import pytest
from layouts import save_png
from layouts_fundus import SHAPE, disc_and_cup, photo
from PIL import Image

from data_prep.kinds import KINDS
from data_prep.prepare import prepare
from fedmerit.configuration.run import TASKS
from fedmerit.errors import BadInput
from fedmerit.training.data import open_sites

WRITE = {
    "drishti-gs1": layouts.drishti,
    "refuge": layouts.refuge,
    "rim-one-r3": layouts.rim_one,
    "drions-db": layouts.drions,
    "ichallenge": layouts.ichallenge,
}


def only(kind, source):
    (site,) = KINDS[kind].find_sites(source)
    return site


def decoded(kind, source):
    return {case.name: KINDS[kind].decode(case) for case in only(kind, source).cases}


def test_drishti_is_what_at_least_half_of_four_experts_marked(tmp_path):
    discs, cups = layouts.drishti(tmp_path)
    site = only("drishti-gs1", tmp_path)
    assert site.name == "Drishti-GS1"
    assert [(case.name, case.patient) for case in site.cases] == [
        ("drishtiGS_001", "Drishti-GS1-drishtiGS_001"),
        ("drishtiGS_002", "Drishti-GS1-drishtiGS_002"),
        ("drishtiGS_004", "Drishti-GS1-drishtiGS_004"),
    ]
    assert len(site.left_out) == 6
    assert site.left_out[0] == (
        "Test/Test_GT/drishtiGS_001/AvgBoundary/drishtiGS_001_ODAvgBoundary.txt",
        "neither an image nor a soft map",
    )
    for name, case in decoded("drishti-gs1", tmp_path).items():
        np.testing.assert_array_equal(case.label[0, 0], discs.sum(0) >= 2)
        np.testing.assert_array_equal(case.label[0, 1], cups.sum(0) >= 2)
        np.testing.assert_array_equal(case.image[0], photo(int(name[-3:])).transpose(2, 0, 1))
        assert case.image.dtype == np.float32
        assert case.label.dtype == np.uint8
        assert case.spacing is None


def test_drishti_below_its_top_folder(tmp_path):
    layouts.drishti(tmp_path / "Drishti-GS1_files")
    assert [case.name for case in only("drishti-gs1", tmp_path).cases] == [
        "drishtiGS_001", "drishtiGS_002", "drishtiGS_004"
    ]  # fmt: skip


def test_refuge_pools_its_parts(tmp_path):
    layouts.refuge(tmp_path)
    site = only("refuge", tmp_path)
    assert [case.name for case in site.cases] == ["T0001", "V0001", "g0001", "n0001"]
    assert site.left_out == (
        ("Annotation-Training400/Fovea_location.xlsx", "neither a .jpg image nor below Disc_Cup_Masks"),
    )
    for (name, case), shift in zip(sorted(decoded("refuge", tmp_path).items()), (3, 2, 0, 1), strict=True):
        np.testing.assert_array_equal(case.label[0], disc_and_cup(shift), err_msg=name)
        assert np.abs(case.image[0] - photo(shift).transpose(2, 0, 1)).mean() < 5


def test_rim_one_is_the_left_half_and_both_eyes_are_one_patient(tmp_path):
    layouts.rim_one(tmp_path)
    site = only("rim-one-r3", tmp_path)
    assert [(case.name, case.patient) for case in site.cases] == [
        ("G-1-R", "RIM-ONE-r3-G-1"),
        ("N-1-L", "RIM-ONE-r3-N-1"),
        ("N-1-R", "RIM-ONE-r3-N-1"),
        ("N-2-L", "RIM-ONE-r3-N-2"),
        ("S-3-L", "RIM-ONE-r3-S-3"),
    ]
    assert {reason for _, reason in site.left_out} == {"neither a stereo pair nor an average mask"}
    assert len(site.left_out) == 10
    cases = decoded("rim-one-r3", tmp_path)
    for shift, name in enumerate(("N-1-L", "N-1-R", "N-2-L", "G-1-R", "S-3-L")):
        assert cases[name].image.shape == (1, 3, *SHAPE)
        np.testing.assert_array_equal(cases[name].label[0], disc_and_cup(shift))
        left = photo(shift, (SHAPE[0], 2 * SHAPE[1]))[:, : SHAPE[1]]
        assert np.abs(cases[name].image[0] - left.transpose(2, 0, 1)).mean() < 5


def test_rim_one_refuses_what_is_no_stereo_pair(tmp_path):
    layouts.rim_one(tmp_path, eyes=("N-1-L",))
    Image.fromarray(photo(0, (120, 90))).save(tmp_path / "Healthy" / "Stereo Images" / "N-1-L.jpg")
    with pytest.raises(BadInput, match=r"N-1-L.jpg: 90 x 120 pixels; expected a stereo pair"):
        decoded("rim-one-r3", tmp_path)


def test_drions_masks_survive_jpeg(tmp_path):
    layouts.drions(tmp_path)
    with Image.open(tmp_path / "train" / "groundtruth" / "image_001.jpg") as mask:
        assert len(np.unique(np.asarray(mask))) > 2
    for name, case in decoded("drions-db", tmp_path).items():
        np.testing.assert_array_equal(case.label[0, 0], disc_and_cup(int(name[-3:]) % 7)[0])
        assert case.label.shape == (1, 1, *SHAPE)


def test_ichallenge_reads_palette_indices_not_colours(tmp_path):
    layouts.ichallenge(tmp_path)
    cases = decoded("ichallenge", tmp_path)
    assert list(cases) == ["H0002", "P0195"]
    for shift, case in enumerate(cases.values()):
        np.testing.assert_array_equal(case.label[0, 0], disc_and_cup(shift)[0])


def test_ichallenge_refuses_three_classes(tmp_path):
    layouts.ichallenge(tmp_path)
    save_png(tmp_path / "Annotations" / "H0002.png", np.pad(np.uint8([[0, 1, 2]]), ((0, 89), (0, 117))))
    with pytest.raises(BadInput, match=r"H0002.png: holds the values \[0, 1, 2\]; expected 0 and one other"):
        decoded("ichallenge", tmp_path)


@pytest.mark.parametrize("kind", ["drishti-gs1", "refuge"])
def test_the_disc_alone(tmp_path, kind):
    WRITE[kind](tmp_path)
    both, disc = decoded(kind, tmp_path), decoded(f"{kind}-disc", tmp_path)
    assert both.keys() == disc.keys()
    for name in both:
        np.testing.assert_array_equal(disc[name].label, both[name].label[:, :1])
        np.testing.assert_array_equal(disc[name].image, both[name].image)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].task.startswith("fundus")])
def test_kinds_are_of_a_task_that_can_be_trained(kind):
    task = TASKS[KINDS[kind].task]
    assert (KINDS[kind].labels, KINDS[kind].channels) == (tuple(task["labels"]), task["in_channels"])


def test_prepared_together_all_disc_sources_are_one_task(tmp_path):
    for kind in ("drishti-gs1-disc", "refuge-disc", "drions-db", "ichallenge"):
        WRITE[kind.removesuffix("-disc")](tmp_path / kind)
    layouts.ichallenge(tmp_path / "ichallenge", cases=("H0002", "P0195", "N0003"))
    for kind in ("drishti-gs1-disc", "refuge-disc", "drions-db", "ichallenge"):
        prepare(kind, tmp_path / "sites" / kind, source=tmp_path / kind, size=32)
        (site,) = open_sites(tmp_path / "sites" / kind)
        assert (site.task, site.labels, site.channels) == ("fundus-disc", ("disc",), 3)


@pytest.mark.parametrize("kind", WRITE)
def test_nothing_there(tmp_path, kind):
    with pytest.raises(BadInput, match="missing: no such folder; --source has to be the folder that holds"):
        KINDS[kind].find_sites(tmp_path / "missing")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(BadInput, match="holds no cases in this layout; expected"):
        KINDS[kind].find_sites(tmp_path)


ALONE = [
    ("drishti-gs1", "Training/Images/drishtiGS_002.png", "ODsegSoftmap.png: the image of this mask is missing"),
    ("drishti-gs1", "Training/GT/drishtiGS_002/SoftMap/drishtiGS_002_ODsegSoftmap.png", "the disc mask of drishtiGS"),
    ("drishti-gs1", "Training/GT/drishtiGS_002/SoftMap/drishtiGS_002_cupsegSoftmap.png", "the cup mask of drishtiGS"),
    ("rim-one-r3", "Healthy/Average_masks/N-1-L-Cup-Avg.png", "N-1-L-Disc-Avg.png: the cup mask of N-1-L is missing"),
    ("rim-one-r3", "Healthy/Stereo Images/N-1-L.jpg", "N-1-L-Disc-Avg.png: the image of this mask is missing"),
    ("refuge", "Test400/T0001.jpg", "T0001.bmp: the image of this mask is missing"),
    ("refuge", "REFUGE-Validation400-GT/Disc_Cup_Masks/V0001.png", "V0001.jpg: its mask is missing"),
    ("drions-db", "train/groundtruth/image_001.jpg", "image_001.jpg: its mask is missing"),
    ("ichallenge", "Annotations/H0002.png", "H0002.jpg: its mask is missing"),
]


@pytest.mark.parametrize(("kind", "removed", "message"), ALONE)
def test_a_file_alone_is_named(tmp_path, kind, removed, message):
    WRITE[kind](tmp_path)
    (tmp_path / removed).unlink()
    with pytest.raises(BadInput, match=message):
        KINDS[kind].find_sites(tmp_path)


def test_one_case_in_two_folders(tmp_path):
    layouts.drions(tmp_path, train=(1,), test=(1,))
    with pytest.raises(BadInput, match="already stands for case image_001"):
        KINDS["drions-db"].find_sites(tmp_path)


@pytest.mark.parametrize(
    ("kind", "part"),
    [(kind, part) for kind in WRITE for part in ("image", "label")] + [("drishti-gs1", "more"), ("rim-one-r3", "more")],
)
@pytest.mark.parametrize("how", ["empty", "truncated", "text", "shape"])
def test_a_damaged_file_is_named(tmp_path, kind, part, how):
    WRITE[kind](tmp_path)
    case = only(kind, tmp_path).cases[0]
    paths = {"image": (case.image,), "label": (case.label,), "more": case.more}[part]
    content = paths[0].read_bytes()
    if how == "shape":
        Image.new("L" if part != "image" else "RGB", (60, 20), 255).save(paths[0])
    else:
        paths[0].write_bytes({"empty": b"", "truncated": content[: len(content) // 2], "text": b"hello"}[how])
    expected = "not a readable image" if how != "shape" else "mask of shape"
    named = paths[0] if how != "shape" or part != "image" else case.label
    with pytest.raises(BadInput, match=rf"{named.name}: {expected}"):
        KINDS[kind].decode(case)


def test_a_header_that_promises_too_much_is_not_believed(tmp_path):
    layouts.ichallenge(tmp_path)
    case = only("ichallenge", tmp_path).cases[0]
    content = bytearray(case.label.read_bytes())
    content[16:24] = (20_000).to_bytes(4) + (20_000).to_bytes(4)  # width and height in a PNG
    case.label.write_bytes(content)
    with pytest.raises(BadInput, match=r"H0002.png: not a readable image"):
        KINDS["ichallenge"].decode(case)


# Shares of the frame that disc and cup take, of whole photographs.
REAL = {
    "drishti-gs1": ("layouts/Drishti-GS1_files", (0.005, 0.06)),
    "refuge": ("layouts/REFUGE", (0.005, 0.06)),
    "drions-db": ("fundus_disc/DRIONS-DB", (0.005, 0.12)),
    "ichallenge": ("fundus_disc/iChallenge", (0.002, 0.12)),
}


@pytest.mark.parametrize("kind", REAL)
def test_real_images(real_data, kind):
    folder, (least, most) = REAL[kind]
    site = only(kind, real_data / folder)
    assert site.cases
    for raw in site.cases[:12]:
        case = KINDS[kind].decode(raw)
        disc = case.label[0, 0].astype(bool)
        assert least < disc.mean() < most, raw.name
        edge = np.concatenate([disc[0], disc[-1], disc[:, 0], disc[:, -1]])
        assert not edge.any()
        # A disc is round and brighter than its surroundings, so that a flipped mask would be told.
        rows, columns = np.nonzero(disc)
        assert 0.6 < np.ptp(rows) / np.ptp(columns) < 1.6, raw.name
        assert case.image[0, 1][disc].mean() > case.image[0, 1][~disc].mean(), raw.name
        if kind in ("drishti-gs1", "refuge"):
            cup = case.label[0, 1].astype(bool)
            assert not (cup & ~disc).any()
            assert 0.05 < cup.sum() / disc.sum() < 0.9


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
