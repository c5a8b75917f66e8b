import numpy as np
from PIL import Image

from fedmerit_data.readers import fundus_rois
from fedmerit_data.synthetic import fundus


def test_the_photograph_read_is_the_one_taken(tmp_path, monkeypatch):
    camera = fundus.SITES["site5"]
    monkeypatch.setattr(fundus, "SITES", {"site5": camera})
    fundus.generate(tmp_path, 0, 4)
    (site,) = fundus_rois.find_sites(tmp_path)
    image, mask = fundus.photograph(camera, np.random.default_rng([0, 0, 0, ord("L")]))
    np.testing.assert_array_equal(np.asarray(Image.open(site.cases[0].image)), image)
    np.testing.assert_array_equal(fundus_rois.KIND.decode(site.cases[0]).label[0], [mask < 255, mask == 0])
