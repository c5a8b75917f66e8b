"""Which files are channels, under which names and in which order; sites that differ do not train together."""

import json

import numpy as np
import pytest
from layouts import box, prepare, save_nifti, volume

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.data import Preprocessing, preparation_digest
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit_data.check import check
from fedmerit_data.raw_cases import Channel, RawCase, RawSite
from fedmerit_data.readers.channel_names import arrange_channels, canonical, is_known, modality_of, parse_names
from fedmerit_data.readers.generic import generic_kind

BRATS = {"2021": ("t1", "t1ce", "t2", "flair"), "2023": ("t1n", "t1c", "t2w", "t2f")}
LEVELS = (100, 200, 300, 400)  # of the channels of `BRATS`


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("T1Gd", "t1ce"), ("t1c", "t1ce"), ("T1-CE", "t1ce"), ("t1n", "t1"), ("T1w", "t1"), ("t2w", "t2"),
        ("t2f", "flair"), ("FLAIR", "flair"), ("MR-T2", "t2"), ("T2 MRI", "t2"), ("ADC", "adc"), ("HighB", "hbv"),
        ("MRI", "mri"), ("my scan", "myscan"), ("t1 mprage sag", "t1"), ("T1 MPRAGE post", "t1ce"),
        ("Ax T1 +C", "t1ce"),
        ("t2_space_3d", "t2"), ("t2_tirm_tra_dark-fluid", "flair"), ("3D SAG CUBE FLAIR", "flair"),
        ("ep2d_diff_ADC", "adc"), ("T2*", "t2star"), ("t1_mpr_ce", "t1ce"), ("T2 tse tra", "t2"),
        ("FLAIR_preprocessed", "flair"), ("T1-brain", "t1"), ("SUV", "suv"), ("brain", "brain"),
    ],
)  # fmt: skip
def test_canonical_synonyms_are_one_name(name, expected):
    assert canonical(name) == expected


def test_is_known_names_of_masks_are_not():
    assert all(map(is_known, ("t1ce", "adc", "b800", "0001", "phase2")))
    assert not any(map(is_known, ("segrater2", "reader1", "lesion1", "t2tumor", "gland")))
    assert modality_of(("t2", "adc")) == "MR"
    assert modality_of(("ct",)) == "CT"
    assert modality_of(("t2", "ct")) == modality_of(("whatever",)) == modality_of(()) == ""


def test_parse_names_of_one_channel_twice_raises():
    assert parse_names("t1, T1Gd,t2,t2f") == ("t1", "t1ce", "t2", "flair")
    with pytest.raises(ValueError, match="t1c and t1ce are one channel, t1ce; name it once"):
        parse_names("t1c,t1ce")


def case(tmp_path, *names):
    parts = tuple(Channel(tmp_path / "p" / f"{name}.nii.gz", name) for name in names)
    return RawCase("p", "A-p", parts[0].path, tmp_path / "p" / "seg.nii.gz", channels=parts)


def arranged(tmp_path, *names, wanted=(), listed=None, count=1):
    site = arrange_channels(RawSite("A", (case(tmp_path, *names),)), wanted, listed, count)
    (only,) = site.cases
    return [part.name for part in only.parts], only.channel_names, [name for name, _ in site.left_out]


@pytest.mark.parametrize("other", ["seg_rater2", "reader1", "t2_tumor_reader1", "tumor", "gland_mask", "notes"])
def test_arrange_channels_what_is_left_over_is_no_channel(tmp_path, other):
    assert arranged(tmp_path, other, "t2") == (["t2"], ("t2",), [f"p/{other}.nii.gz"])
    with pytest.raises(BadInput, match=f"has 1 channel\\(s\\), t2.nii.gz, not 2; of {other}.nii.gz no name is known"):
        arranged(tmp_path, other, "t2", count=2)
    if other != "notes":
        assert arranged(tmp_path, other, "export") == (["export"], (), [f"p/{other}.nii.gz"])  # the only one it can be


def test_arrange_channels_named_by_the_user_are_positive(tmp_path):
    assert arranged(tmp_path, "gland", "t2", wanted=("t2", "gland")) == (["t2", "gland"], ("t2", "gland"), [])
    assert arranged(tmp_path, "FLAIR", "T1Gd", "t2", wanted=("t1ce", "flair"))[0] == ["T1Gd", "FLAIR"]
    with pytest.raises(BadInput, match="case p has no channel flair, but t1ce, t2"):
        arranged(tmp_path, "t1c", "t2", wanted=("flair", "t2"))


def test_arrange_channels_listed_keep_their_order(tmp_path):
    assert arranged(tmp_path, "T2", "ADC", listed=("t2", "adc"))[:2] == (["T2", "ADC"], ("t2", "adc"))


def test_arrange_channels_unknown_or_double_names_raise(tmp_path):
    with pytest.raises(BadInput, match=r"which of a, b are channels .* name them: --channels a,b"):
        arranged(tmp_path, "a", "b")
    with pytest.raises(BadInput, match="t1c and t1gd are one channel, t1ce; keep one of the two"):
        arranged(tmp_path, "t1c", "t1gd")


