"""Whole runs of sites that learn from each other: the same from every engine, what a bad peer costs, continuing."""

from collections import Counter

import pytest
from faulty_peers import FAULTS, install_here, install_in_children
from peer_models import EARLY, NAMES, held
from stopping import stop_at
from tiny import TINY

from fedmerit.engines import runs
from fedmerit.engines.nvflare.executor import ERRORS
from fedmerit.errors import BadInput
from fedmerit.evidence.verification.run import verify_run
from fedmerit.schema.results import read_results
from fedmerit.site.site import Site
from fedmerit.site.site_log import SITE_LOG


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings", "threads"), [("vpdl", EARLY[:1], 3), ("cycle", EARLY, 3), ("cycle", EARLY, 2)]
)
def test_every_way_to_simulate_gives_what_the_local_engine_gives(trained, assert_same_run, method, settings, threads):
    run = trained(*settings, method=method, engine="sim", threads=threads)
    assert_same_run(trained(*settings, method=method), run)


def test_reputations_are_recorded_by_holder_and_site(trained):
    run = trained(*EARLY, "exchange=peer", method="cycle")
    names = ["site1", "site2", "site3"]
    pairs = {(holder, site) for holder in names for site in names if holder != site}
    reputation, found = held(run, "peer_reputation"), held(run, "misalignment")
    assert set(reputation) == {(round, *pair) for round in (1, 2) for pair in pairs}
    assert set(found) == {(1, *pair) for pair in pairs}
    for key, s in found.items():
        assert reputation[key] == pytest.approx(min(1, max(0, (0.75 - s) / 0.5)))
    table = read_results(run).query("quantity == 'reputation' and round == 2").set_index("site")["value"]
    for site in names:
        assert table[site] == pytest.approx(sum(reputation[2, holder, site] for holder in names if holder != site) / 2)
    assert Counter(round for round, *_ in held(run, "available"))[1] == 6


@pytest.mark.parametrize(
    ("method", "settings"), [("cycle", ("warmup_by=own",)), pytest.param("vpdl", (), marks=pytest.mark.slow)]
)
def test_until_the_warm_up_is_over_every_site_trains_locally(trained, method, settings):
    def losses(run):
        rows = read_results(run).query("quantity == 'train_loss'")
        return rows.pivot(index="round", columns="site", values="value")

    ours, single = losses(trained("warmup=2", *settings, method=method)), losses(trained(method="standalone"))
    assert ours.loc[:1].equals(single.loc[:1])
    assert (ours.loc[2] != single.loc[2]).any()  # sharing is drawn by reputation


@pytest.mark.slow
def test_by_default_the_warm_up_is_fedavg_and_peers_are_scored_by_dice(trained):
    run, fedavg = trained("warmup=1", method="cycle"), trained(method="fedavg")
    losses = (read_results(one).query("quantity == 'train_loss'") for one in (run, fedavg))
    ours, theirs = (rows.pivot(index="round", columns="site", values="value") for rows in losses)
    assert ours.loc[:1].equals(theirs.loc[:1])  # in the second each trains locally, on from the model of all
    assert (ours.loc[2] != theirs.loc[2]).any()
    scored = read_results(run).query("quantity == 'agreement'")
    assert set(scored["round"]) == {2}
    assert scored["value"].between(0, 1).all()


def available(run):
    """{round: who got nothing usable of whom, receiver and giver}, in the rounds in which sites shared at all"""
    said = held(run, "available")
    return {
        number: {(holder, site) for round, holder, site in said if round == number and not said[round, holder, site]}
        for number in sorted({round for round, *_ in said})
    }


@pytest.fixture(scope="module")
def sharing(sites, tmp_path_factory):
    """Makes a tiny run of VPDL, where all share with all in every round but the first."""

    def play(engine="local", exchange="peer", rounds=3):
        settings = TINY | {"warmup": "1", "exchange": exchange}
        run = tmp_path_factory.mktemp("sharing") / "run"
        runs.create(run, method="vpdl", sites=sites, rounds=rounds, engine=engine, threads=3, settings=settings)
        runs.execute(run, lambda record: None)
        return run

    return play


BAD = {(receiver, giver) for giver, receiver in FAULTS}


@pytest.fixture(scope="module")
def faulty(sharing):
    """A run in one round of which some sites answer some peers with NaN, another shape, or not at all."""
    with pytest.MonkeyPatch.context() as patch:
        install_here(patch)
        return sharing()


@pytest.mark.slow
def test_bad_answer_to_a_peer_costs_that_pair_one_exchange(faulty):
    """The next round everybody learns from everybody again."""
    run = faulty
    assert available(run) == {1: BAD, 2: set()}
    assert Counter(round for round, *_ in held(run, "available")) == {1: 6, 2: 6}
    assert "rejected" not in set(read_results(run)["quantity"])
    logs = {site: run / "sites" / site / SITE_LOG for site in ("site1", "site2", "site3")}
    lost = {(one.giver, one.receiver): one.lost for one in verify_run(run, [logs["site1"], logs["site3"]]).peer_models}
    assert lost == {("site1", "site3"): (), ("site3", "site1"): (1,)}
    for receiver in ("site1", "site3"):  # what site2 wrote down is not what it gave
        with pytest.raises(BadInput, match=f"{receiver} got model .* of site2 in round 1, but .*, says"):
            verify_run(run, [logs["site2"], logs[receiver]])


@pytest.mark.slow  # the test above has the local engine; `test_simulated_sites_ask_each_other`, the exchange
def test_bad_answer_to_a_peer_costs_the_same_on_the_simulator(faulty, sharing, monkeypatch, tmp_path, assert_same_run):
    install_in_children(monkeypatch, tmp_path / "site")
    run = sharing("sim")
    assert_same_run(faulty, run)
    (log,) = run.glob("nvflare/**/site3/log.txt")
    assert "no model given at this site (ConnectionError); its own errors.log says why" in log.read_text()
    assert "Mueller" not in "".join(path.read_text() for path in run.glob("nvflare/**/log*.txt"))
    assert "ConnectionError: /data/Mueller: gone" in (run / "sites/site3" / ERRORS).read_text()
    given = verify_run(run, [run / "sites" / site / SITE_LOG for site in ("site1", "site3")]).peer_models
    assert [(one.giver, one.models, one.lost) for one in given] == [("site1", 2, ()), ("site3", 1, (1,))]


@pytest.mark.parametrize(
    ("count", "exchange"),
    [
        pytest.param(8, "relay", marks=pytest.mark.slow),
        (5, "peer"),
        pytest.param(5, "relay", marks=pytest.mark.slow),
        pytest.param(8, "peer", marks=pytest.mark.slow),
    ],
)
def test_run_stopped_anywhere_ends_the_same(trained, fedmerit, sites, tmp_path, assert_same_run, count, exchange):
    run = tmp_path / "run"
    settings = TINY | {"exchange": exchange}
    settings |= dict(setting.split("=") for setting in EARLY)
    runs.create(run, method="cycle", sites=sites, rounds=3, engine="local", threads=1, settings=settings)
    stop_at(run, Site, "train", count)
    assert fedmerit("run", "--resume", "--out", run).exit_code == 0
    direct = ("exchange=peer",) if exchange == "peer" else ()
    assert_same_run(trained(*EARLY, *direct, method="cycle"), run)
    given = verify_run(run, [run / "sites" / site / SITE_LOG for site in NAMES]).peer_models
    assert len(given) == (6 if exchange == "peer" else 0)
    assert not any(one.lost for one in given)
