import numpy as np
from PIL import Image

from data_prep.readers import fundus_rois as fundus
from data_prep.synthetic import fundus as synthetic_fundus


def test_the_photograph_read_is_the_one_taken(tmp_path):
    synthetic_fundus.generate(tmp_path, 0, 5)
    case = fundus.find_sites(tmp_path)[4].cases[0]
    camera = synthetic_fundus.SITES["site5"]
    image, mask = synthetic_fundus.photograph(camera, np.random.default_rng([0, 4, 0, ord("L")]))
    np.testing.assert_array_equal(np.asarray(Image.open(case.image)), image)
    np.testing.assert_array_equal(fundus.decode(case).label[0], [mask < 255, mask == 0])
