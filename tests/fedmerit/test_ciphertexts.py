"""Encrypted runs: the server adds up ciphertexts that the sites only can read, and its methods see nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from federation_factory import federation as federation_of
from pretending import SITES, SIZE, evaluations, over_the_wire, tiny_plan
from pretending import replies as plain_replies
from stepping import Stepped as Federation
from tiny import flags

from fedmerit import ciphertexts as ciphertexts
from fedmerit.contract import flat
from fedmerit.contract.vectors import aggregate
from fedmerit.engines.nvflare.egress import EgressFilter
from fedmerit.engines.nvflare.translation import message_to_model, model_to_answer, model_to_task
from fedmerit.errors import BadInput
from fedmerit.evidence.digests import digest
from fedmerit.evidence.verification.run import verify_run
from fedmerit.methods.registry import METHODS, build_method
from fedmerit.schema.configuration.requirements import require_privacy
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.schema.configuration.settings import TASKS
from fedmerit.schema.egress import Withheld
from fedmerit.schema.messages import Reply, payload_bytes
from fedmerit.schema.records import TRAIN
from fedmerit.schema.results import read_results
from fedmerit.schema.run_info import read_run
from fedmerit.site.site_log import SITE_LOG
from fedmerit.trainers.factory import initial_network, load_network

tenseal = pytest.importorskip("tenseal", reason="TenSEAL is not installed: pip install -e '.[he]'")

from fedmerit.engines.nvflare.encryption import contexts  # noqa: E402

CLOSE = 1e-6  # what a sum of small updates may be off by
EVIDENCE = {"norm", "cosine_to_mean", "cosine_to_previous", "largest_pair_cosine"}  # of single updates


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The contexts of sites and server."""
    return contexts(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def key(made):
    return ciphertexts.SiteKey(made[0])


@pytest.fixture(scope="module")
def other_key(tmp_path_factory):
    """That of another federation."""
    return ciphertexts.SiteKey(contexts(tmp_path_factory.mktemp("other_keys"))[0])


def some(count, scale=0.01):
    return (scale * np.random.default_rng(count).standard_normal(count)).astype(np.float32)


def statistics(means, variances, counter):
    return {
        "norm.running_mean": torch.tensor(means),
        "norm.running_var": torch.tensor(variances),
        "norm.num_batches_tracked": torch.tensor(counter),
    }


def test_weighted_sum_of_ciphertexts_is_the_plain_one(made, key):
    size, weights, shares = ciphertexts.SLOTS + 1000, [0.2, 0.0, 0.8], [0.25, 0.25, 0.5]
    updates = [torch.from_numpy(some(size + place)[:size]) for place in range(3)]
    buffers = [statistics([1.0, -200.0], [0.0, 40.0 * place], 7) for place in range(3)]
    adder = ciphertexts.Adder(made[1], size, buffers[0])
    sent = [key.encrypt(update, own) for update, own in zip(updates, buffers, strict=True)]
    assert [adder.fault(one) for one in sent] == [None] * 3
    total, expected = None, torch.zeros(size, dtype=torch.float64)
    for rounds in range(1, 4):  # a sum of sums: the update adds up, the statistics are the round's own
        total = adder.add(total, sent, weights, shares)
        expected = expected + torch.tensor(weights).double() @ torch.stack(updates).double()
        update, mean = key.decrypt(total, buffers[0])
        assert float((update - expected).abs().max()) < CLOSE, rounds
    plain = flat.average_buffers(buffers, torch.tensor(shares))
    assert mean.keys() == plain.keys()
    for name, value in plain.items():
        assert mean[name].dtype == value.dtype
        assert torch.allclose(mean[name].double(), value.double(), rtol=CLOSE, atol=CLOSE)
    assert (mean["norm.running_var"] >= 0).all()


def test_the_same_update_is_never_encrypted_to_the_same_bytes(key):
    update = torch.ones(10)
    assert key.encrypt(update, {}).digest != key.encrypt(update, {}).digest


@pytest.mark.parametrize("entry", [float("nan"), float("inf"), -2 * ciphertexts.LARGEST])
def test_what_would_come_out_as_another_number_is_not_encrypted(key, entry):
    with pytest.raises(ValueError, match="beyond"):
        key.encrypt(torch.tensor([0.0, entry]), {})


def test_the_server_has_no_key_that_opens_anything(made, key):
    held = tenseal.context_from(made[1])
    assert not held.is_private()
    piece = key.encrypt(torch.ones(10), {}).update[0]
    with pytest.raises(ValueError, match="secret_key"):
        tenseal.ckks_vector_from(held, piece).decrypt()
    with pytest.raises(BadInput, match="holds the sites' secret key"):
        ciphertexts.Adder(made[0], 10, {})
    with pytest.raises(BadInput, match="lacks the secret key"):
        ciphertexts.SiteKey(made[1])
    with pytest.raises(BadInput, match="cannot be read"):
        ciphertexts.SiteKey(b"no context")


def federation(method, run, made, rounds=3, **more):
    return Federation(tiny_plan(method, rounds=rounds), SITES, run, context=made and made[1], **more)


def whole_model(key, one):
    """What a site makes of what the server sends."""
    start, buffers = flat.get_parameters(one.network), flat.get_buffers(one.network)
    if one.models.total is None:
        return start, buffers
    added, mean = key.decrypt(one.models.total, buffers)
    return (start.double() + added).float(), mean


def encrypted_replies(one, key, without=()):
    """The replies of `pretending`, encrypted; of FedCE with claims instead of what the server cannot compute."""
    _, buffers = whole_model(key, one)
    answers = plain_replies(one, without)
    for place, (site, reply) in enumerate(answers.items()):
        if isinstance(reply, Reply):
            own = {name: value + 1 for name, value in buffers.items()}
            claims = {"cosine": 0.5 - 0.1 * place, "minus_error": 0.3 + 0.1 * place} if one.round else {}
            claims = claims if "cosine" in one.method.asks else {}
            locked = key.encrypt(reply.update, own)
            answers[site] = replace(reply, update=torch.empty(0), buffers={}, values=claims, ciphertexts=locked)
    return answers


def finish(one, key):
    while one.work:
        one.take(encrypted_replies(one, key) if one.work == TRAIN else evaluations(one))


@pytest.mark.parametrize("method", ["fedavg", "fedce"])
def test_the_encrypted_model_is_the_plain_weighted_sum(method, made, key, tmp_path):
    one = federation(method, tmp_path / "run", made)
    expected, mean = whole_model(key, one)
    for _ in range(one.config.rounds):
        without = ("Birch",) if one.round == 1 else ()
        updates = torch.stack(
            [r.update if isinstance(r, Reply) else torch.zeros(SIZE) for r in plain_replies(one, without).values()]
        )
        names = list(plain_replies(one, without))
        one.take(encrypted_replies(one, key, without))
        weights = one.recorder.ledger.records[-1]["weights"]
        assert sum(weights.values()) == pytest.approx(1)
        assert sorted(weights) == [site for site in SITES if site not in without]
        expected = aggregate(expected, torch.tensor([weights.get(name, 0.0) for name in names]), updates)
        model, mean = whole_model(key, one)
        assert float((model - expected).abs().max()) < CLOSE
        assert len(one.models.parameters) == 0
    assert torch.allclose(mean["model.0.adn.N.running_mean"], torch.full((2,), 3.0), atol=1e-4)  # +1 in every round
    finish(one, key)
    assert one.finished
    assert not (tmp_path / "run/models").exists()


def test_fedce_weighs_by_what_the_sites_say(made, key, tmp_path):
    """The plain server, given the same, where its own cosines are those that the sites claim."""
    one = federation("fedce", tmp_path / "run", made)
    finish(one, key)
    table = read_results(tmp_path / "run")
    reported = table[(table["quantity"] == "cosine") & (table["round"] == 1)].set_index("site")["value"]
    assert reported.to_dict() == {"Alder": 0.5, "Birch": 0.4, "Cedar": pytest.approx(0.3)}
    weights = one.recorder.ledger.records[1]["weights"]
    terms = {"Alder": 0.5 * 0.3, "Birch": 0.6 * 0.4, "Cedar": 0.7 * 0.5}  # (1 - cosine) times error, Eqs. 2 to 4
    assert weights == {site: pytest.approx(term / sum(terms.values())) for site, term in terms.items()}
    assert (table[table["quantity"] == "flagged"]["value"] == 0).all()


def test_a_run_continues_from_its_ciphertexts(made, key, tmp_path):
    first = federation("fedce", tmp_path / "run", made)
    first.take(encrypted_replies(first, key))
    second = federation("fedce", tmp_path / "run", made)
    assert second.round == 1
    assert second.models.total == first.models.total
    assert torch.equal(whole_model(key, second)[0], whole_model(key, first)[0])
    finish(second, key)
    assert [record["round"] for record in second.recorder.ledger.records] == [0, 1, 2]


MALFORMED = {
    "a plain update": lambda reply, key: replace(reply, ciphertexts=None, update=torch.ones(SIZE)),
    "nothing": lambda reply, key: replace(reply, ciphertexts=None),
    "no ciphertext": lambda reply, key: replace(reply, ciphertexts=replace(reply.ciphertexts, update=())),
    "one more": lambda reply, key: replace(
        reply, ciphertexts=replace(reply.ciphertexts, update=reply.ciphertexts.update * 2)
    ),
    "too few entries": lambda reply, key: replace(
        reply, ciphertexts=replace(reply.ciphertexts, update=key.encrypt(torch.ones(SIZE - 1), {}).update)
    ),
    "a sum of others": lambda reply, key: replace(
        reply, ciphertexts=replace(reply.ciphertexts, update=(multiplied(reply, key),))
    ),
}


def multiplied(reply, key):
    """A ciphertext that cannot be multiplied again."""
    return (tenseal.ckks_vector_from(key._context, reply.ciphertexts.update[0]) * 0.5).serialize()


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_encrypted_update_is_rejected_and_the_run_continues(name, made, key, tmp_path):
    one = federation("fedavg", tmp_path / "run", made, rounds=1)
    answers = encrypted_replies(one, key)
    answers["Birch"] = MALFORMED[name](answers["Birch"], key)
    assert one.check_message("Birch", answers["Birch"])
    one.take(answers)
    record = one.recorder.ledger.records[0]
    assert list(record["rejected"]) == ["Birch"]
    assert sorted(record["weights"]) == ["Alder", "Cedar"]
    finish(one, key)
    assert one.finished


@pytest.fixture
def reply(key):
    network = initial_network(tiny_plan().network, 0)
    locked = key.encrypt(flat.get_parameters(network), flat.get_buffers(network))
    return Reply(0, torch.empty(0), {}, 5, (), ciphertexts=locked)


def test_ciphertexts_travel_as_they_are(reply, made, key, tmp_path):
    one = federation("fedavg", tmp_path / "run", made)
    one.take(encrypted_replies(one, key))
    task = one.tasks()["Alder"]
    back = model_to_task(over_the_wire(message_to_model(task, one.network, 3)), one.network)
    assert back.ciphertexts == task.ciphertexts
    assert payload_bytes(task) == payload_bytes(back) == task.ciphertexts.size
    answer = model_to_answer(over_the_wire(message_to_model(reply, one.network)), one.network)
    assert isinstance(answer, Reply)
    assert digest(answer.ciphertexts) == digest(reply.ciphertexts)


def through_the_gate(answer, encrypted=False, **injected):
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils

    network = initial_network(tiny_plan().network, 0)
    model = message_to_model(answer, network)
    model.meta |= injected
    left = EgressFilter(encrypted=encrypted).process(FLModelUtils.to_shareable(model), FLContext())
    return model_to_answer(FLModelUtils.from_shareable(left), network)


@pytest.mark.parametrize(
    "injected",
    [
        {"update": [b"x"], "statistics": [], "images": [b"x"]},
        {"update": ["patient"], "statistics": []},
        {"update": [b"x"] * 100_001, "statistics": []},
        {"update": [bytes(600 * 2**20)], "statistics": []},
    ],
    ids=["more", "text", "many", "large"],
)
def test_the_gate_lets_nothing_else_pass_as_ciphertexts(reply, injected):
    with pytest.raises(Withheld):
        through_the_gate(reply, ciphertexts=injected)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_methods_that_need_single_updates_refuse_encryption_with_the_reason(method):
    entry = build_method(method, {})
    if method in ("fedavg", "fedce"):
        assert require_privacy(["he"], method, entry) == ["he"]
    else:
        with pytest.raises(BadInput, match=f"not with method {method}: .*single updates"):
            require_privacy(["he"], method, entry)


def test_filters_of_updates_in_the_clear_are_refused_beside_encryption():
    with pytest.raises(BadInput, match="in the clear"):
        require_privacy(["gaussian", "he"], "fedavg", build_method("fedavg", {}))


@pytest.fixture(scope="module", params=["fedce", pytest.param("fedavg", marks=pytest.mark.slow)])
def method(request):
    return request.param


LARGER = ("depth=3", "residual_units=2")  # by which the same round is best with CKKS's error and without


@pytest.fixture(scope="module")
def encrypted(fedmerit, options, tmp_path_factory):
    """A run of two rounds under encryption, by method and engine; of attacking sites, where given."""
    there = {}

    def run(method, engine="local", *more):
        if (method, engine, *more) not in there:
            folder = tmp_path_factory.mktemp("encrypted") / "run"
            chosen = options(*LARGER, method=method, engine=engine, rounds=2, guard="off")
            result = fedmerit("run", "--out", folder, *chosen, "--privacy", "he", *more)
            assert result.exit_code == 0, result.output
            there[method, engine, *more] = folder
        return there[method, engine, *more]

    return run


def assert_close(plain, run, model, kept=None):
    """What one run measured, the other did too, except CKKS's error; its model lies in ``kept``, or with it."""
    measured = [read_results(folder) for folder in (plain, run)]
    names = ["round", "site", "split", "case", "label", "quantity"]
    known = [table[~table["quantity"].isin(EVIDENCE)].set_index(names)["value"] for table in measured]
    assert known[0].index.equals(known[1].index)
    difference = (known[0] - known[1]).abs().groupby(level="quantity").max()
    exact = ["weight", "reputation", "train_loss", *({"contribution", "minus_error", "cosine"} & set(difference.index))]
    for quantity in exact:
        assert difference[quantity] < 2e-5, quantity
    assert difference["dice"] < 2e-3  # a voxel at the threshold changes sides
    states = model(plain), model(kept or run)
    for name, value in states[0].items():
        if value.ndim > 1:  # biases before a norm have no effect and no gradient: Adam makes noise of them
            assert float((value - states[1][name]).abs().max()) < 1e-4, name


def test_encrypted_run_gives_what_the_plain_one_gives(method, encrypted, trained, model):
    run = encrypted(method)
    assert_close(trained(*LARGER, method=method, rounds=2), run, model)
    assert read_run(run)["privacy"] == ["he"]
    assert load_network(run / "models", "global")


def test_another_key_is_noticed_at_the_sites(made, other_key, own_site, tmp_path):
    """A ciphertext of another federation looks like any other to the server; what comes of it is no model."""
    site, task = own_site
    adder = ciphertexts.Adder(made[1], len(site.models.start[0]), site.models.start[1])
    strange = other_key.encrypt(torch.zeros_like(site.models.start[0]), site.models.start[1])
    assert adder.fault(strange) is None
    with pytest.raises(BadInput, match="deploy init --he"):
        site.answer(replace(task, round=1, ciphertexts=adder.add(None, [strange], [1.0], [1.0])))


@pytest.fixture
def own_site(sites, key, tmp_path):
    from fedmerit.schema.messages import Task
    from fedmerit.schema.site_folder import SiteFolder
    from fedmerit.site.site import image_site

    config = make_configuration(
        "fedavg", "prostate", 2, 0, TASKS["prostate"], {"architecture": "unet", "width": 4, "depth": 3}
    )
    site = image_site(SiteFolder(sites / "site1"), config, tmp_path / "sites/site1", "cpu", key=key)
    return site, Task(0, torch.empty(0), {})


@pytest.mark.slow
@pytest.mark.parametrize(("method", "engine"), [("fedavg", "poc"), ("fedavg", "sim"), ("fedce", "sim")])
def test_every_engine_gives_what_the_local_one_gives(method, engine, encrypted, trained, model):
    assert_close(trained(*LARGER, method=method, rounds=2), encrypted(method, engine), model)


@pytest.mark.slow
def test_deployed_run_leaves_its_model_at_the_hospitals(sites, trained, model, fedmerit, tmp_path):
    """And a federation without keys ends an encrypted job at once."""
    job, run = tmp_path / "job", tmp_path / "run"
    tiny = ("--rounds", 2, "--min-sites", 3, *flags())
    exported = fedmerit("job", "export", "--method", "fedce", "--task", "prostate", "--out", job, *tiny,
                        "--privacy", "he", "--set", "guard=off")  # fmt: skip
    assert exported.exit_code == 0, exported.output
    with federation_of(tmp_path / "federation", sites, keys=tmp_path / "keys") as hospitals:
        submitted = hospitals.submit(job)
        assert hospitals.wait(submitted) == "FINISHED:COMPLETED", hospitals.log()
        hospitals.fetch(submitted, run)
        kept = {name: hospitals.kits[name] / "runs" / submitted for name in hospitals.names}
    assert not (run / "models").exists()
    assert not list(run.rglob("*.tenseal"))
    assert read_run(run)["privacy"] == ["he"]
    for folder in kept.values():
        assert_close(trained(rounds=2), run, model, kept=folder)
    assert verify_run(run, [kept["site1"] / "sites/site1" / SITE_LOG]).updates == {"site1": 2}
    with federation_of(tmp_path / "keyless", sites) as hospitals:
        assert hospitals.wait(hospitals.submit(job)) != "FINISHED:COMPLETED"
        assert "deploy init --he" in (hospitals.kits["server"] / "start.log").read_text()
