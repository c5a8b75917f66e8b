import numpy as np
import pytest
from tiny import flags

from fedmerit.schema.site_folder import SiteFolder
from fedmerit.trainers.monai.prediction import evaluate
from fedmerit_evaluation.ground_truth.coalitions import ESTIMATED, SEEN, UNSEEN, mean_scores
from fedmerit_evaluation.results.evaluation import final_models


@pytest.fixture(scope="module")
def study(fedmerit, sites, tmp_path_factory):
    """Three sites, each left out once, with BatchNorm."""
    out = tmp_path_factory.mktemp("unseen") / "study"
    tiny = flags()
    result = fedmerit("value", "unseen", "--sites", sites, "--out", out, "--rounds", 2, "--jobs", 1, *tiny)
    assert result.exit_code == 0, result.output
    return out


def rows(study, name="unseen"):
    import pandas as pd

    table = pd.read_csv(study / "tables" / f"{name}.csv").set_index("Site")
    return table.rename(columns=lambda heading: heading.rpartition(" [")[0])


def test_mean_scores_count_each_case_once():
    """((90 + 50) / 2 + 30) / 2 %: the cup of the second case is empty in both, NaN in a table."""
    found = [("dice", "000", 0.9), ("dice", "000", 0.5), ("dice", "001", 0.3), ("dice", "001", None)]
    assert mean_scores(found) == {"dice": pytest.approx(50.0)}
    assert mean_scores([*found[:3], ("dice", "001", np.nan)]) == {"dice": pytest.approx(50.0)}


def test_generalisation_tests_model_of_others(study, sites):
    table, hd95, nsd = (rows(study, name) for name in ("unseen", "unseen-hd95", "unseen-nsd"))
    assert table.index.tolist() == ["site1", "site2", "site3", "Mean"]
    for site, others in (("site1", "site2+site3"), ("site3", "site1+site2")):
        folder = SiteFolder(sites / site)
        network = final_models(study / "runs" / f"{others}_seed0")(folder)
        tested = evaluate(network, folder.cases("testing"), folder.labels, final=True)
        scores = mean_scores((name, one.case, value) for one in tested for name, value in one.scores.items())
        assert table.loc[site, UNSEEN] == pytest.approx(scores["dice"], abs=0.06)
        assert hd95.loc[site, UNSEEN] == pytest.approx(scores["hd95"], abs=0.06)
        assert nsd.loc[site, UNSEEN] == pytest.approx(scores["nsd"], abs=0.06)


def test_generalisation_has_estimated_statistics_and_all(study):
    table = rows(study)
    assert np.isfinite(table[[UNSEEN, ESTIMATED, SEEN]].to_numpy()).all()
    sites = table.drop(index="Mean")
    assert not np.allclose(sites[UNSEEN], sites[ESTIMATED])
    np.testing.assert_allclose(table.loc["Mean", SEEN], sites[SEEN].mean(), atol=0.1)


def test_leave_one_out_reuses_trainings_of_unseen(study, fedmerit, sites):
    tiny = flags()
    result = fedmerit("value", "leave-one-out", "--sites", sites, "--out", study, "--rounds", 2, "--jobs", 1, *tiny)
    assert result.exit_code == 0, result.output
    assert "trainings to do" not in result.output
