"""All of a preparation: site folders, splits, crops, unreadable cases, label maps, synthetic kinds."""

import json
from dataclasses import replace

import numpy as np
import pytest
from layouts import box, fundus_site, prepare, prostate_site, rings, save_nifti, save_png, snapshot, volume
from typer.testing import CliRunner

from fedmerit.errors import BadInput
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS
from fedmerit.schema.site_folder import open_sites
from fedmerit_cli.main import app
from fedmerit_data.check import check
from fedmerit_data.kinds import KINDS
from fedmerit_data.preparing.resumption import count_finished_cases

FIELD = {"size": 24, "field_of_view": 24.0}  # one pixel per millimetre: nothing is resized


@pytest.fixture
def source(tmp_path):
    prostate_site(tmp_path / "raw" / "UCL", cases=8, seed=1)
    prostate_site(tmp_path / "raw" / "ISBI", cases=5, seed=2)
    return tmp_path / "raw"


def test_site_folders_are_what_training_reads(source, tmp_path):
    folders = prepare("prostate-multisite", tmp_path / "sites", source=source, **FIELD)
    assert folders == [tmp_path / "sites" / "RUNMC", tmp_path / "sites" / "UCL"]
    sites = open_sites(tmp_path / "sites")
    assert [site.name for site in sites] == ["RUNMC", "UCL"]
    for site in sites:
        assert (site.task, site.labels, site.channels, site.image_size) == ("prostate", ("prostate",), 1, (24, 24))
        assert site.info["spacing"] == [1.0, 1.0]
        assert site.info["source"] == "prostate-multisite"
        for split in SPLITS:
            cases = site.cases(split)
            assert site.info["counts"][split] == {
                "cases": len(cases),
                "patients": len(cases),
                "slices": sum(len(case.image) for case in cases),
            }
            for case in cases:
                assert case.image.shape == case.label.shape == (4, 1, 24, 24)
                np.testing.assert_array_equal(case.label[:, 0, 2:22], box().transpose(2, 1, 0))
                assert not case.label[:, 0, :2].any()
    assert check(tmp_path / "sites") == []


