import numpy as np
import pytest
from layouts import save_png
from layouts_fundus import disc_and_cup, nvflare, photo, write_datalist

from fedmerit.errors import BadInput
from fedmerit_data.readers import nvflare_prostate


def zones(shift=0):
    """1 in the rim, 2 in the cup."""
    disc, cup = disc_and_cup(shift)
    return disc.astype(np.uint8) + cup


def test_nvflare_slices_run_by_number_not_by_text(tmp_path):
    nvflare(tmp_path)
    (site,) = nvflare_prostate.find_sites(tmp_path)
    assert site.name == "MSD"
    assert [(case.name, case.patient) for case in site.cases] == [
        (f"prostate_0{number}", f"MSD-prostate_0{number}") for number in range(3)
    ]
    for case in site.cases:
        decoded = nvflare_prostate.decode(case)
        assert decoded.spacing is None
        for position, number in enumerate((8, 9, 10, 11)):
            np.testing.assert_array_equal(decoded.label[position, 0], disc_and_cup(number)[0])
            np.testing.assert_array_equal(decoded.image[position, 0], photo(number)[..., 0])


def test_nvflare_cases_that_no_list_names_are_left_out(tmp_path):
    entries = nvflare(tmp_path)
    write_datalist(tmp_path, "MSD", [entry for entry in entries if "prostate_01" not in entry["image"]])
    (site,) = nvflare_prostate.find_sites(tmp_path)
    assert [case.name for case in site.cases] == ["prostate_00", "prostate_02"]
    assert site.left_out == tuple((f"{part}/prostate_01", "not in client_MSD.json") for part in ("Image", "Mask"))


def test_nvflare_bad_input_is_named(tmp_path):
    nvflare(tmp_path)
    (site,) = nvflare_prostate.find_sites(tmp_path)
    place = tmp_path / "dataset_2D" / "MSD"
    (place / "Image" / "prostate_00" / "x.png").write_bytes((place / "Image" / "prostate_00" / "8.png").read_bytes())
    with pytest.raises(BadInput, match=r"x.png: its mask is missing"):
        nvflare_prostate.decode(site.cases[0])
    (place / "Mask" / "prostate_00" / "x.png").write_bytes((place / "Mask" / "prostate_00" / "8.png").read_bytes())
    with pytest.raises(BadInput, match=r"x.png: not named by the number of its slice"):
        nvflare_prostate.decode(site.cases[0])
    save_png(place / "Mask" / "prostate_01" / "9.png", zones()[:50])
    with pytest.raises(BadInput, match=r"9.png: of shape \(50, 120\), but 8.png has"):
        nvflare_prostate.decode(site.cases[1])
    (place / "Image" / "prostate_02" / "8.png").unlink()
    with pytest.raises(BadInput, match=r"client_MSD.json: names MSD/Image/prostate_02/8.png, which is not in"):
        nvflare_prostate.find_sites(tmp_path)
    write_datalist(tmp_path, "MSD", [])
    with pytest.raises(BadInput, match=r"client_MSD.json: names no case"):
        nvflare_prostate.find_sites(tmp_path)
    (tmp_path / "datalist_2D" / "client_MSD.json").write_text("[]")
    with pytest.raises(BadInput, match=r"client_MSD.json: not a readable data list"):
        nvflare_prostate.find_sites(tmp_path)