def brats(folder, year, sites_patients=4):
    for number in range(sites_patients):
        name = f"P{number}"
        for part, level in zip(BRATS[year], LEVELS, strict=True):
            voxels = (volume([number, level]) / 100 + level * (1.0 + box())).astype(np.float32)
            save_nifti(folder / name / f"{name}_{part}.nii.gz", voxels)
        save_nifti(folder / name / f"{name}_seg.nii.gz", box())


@pytest.fixture(scope="module")
def both_years(tmp_path_factory):
    root = tmp_path_factory.mktemp("brats")
    for site, year in (("UCSF", "2021"), ("PENN", "2023")):
        brats(root / "raw" / site, year)
    return root / "raw"


@pytest.mark.parametrize(("channels", "expected"), [(4, "flair t1 t1ce t2"), ("t1,t1gd,t2,t2f", "t1 t1ce t2 flair")])
def test_prepare_brats_of_two_years_has_one_order(both_years, tmp_path, channels, expected):
    names = parse_names(channels) if isinstance(channels, str) else channels
    prepare("generic", tmp_path / "sites", source=both_years, size=24, labels={"tumour": (1,)}, channels=names)
    sites = open_sites(tmp_path / "sites")
    assert {site.channel_names for site in sites} == {tuple(expected.split())}
    assert {site.modality for site in sites} == {"MR"}
    assert {Preprocessing.from_dict(site.info).channel_names for site in sites} == {tuple(expected.split())}
    assert len({preparation_digest(site.info) for site in sites}) == 1
    assert sites[0].info["channels_from"] == {"option" if isinstance(channels, str) else "file name": 4}


def test_open_sites_other_channels_or_modality_raise(both_years, tmp_path):
    for order, name in ((("t1", "t2"), "UCSF"), (("t2", "t1"), "PENN")):
        (folder,) = prepare(
            "generic", tmp_path / name, source=both_years / name, size=24, labels={"tumour": (1,)}, channels=order
        )
        folder.rename(tmp_path / "sites" / name) if (tmp_path / "sites").exists() else (tmp_path / name).rename(
            tmp_path / "sites"
        )
    with pytest.raises(BadInput, match=r"site PENN: channel names: t2, t1, but site UCSF has t1, t2; .* --channels"):
        open_sites(tmp_path / "sites")
    assert "unlike sites" in {finding.kind for finding in check(tmp_path / "sites")}
    for name, modality in (("UCSF", "MR"), ("PENN", "CT")):
        file = tmp_path / "sites" / name / "site.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"channel_names": None, "modality": modality}))
    with pytest.raises(BadInput, match="site PENN: modality: CT, but site UCSF has MR"):
        open_sites(tmp_path / "sites")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"modality": None}))
    assert len(open_sites(tmp_path / "sites")) == 2  # what is not stated is not compared


def test_prepare_channels_of_one_file_are_picked_by_the_names_of_its_list(tmp_path):
    listed = {"0": "FLAIR", "1": "T1w", "2": "t1gd", "3": "T2w"}
    entries = []
    for number in range(4):
        voxels = np.stack([volume([number, level]) / 100 + level * (1.0 + box()) for level in LEVELS], -1)
        save_nifti(tmp_path / "raw" / "imagesTr" / f"b{number}.nii.gz", voxels.astype(np.float32))
        save_nifti(tmp_path / "raw" / "labelsTr" / f"b{number}.nii.gz", box())
        entries.append({"image": f"imagesTr/b{number}.nii.gz", "label": f"labelsTr/b{number}.nii.gz"})
    (tmp_path / "raw" / "dataset.json").write_text(
        json.dumps({"name": "B", "modality": listed, "labels": {"0": "background", "1": "tumour"}, "training": entries})
    )
    found = {}
    for key, names in (("all", None), ("two", ("t2", "flair"))):
        (folder,) = prepare(
            "generic", tmp_path / key, source=tmp_path / "raw", size=24, channels=names, modality="mri_by_channel"
        )
        found[key] = SiteFolder(folder)
    assert found["all"].channel_names == ("flair", "t1", "t1ce", "t2")
    assert found["two"].channel_names == ("t2", "flair")
    one, two = (found[key].splits["training"][0].image for key in ("all", "two"))
    assert np.array_equal(one[:, [3, 0]], two)


def test_arrange_channels_takes_the_plain_name_beside_a_processed_one(tmp_path):
    assert arranged(tmp_path, "t2", "t2_preprocessed")[0] == ["t2"]


def test_single_channel_beside_which_one_is_missing_is_named(tmp_path):
    for number in range(3):
        save_nifti(tmp_path / f"P{number}" / "t1.nii.gz", volume(number))
        save_nifti(tmp_path / f"P{number}" / "seg.nii.gz", box())
    with pytest.raises(BadInput, match=r"P0/t1.nii.gz: case .* has no channel t2, but t1"):
        generic_kind(channels=("t1", "t2")).find_sites(tmp_path)