def test_the_same_seed_repeats_byte_for_byte_and_another_moves_the_split(source, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        prepare("prostate-multisite", tmp_path / name, source=source, seed=seed, **FIELD)
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")
    lists = [json.loads((tmp_path / name / "UCL" / "datalist.json").read_text()) for name in "ac"]
    assert lists[0] != lists[1]


@pytest.mark.parametrize(
    ("affine", "expected"),
    [(np.diag([-0.5, -1.0, 2.2, 1.0]), [2.2, 0.75, 0.75]), (np.diag([-1.0, -1.0, 1.0, 1.0]), [1.0, 0.75, 0.75])],
)
def test_the_spacing_of_what_is_stored_is_noted(tmp_path, affine, expected):
    for case in range(3):
        save_nifti(tmp_path / "raw" / "UCL" / f"Case0{case}.nii.gz", volume(case), affine)
        save_nifti(tmp_path / "raw" / "UCL" / f"Case0{case}_segmentation.nii.gz", box(), affine)
    prepare("prostate-multisite", tmp_path / "sites", source=tmp_path / "raw", size=32, field_of_view=24)
    lists = json.loads((tmp_path / "sites" / "UCL" / "datalist.json").read_text())
    for split in SPLITS:
        (entry,) = lists[split]
        assert entry["spacing"] == pytest.approx(expected, rel=1e-6)


def test_the_server_gets_whole_training_patients_and_nothing_else_moves(source, tmp_path):
    prepare("prostate-multisite", tmp_path / "without", source=source, slices="organ", **FIELD)
    prepare("prostate-multisite", tmp_path / "with", source=source, slices="organ", server_share=0.5, **FIELD)
    assert check(tmp_path / "with") == check(tmp_path / "without") == []
    for site, other in zip(open_sites(tmp_path / "with"), open_sites(tmp_path / "without"), strict=True):
        server, trained = ([case.name for case in site.cases(split)] for split in (SERVER_SPLIT, "training"))
        assert sorted(server + trained) == [case.name for case in other.cases("training")]
        for split in SPLITS[1:]:
            assert [case.name for case in site.cases(split)] == [case.name for case in other.cases(split)]
        assert {case.slices for case in site.cases(SERVER_SPLIT)} == {None}
        assert site.info["counts"][SERVER_SPLIT]["slices"] == 4 * len(server)
        assert other.cases(SERVER_SPLIT) == ()


def test_everything_used_or_left_out_is_accounted_for(source, tmp_path):
    save_nifti(source / "UCL" / "Case02_segmentation.nii.gz", box() * 0)
    save_nifti(source / "UCL" / "Case03_segmentation.nii.gz", box() * 3)
    (source / "UCL" / "protocol.pdf").write_text("")
    (source / "README.txt").write_text("")
    prepare("prostate-multisite", tmp_path / "sites", source=source, **FIELD)
    info = json.loads((tmp_path / "sites" / "UCL" / "site.json").read_text())
    assert [entry["file"] for entry in info["left_out"]] == ["protocol.pdf"]
    assert info["used"] == {"cases": 8, "files": 16}
    assert info["unreadable_cases"] == 0
    assert info["remarks"] == [
        {"case": "Case02", "remark": "no prostate in its mask"},
        {"case": "Case03", "remark": "labels up to 3 merged into one"},
    ]
    assert sum(info["counts"][split]["cases"] for split in SPLITS) == 8


def test_a_bad_case_keeps_the_finished_ones_and_out_absent(source, tmp_path):
    path = source / "UCL" / "Case07_segmentation.nii.gz"
    sound = path.read_bytes()
    save_nifti(path, box((24, 20, 3)))
    with pytest.raises(BadInput, match=r"Case07_segmentation.nii.gz: mask of shape") as raised:
        prepare("prostate-multisite", tmp_path / "sites", source=source, **FIELD)
    assert "12 finished cases are kept in" in str(raised.value)
    assert "\n\t--skip-unreadable leaves such cases out" in str(raised.value)
    assert not (tmp_path / "sites").exists()
    assert count_finished_cases(tmp_path / "sites") == 12
    path.write_bytes(sound)
    prepare("prostate-multisite", tmp_path / "sites", source=source, **FIELD)
    prepare("prostate-multisite", tmp_path / "undisturbed", source=source, **FIELD)
    assert snapshot(tmp_path / "sites") == snapshot(tmp_path / "undisturbed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw", "sites", "undisturbed"]


def test_up_to_ten_bad_cases_are_named_at_once(tmp_path):
    prostate_site(tmp_path / "raw" / "UCL", cases=12)
    for case in range(12):
        (tmp_path / "raw" / "UCL" / f"Case{case:02d}.nii.gz").write_bytes(b"")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadInput, match="the first 10 cases that cannot be used") as raised:
        prepare("prostate-multisite", tmp_path / "sites", source=tmp_path / "raw", **FIELD)
    for case in range(12):
        assert (f"Case{case:02d}.nii.gz: not a readable" in str(raised.value)) == (case < 10)
    assert sorted(tmp_path.iterdir()) == before  # none was finished: nothing is kept


@pytest.fixture
def two_unreadable(source):
    (source / "UCL" / "Case02.nii.gz").write_bytes(b"")
    save_nifti(source / "UCL" / "Case05_segmentation.nii.gz", box((24, 20, 3)))
    return source


