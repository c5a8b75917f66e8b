"""Sites that ask each other for models, past the server: what is given, to whom, and what the logs say of it."""

import pytest
import torch
from one_in import one_in
from peer_models import EARLY, NAMES, NAN, SPOILED, peers_of, read_plan

from fedmerit.evidence.ledger import Ledger
from fedmerit.evidence.verification.run import verify_run
from fedmerit.schema.messages import Task
from fedmerit.schema.results import PAIRS, read_results
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.site.site import image_site
from fedmerit.site.site_log import SITE_LOG


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cycle", "vpdl"])
def test_models_from_site_to_site_give_what_the_server_would_have_passed_on(trained, assert_same_model, method):
    settings = EARLY if method == "cycle" else EARLY[:1]
    relayed, direct = trained(*settings, method=method), trained(*settings, "exchange=peer", method=method)
    for name in ("site1", "site2", "site3"):
        assert_same_model(relayed / f"models/{name}.pt", direct / f"models/{name}.pt")

    def reported(run):
        table = read_results(run)
        rows = table[table["quantity"].isin(["dice", "train_loss", "reputation", "contribution", *PAIRS])]
        rows = rows[~rows["split"].isin(["union", "testing_best"])]  # of models that the server sees
        return rows.drop(columns="run").astype(str).values.tolist()

    assert reported(relayed) == reported(direct)
    assert len(reported(direct)) > 50
    for run, more in ((relayed, set()), (direct, {"gave", "got"})):
        assert {record["work"] for record in Ledger(run / "sites/site1" / SITE_LOG).records} == {
            "train",
            "evaluate",
            "close",
        } | more


@pytest.mark.slow
def test_simulated_sites_ask_each_other(trained, assert_same_run, processes_of):
    run = trained(*EARLY, "exchange=peer", method="cycle", engine="sim", threads=3)
    assert_same_run(trained(*EARLY, "exchange=peer", method="cycle"), run)
    assert processes_of(run) == []
    given = verify_run(run, [run / "sites" / site / SITE_LOG for site in NAMES]).peer_models
    assert len(given) == 6
    assert all(one.models and not one.lost for one in given)


def test_server_never_sees_a_model_that_stays(trained):
    run = trained(*EARLY, "exchange=peer", method="cycle")
    checkpoint = torch.load(run / "checkpoint.pt", weights_only=True)

    def sizes(part):
        if isinstance(part, torch.Tensor):
            return [part.numel()]
        values = part.values() if isinstance(part, dict) else part if isinstance(part, (list, tuple)) else ()
        return [size for value in values for size in sizes(value)]

    assert max(sizes(checkpoint)) <= 9  # of pairs of three sites
    assert all(record["updates"] == {} for record in Ledger(run / "ledger.jsonl").records)
    results = read_results(run)
    moved = results[results["quantity"].isin(["bytes_sent", "bytes_received"])]
    assert set(moved["value"]) == {0.0}
    assert "union" not in set(results["split"])
    assert not {"norm", "cosine_to_mean"} & set(results["quantity"])
    assert set(results.query("quantity == 'repeated'")["value"]) == {0.0}


def test_fewer_processes_than_sites_cannot_ask_each_other(fedmerit, options, tmp_path):
    chosen = options("exchange=peer", "warmup_by=own", "warmup=1", method="cycle", engine="sim", threads=2)
    result = fedmerit("run", "--out", tmp_path / "run", *chosen)
    assert result.exit_code == 2
    assert "exchange=relay" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.fixture
def asking(sites, tmp_path):
    """What a site says of peers that answer with what ``answers`` holds, the model it then has, and the site."""

    def play(answers):
        def ask(peer, round):
            if isinstance(answers[peer], Exception):
                raise answers[peer]
            return answers[peer]

        memory = tmp_path / f"{len(list(tmp_path.iterdir()))}" / "sites" / "site1"
        site = image_site(
            SiteFolder(sites / "site1"),
            read_plan(exchange="peer"),
            memory,
            "cpu",
            ask_peer=ask,
            participants=(*NAMES, "site4"),
        )
        site.train(Task(0, torch.empty(0), {}))
        reply = site.train(Task(1, torch.empty(0), {}, others=dict.fromkeys(answers, NAN)))
        assert (reply.update.numel(), reply.buffers) == (0, {})
        return reply.pairs, torch.load(memory / "round_00001.pt", weights_only=True)["trained"], site

    return play


@pytest.mark.parametrize("bad", one_in(3, [TimeoutError("no answer"), *(spoil for spoil, _ in SPOILED.values())]))
def test_peer_that_vanishes_or_answers_wrongly_costs_its_own_exchange_only(asking, bad):
    good = peers_of()
    pairs, model, _ = asking(good | {"site3": bad if isinstance(bad, Exception) else bad(good["site3"])})
    expected, single, _ = asking(good | {"site3": None})
    assert pairs == expected | {"available": {"site2": 1.0, "site3": 0.0}}
    assert expected["available"] == {"site2": 1.0}
    assert torch.equal(model, single)
