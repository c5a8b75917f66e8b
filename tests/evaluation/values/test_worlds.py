"""Worlds are dealt as they say, smaller copies hold the same, and a benchmark goes from end to end."""

import numpy as np
import pytest
from run_factory import make_sites

from data_prep.shrinking import block_means, shrink
from evaluation.studies.cluster import Workers
from evaluation.values.from_images import knn_shapley
from evaluation.values.proxy import Proxy, train_proxy
from evaluation.values.value_benchmark import agreement
from evaluation.values.worlds import KINDS, generate, make, parse
from fedmerit.errors import BadInput
from fedmerit.files import read_json, sha256, write_json
from fedmerit.training.data import open_sites

SOURCES = [f"site{place}" for place in range(1, 7)]


@pytest.mark.parametrize("sites", [4, 6, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_every_world_has_as_many_sites_as_asked(kind, sites):
    planted = KINDS[kind](sites, 0, SOURCES)
    assert planted.scheme.into + len(planted.options.get("duplicate", ())) == sites
    assert planted.expected
    assert parse(f"{kind}:sites={sites}") == (kind, parse(f"{kind}:sites={sites}")[1])


def test_planted_masks_lie_elsewhere_and_nobody_elses_do(sites, tmp_path):
    expected = make("noise:sites=3", sites, tmp_path / "world")
    assert expected.startswith("site-3 last")
    folders = {site.name: site for site in open_sites(tmp_path / "world")}
    assert [folders[name].info["partition"]["label_noise"] is not None for name in sorted(folders)] == [0, 0, 1]
    assert make("noise:sites=3", sites, tmp_path / "world") == expected  # what is there is left
    with pytest.raises(BadInput, match=f"holds trainings with pool {sites}"):  # of another pool it is no answer
        make("noise:sites=3", make_sites(tmp_path / "others", ("Alder", "Birch")), tmp_path / "world")


def test_a_pool_and_a_proxy_stand_for_what_they_were_made_of(tmp_path, monkeypatch):
    monkeypatch.setattr("evaluation.values.worlds.prepare", lambda asked, out: (out / "site1").mkdir(parents=True))
    for _ in range(2):
        assert generate(tmp_path / "pool", 64, 20) == tmp_path / "pool"
    for size, patients, told in ((32, 20, "size 64"), (64, 30, "patients 20")):
        with pytest.raises(BadInput, match=f"holds trainings with {told}"):
            generate(tmp_path / "pool", size, patients)

    monkeypatch.setattr("evaluation.truth.coalitions.prepare", lambda *_: pytest.fail("trained on other sites"))
    first, other = (make_sites(tmp_path / name, ("Alder", "Birch"), size=16) for name in ("first", "other"))
    write_json(tmp_path / "proxy" / "sites.json", {"sites": str(first), "shrink": 2})
    shrink(first, tmp_path / "proxy" / "sites", 2)
    with pytest.raises(BadInput, match=f"holds trainings with sites {first}"):
        train_proxy(Proxy(shrink=2), other, tmp_path / "proxy", [0], {}, Workers(1))


@pytest.mark.parametrize("spec", ["noisy:sites=4", "noise:sites=1", "noise:sides=3"])
def test_a_world_that_is_none_is_refused(spec):
    with pytest.raises(BadInput, match="--worlds"):
        parse(spec)


def test_a_smaller_copy_holds_means_of_blocks_and_masks_of_halves(tmp_path):
    source = make_sites(tmp_path / "sites", ("Alder", "Birch"), size=16)
    shrink(source, tmp_path / "small", 4)
    for before, after in zip(open_sites(source), open_sites(tmp_path / "small"), strict=True):
        after.require_arrays()
        assert after.image_size == (4, 4)
        assert [len(cases) for cases in after.splits.values()] == [len(cases) for cases in before.splits.values()]
        own, small = before.cases("training")[0], after.cases("training")[0]
        assert small.image[1, 0, 2, 3] == pytest.approx(own.image[1, 0, 8:12, 12:16].mean(), rel=1e-5)
        assert small.label[1, 0, 2, 1] == (own.label[1, 0, 8:12, 4:8].mean() >= 0.5)
        sums = read_json(after.path / "site.json")["checksums"]
        assert all(sha256(after.path / name) == digest for name, digest in sums.items())
    with pytest.raises(BadInput, match="16x16 cannot be shrunk by 3"):
        shrink(source, tmp_path / "other", 3)
    assert block_means(np.arange(16).reshape(4, 4), 2).tolist() == [[2.5, 4.5], [10.5, 12.5]]


def test_nearest_neighbour_values_are_the_shapley_values_of_their_game():
    """Σ over the K nearest there of their use, by K: every coalition of six points, literally."""
    from games_reference import shapley_by_permutations, table

    random = np.random.default_rng(0)
    use, distance = random.random((2, 6)), random.random((2, 6))
    for k in (1, 2, 8):
        values = knn_shapley(use, distance.argsort(axis=1), k)
        for question in range(2):

            def worth(one, question=question, k=k):
                near = sorted((int(name) for name in one), key=lambda point: distance[question, point])[:k]
                return sum(use[question, point] for point in near) / k

            expected = shapley_by_permutations(table([str(point) for point in range(6)], worth), "012345")
            np.testing.assert_allclose(values[question], expected, atol=1e-12)


def test_agreement_of_what_is_the_truth_is_whole_and_its_interval_narrow():
    class Truth:
        values = np.repeat(np.array([[0.1, 0.2, 0.4], [0.1, 0.2, 0.4]])[:, :, None], 4, axis=2)
        mean = values[..., 0].mean(axis=0)

    assert agreement(3 * Truth.values, Truth) == pytest.approx({"pearson": 1, "spearman": 1, "low": 1, "high": 1})
    assert np.isnan(agreement(np.ones_like(Truth.values), Truth)["pearson"])


@pytest.mark.slow
def test_a_benchmark_from_end_to_end(sites, fedmerit, tmp_path):
    asked = ("bench", "values", "--out", tmp_path / "out", "--pool", sites, "--worlds", "asis", "--seeds", "0",
             "--rounds", 1, "--recipe", "quick", "--set", "depth=2", "--set", "width=2", "--draws", 5,
             "--estimators", "in_run,data_size,proxy:rounds=1:width=2:depth=2:shrink=2")  # fmt: skip
    told = fedmerit(*asked)
    assert told.exit_code == 0, told.output
    first = (tmp_path / "out" / "tables" / "bench-shapley.csv").read_text()
    assert "Ceiling" in first
    assert fedmerit(*asked).exit_code == 0
    assert (tmp_path / "out" / "tables" / "bench-shapley.csv").read_text() == first