def test_unreadable_cases_are_left_out_on_request_and_counted(two_unreadable, tmp_path):
    with pytest.raises(BadInput, match=r"(?s)^2 cases that cannot be used:.*Case02.nii.gz: .*Case05_segmentation"):
        prepare("prostate-multisite", tmp_path / "sites", source=two_unreadable, **FIELD)
    prepare("prostate-multisite", tmp_path / "sites", source=two_unreadable, skip_unreadable=True, **FIELD)
    _, site = open_sites(tmp_path / "sites")
    names = {case.name for split in SPLITS for case in site.cases(split)}
    assert names == {f"Case{case:02d}" for case in (0, 1, 3, 4, 6, 7)}
    assert site.info["used"] == {"cases": 6, "files": 12}
    assert site.info["unreadable_cases"] == 2
    assert [entry["file"] for entry in site.info["left_out"]] == [
        f"UCL/Case{case}{mask}.nii.gz" for case in ("02", "05") for mask in ("", "_segmentation")
    ]
    for entry in site.info["left_out"]:
        assert entry["reason"].startswith("unreadable case: UCL/Case0")
    assert check(tmp_path / "sites") == []


def test_a_cut_mask_is_named_and_not_skipped(source, tmp_path):
    for skip in (False, True):
        with pytest.raises(BadInput, match=r"Case00_segmentation.nii.gz: the central 10 mm cut off") as raised:
            prepare("prostate-multisite", tmp_path / "sites", source=source, field_of_view=10, skip_unreadable=skip)
        assert "--skip-unreadable" not in str(raised.value)


def test_whatever_a_decoder_raises_names_the_file(source, tmp_path, monkeypatch):
    def broken(case):
        raise IndexError("list index out of range")

    monkeypatch.setitem(KINDS, "prostate-multisite", replace(KINDS["prostate-multisite"], decode=broken))
    with pytest.raises(BadInput, match=r"Case00.nii.gz: not readable with its mask \(IndexError: list index"):
        prepare("prostate-multisite", tmp_path / "sites", source=source, **FIELD)
    assert not list(tmp_path.glob(".*"))


def test_a_crop_about_the_disc_is_recorded(tmp_path):
    fundus_site(tmp_path / "raw" / "Domain1", train=("a", "b", "c"), test=())
    blank = tmp_path / "raw" / "Domain1" / "train" / "ROIs" / "mask" / "b.png"
    save_png(blank, np.full((32, 32), 255, np.uint8))
    prepare("fundus-rois", tmp_path / "sites", source=tmp_path / "raw", size=36, crop="disc", crop_multiple=2.0)
    (site,) = open_sites(tmp_path / "sites")
    lists = json.loads((site.path / "datalist.json").read_text())
    entries = {entry["case"]: entry for split in SPLITS for entry in lists[split]}
    # The disc of rings() fills rows 6 to 21 and columns 8 to 25.
    assert entries["a"]["crop"] == entries["c"]["crop"] == {"top": -4, "left": -1, "height": 36, "width": 36}
    assert entries["b"]["crop"] == {"top": 0, "left": 0, "height": 32, "width": 32}
    stored = np.load(site.path / entries["a"]["label"])
    np.testing.assert_array_equal(stored[0, 0, 4:, 1:33], rings() < 255)
    assert (site.info["crop"], site.info["crop_multiple"]) == ("disc", 2.0)
    assert {entry["remark"] for entry in site.info["remarks"] if entry["case"] == "b"} == {
        "no disc in its mask",
        "no cup in its mask",
        "whole frame kept: no disc to crop about",
    }
    assert {entry["case"] for entry in site.info["remarks"]} == {"b"}


@pytest.mark.parametrize(
    ("kind", "folder"),
    [("prostate-multisite", "prostate"), pytest.param("fundus-rois", "fundus", marks=pytest.mark.slow)],
)
def test_real_images(real_data, tmp_path, kind, folder):
    folders = prepare(kind, tmp_path / "sites", source=real_data / folder, size=32)
    assert folders == [site.path for site in open_sites(tmp_path / "sites")]
    assert check(tmp_path / "sites") == []
    for site in open_sites(tmp_path / "sites"):
        assert site.info["left_out"] == site.info["remarks"] == []
        for split in SPLITS:
            for case in site.cases(split):
                marked = case.label.any(axis=(0, 1))
                assert marked.any()
                edge = np.concatenate([marked[0], marked[-1], marked[:, 0], marked[:, -1]])
                assert KINDS[kind].task == "fundus" or not edge.any()


