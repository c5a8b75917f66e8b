import shutil

import numpy as np
from site_folders import edit, load

from fedmerit_data.check import examine


def test_a_digest_tells_whether_anything_changed(sites, tmp_path):
    before = {site.name: site for site in examine(sites).sites}
    assert before["HK"].unchanged
    assert before["HK"].digest != before["UCL"].digest
    assert before["HK"].short_digest == " ".join(before["HK"].digest[at : at + 4] for at in (0, 4, 8, 12))
    moved = shutil.copytree(sites, tmp_path / "elsewhere")
    assert {site.name: site for site in examine(moved).sites} == before
    np.save(sites / "HK" / "cases" / "Secrettraining0_image.npy", load(sites, "HK", "training0", "image") * 1.0001)
    after = {site.name: site for site in examine(sites).sites}
    assert not after["HK"].unchanged
    assert after["HK"].digest != before["HK"].digest
    assert after["UCL"] == before["UCL"]
    edit(moved / "UCL" / "datalist.json", lambda lists: lists["training"].reverse())
    assert examine(moved).sites[1].digest != before["UCL"].digest