@pytest.mark.parametrize("share", ["0", "0.1"])
def test_the_command_tells_what_the_server_gets_where_it_gets_any(source, tmp_path, share):
    command = (
        f"prepare prostate-multisite --source {source} --out {tmp_path / 'sites'} --size 24 --field-of-view 24 --seed 4"
    )
    result = CliRunner().invoke(app, [*command.split(), "--server-share", share, "--jobs", "1", "--no-pictures"])
    assert result.exit_code == 0, result.output
    counts = result.output.partition("plane")[0]  # before how each case was read
    rows = {words[0]: words[1:] for line in counts.splitlines() if (words := line.split())}
    assert ("server" in result.output) == (share == "0.1")
    assert rows["UCL"] == (["3", "2", "2", "1", "12"] if share == "0.1" else ["4", "2", "2", "16"]) + ["16", "0"]
    assert "pictures" not in result.output
    assert not (tmp_path / "sites" / "overview").exists()


MAP = {"disc": (1, 2), "cup": (2,)}


@pytest.fixture
def own(tmp_path):
    """Photographs of one's own: 0 background, 1 rim, 2 cup."""
    for number in range(5):
        rng = np.random.default_rng(number)
        save_png(tmp_path / "own" / "east" / "images" / f"{number}.png", rng.integers(0, 256, (32, 32, 3), np.uint8))
        mask = np.select([rings() == 0, rings() == 128], [2, 1], 0).astype(np.uint8)
        save_png(tmp_path / "own" / "east" / "masks" / f"{number}.png", mask)
    return tmp_path / "own"


def generic_command(source, out, *options):
    command = ["prepare", "generic", "--source", str(source), "--out", str(out), "--size", "32", "--jobs", "1"]
    return CliRunner().invoke(app, [*command, "--no-pictures", *options])


def test_images_of_ones_own_with_a_label_map(own, tmp_path):
    result = generic_command(own, tmp_path / "sites", "--labels", "disc=1+2,cup=2", "--task", "fundus")
    assert result.exit_code == 0, result.output
    (site,) = open_sites(tmp_path / "sites")
    assert (site.task, site.labels, site.channels) == ("fundus", ("disc", "cup"), 3)
    assert site.info["label_values"] == {"disc": [1, 2], "cup": [2]}
    case = site.cases("training")[0]
    np.testing.assert_array_equal(case.label[0], [rings() < 255, rings() == 0])
    assert check(tmp_path / "sites") == []
    prepare("generic", tmp_path / "called", source=own, size=32, labels=MAP, task="fundus")
    assert snapshot(tmp_path / "called") == snapshot(tmp_path / "sites")
    prepare("generic", tmp_path / "grey", source=own, size=32, channels=1, modality="xray")
    (site,) = open_sites(tmp_path / "grey")
    assert (site.task, site.labels, site.channels) == ("generic", ("mask",), 1)
    assert (site.info["label_values"], site.info["normalisation"]) == ({"mask": []}, "xray")


def test_generated_files_are_kept_where_it_is_asked_for(few_generated, tmp_path):
    prepare("synthetic-prostate", tmp_path / "a", source=tmp_path / "kept", **FIELD)
    prepare("prostate-multisite", tmp_path / "b", source=tmp_path / "kept", **FIELD)
    prepare("synthetic-prostate", tmp_path / "c", seed=1, **FIELD)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c", "c-raw", "kept"]
    a, b, c = (json.loads((tmp_path / name / "site1" / "site.json").read_text())["checksums"] for name in "abc")
    assert a == b != c


def test_a_failure_leaves_neither_sites_nor_raw_files(few_generated, tmp_path):
    def interrupt(site, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare("synthetic-prostate", tmp_path / "sites", progress=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", ["sites", "sites/raw", "."])
def test_raw_files_and_sites_need_folders_apart(tmp_path, source):
    with pytest.raises(BadInput, match="need separate folders"):
        prepare("synthetic-prostate", tmp_path / "sites", source=tmp_path / source)
    assert list(tmp_path.iterdir()) == []
