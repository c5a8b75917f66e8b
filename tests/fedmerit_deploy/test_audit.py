"""Repeated steps: honest work repeats bit for bit in a new process, and what a site invents is caught when drawn."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from certificates import issue
from pretending import tiny_plan
from signed_runs import lines_of, log_of, rewritten
from stepping import Stepped as Federation

from fedmerit.contract import flat
from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import read_closing
from fedmerit.evidence.ledger import Ledger
from fedmerit.evidence.repeated_work import AUDITS, RepeatedWork, draw_leaf, find_commitments, write_statement
from fedmerit.evidence.signatures import Signer, Trust
from fedmerit.evidence.verification.chains import read_ledger, read_site_log
from fedmerit.evidence.verification.findings import Contradiction
from fedmerit.evidence.verification.models import REPEATED_FIELDS, undefined_quantities
from fedmerit.evidence.verification.run import verify_run
from fedmerit.evidence.verification.work import summarise_statement
from fedmerit.schema.messages import Task
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit.site.order_secret import FILE, secret_arguments
from fedmerit.site.site import Site
from fedmerit.trainers import step_commitments, training_checkpoint
from fedmerit.trainers.factory import build_trainer, initial_network
from fedmerit.trainers.monai import local_training
from fedmerit.trainers.step_commitments import WORK, merkle_root
from fedmerit_deploy.audit import audit_work
from fedmerit_evaluation.valuation.valued_runs import repeated_shares

NAMES = ("site1", "site2")
SETTINGS = {"steps": 6, "batch_size": 4, "augmentation": "strong", "guard": "on"}


@pytest.fixture(autouse=True)
def every_second_step(monkeypatch):
    monkeypatch.setattr(step_commitments, "EVERY", 2)
    torch.set_num_threads(1)  # as sites and audits do


def execute(run: Path, sites: Path, method: str = "fedavg", cheat=None, keys: Path | None = None, **settings) -> Path:
    """Have a run of three rounds done by two sites that keep what their rounds started from.

    ``cheat`` changes the site site2 before it begins.
    """
    config = tiny_plan(method, rounds=3, share=True, **{**SETTINGS, **settings})
    root = Signer(keys / "root.key", keys / "root.crt").certificate if keys else None
    server = Signer(keys / "server.key", keys / "server.crt") if keys else None
    run.mkdir()
    plan = config.to_dict()
    reported = {name: plan.get(name, default) for name, default in REPEATED_FIELDS.items()} | {
        "labels": plan["network"]["labels"]
    }
    reported["undefined"] = undefined_quantities(method)
    (run / "run.json").write_text(json.dumps(reported | {"plan": plan, "sites": list(NAMES)}))
    federation, own = Federation(config, NAMES, run, signer=server, root=root), {}
    for folder in open_sites(sites):
        if folder.name in NAMES:
            memory, name = run / "sites" / folder.name, folder.name
            memory.mkdir(parents=True)
            (memory / FILE).write_text(f"secret of {name}")  # the same in every test run
            trainer = build_trainer(config, folder, memory, "cpu", **secret_arguments(memory, folder))
            signer = Signer(keys / f"{name}.key", keys / f"{name}.crt") if keys else None
            pem = (keys / f"{name}.crt").read_text() if keys else ""
            own[name] = Site(trainer, config, memory, participants=NAMES, signer=signer, certificate=pem)
    if cheat:
        cheat(own["site2"])
    while federation.work:
        answers = {name: own[name].answer(task) for name, task in federation.tasks().items()}
        federation.take(answers)
    return run


def audit(run: Path, sites: Path, site: str = "site2", images: Path | None = None):
    return audit_work(run, run / "sites" / site, (images and SiteFolder(images)) or SiteFolder(sites / site), "cpu")


def faults(statement) -> dict[str, str]:
    return {round: repeated.fault for round, repeated in statement.rounds.items() if repeated.fault}


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    issue(folder, "root")
    for name in ("server", *NAMES, "auditor"):
        issue(folder, name, "root")
    issue(folder, "stranger")
    return folder


@pytest.fixture(scope="module")
def signed(sites, keys, tmp_path_factory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_commitments, "EVERY", 2)
        return execute(tmp_path_factory.mktemp("signed") / "run", sites, keys=keys)


@pytest.mark.parametrize(  # every other test here has FedAvg
    "method",
    ["ditto", *(pytest.param(name, marks=pytest.mark.slow) for name in ("scaffold", "cycle", "fedprox", "fedbn"))],
)
def test_audit_repeats_every_round_of_an_honest_site(method, sites, tmp_path):
    more = {"scaffold": {"optimizer": "sgd"}, "fedprox": {"dp_noise": 1.0, "norm": "instance"}}.get(method, {})
    run = execute(tmp_path / "run", sites, method, **more)
    statement = audit(run, sites)
    assert sorted(statement.rounds) == ["0", "1", "2"]
    assert faults(statement) == {}


@pytest.mark.slow
def test_audit_in_a_new_process_gives_the_same_statement(sites, tmp_path):
    run = execute(tmp_path / "run", sites)
    program = (
        "import sys; from pathlib import Path; from fedmerit.schema.site_folder import SiteFolder; "
        "from fedmerit.trainers import step_commitments; step_commitments.EVERY = 2; "
        "from fedmerit_deploy.audit import audit_work; run, own, folder = map(Path, sys.argv[1:]); "
        "print(audit_work(run, own, SiteFolder(folder), 'cpu').model_dump_json())"
    )
    folders = [run, run / "sites" / "site2", sites / "site2"]
    ended = subprocess.run([sys.executable, "-P", "-c", program, *map(str, folders)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    statement = json.loads(ended.stdout.splitlines()[-1])
    assert statement == audit(run, sites).model_dump()
    assert len(statement["rounds"]) == 3
    assert not any(repeated["fault"] for repeated in statement["rounds"].values())


@pytest.mark.parametrize(("who", "share"), [("auditor", 1.0), ("site2", 0.0), ("server", 0.0)])
def test_share_of_repeated_rounds_counts_what_others_than_the_site_repeated(signed, sites, keys, tmp_path, who, share):
    run = shutil.copytree(signed, tmp_path / "run")
    write_statement(run / AUDITS, audit(run, sites), Signer(keys / f"{who}.key", keys / f"{who}.crt"))
    trust = Trust(keys / "root.crt")
    assert repeated_shares(run, NAMES, trust).tolist() == [0.0, share]
    missing = [finding.kind for finding in verify_run(run).unproven if finding.kind == "audits without log"]
    assert missing  # the steps were perhaps not those that were drawn
    stated = json.loads((run / AUDITS / "site2.json").read_text())
    stated["rounds"]["7"] = stated["rounds"].pop("0")
    (run / AUDITS / "site2.json").write_text(json.dumps(stated))
    with pytest.raises(Contradiction, match="its signature is not that"):
        repeated_shares(run, NAMES, trust)


def test_statement_of_nobody_or_of_a_stranger_counts_for_no_pay(signed, sites, keys, tmp_path):
    run, trust = shutil.copytree(signed, tmp_path / "run"), Trust(keys / "root.crt", "server")
    path = write_statement(run / AUDITS, audit(run, sites), None)
    assert repeated_shares(run, NAMES, trust).tolist() == [0.0, 0.0]
    logs = [run / "sites" / name / "site_log.jsonl" for name in NAMES]
    assert [one.share for one in verify_run(run, logs, trust).work if one.site == "site2"] == [0.0]
    write_statement(run / AUDITS, audit(run, sites), Signer(keys / "stranger.key", keys / "stranger.crt"))
    assert path.exists()
    with pytest.raises(BadInput, match="nor its issuer"):
        repeated_shares(run, NAMES, trust)


def test_commitment_counts_only_if_the_ledger_has_the_end_of_the_log_that_holds_it(signed):
    """Else a site and a server that leaves the end out could choose the commitment after the draw."""
    entries = read_site_log(signed / "sites/site2/site_log.jsonl").entries
    records = read_ledger(signed / "ledger.jsonl")
    assert sorted(find_commitments(entries, records)) == [0, 1, 2]
    silent = [record.model_copy(update={"logs": {}}) if record.round == 1 else record for record in records]
    assert sorted(find_commitments(entries, silent)) == [0, 2]


def skip_steps(site: Site) -> None:
    """Train the first two of six steps; invent the later states, the last one with the model that is sent."""
    work, config = site.trainer.work, site.trainer.config

    def commit(task, received, memory, question, samples, learn):
        def learn_less(commitments):
            site.trainer.config = replace(config, training=replace(config.training, steps=2))
            local_round = site.trainer._local_round(task)
            learned = replace(local_round, commitments=commitments).learn(received, None)
            made = commitments.trainings[0]
            made.leaves.clear()
            for number in (2, 4, 6):
                made.parts = {**made.parts, "place": f"0 {number} of 6"}
                made.leaves.append(step_commitments.make_leaf(work.salt, made.parts).hex())
            made.steps = 6
            return learned

        return type(work).commit(work, task, received, memory, question, samples, learn_less)

    work.commit = commit


def test_audit_finds_skipped_steps_when_they_are_drawn(sites, tmp_path, monkeypatch):
    run = execute(tmp_path / "run", sites, cheat=skip_steps)
    monkeypatch.setattr("fedmerit_deploy.audit.draw_leaf", lambda site, round, *more: round + 1)
    statement = audit(run, sites)
    assert {round: repeated.leaf for round, repeated in statement.rounds.items()} == {"0": 1, "1": 2, "2": 3}
    assert set(faults(statement)) == {"1", "2"}  # the first state is true: its steps were done
    assert all("the steps before it do not lead to it" in fault for fault in faults(statement).values())


def train_less(site: Site, says: int) -> None:
    """Train two of six steps, commit to these only, and write into the state that the training has ``says`` steps."""
    work, config = site.trainer.work, site.trainer.config

    def commit(task, received, memory, question, samples, learn):
        def learn_less(commitments):
            site.trainer.config = replace(config, training=replace(config.training, steps=2))
            learned = replace(site.trainer._local_round(task), commitments=commitments).learn(received, None)
            made = commitments.trainings[0]
            made.parts = {**made.parts, "place": made.parts["place"].replace("of 2", f"of {says}")}
            made.leaves = [step_commitments.make_leaf(work.salt, made.parts).hex()]
            return learned

        return type(work).commit(work, task, received, memory, question, samples, learn_less)

    work.commit = commit


def invent_update(site: Site) -> None:
    """Train and commit as agreed, but send another update."""
    commit = site.trainer.work.commit

    def changed(task, received, *more):
        learned, commitment = commit(task, received, *more)
        update = learned.update * 0.5
        invented = commitment.model_copy(update={"update": step_commitments.digest(update)})
        return replace(learned, update=update, trained=received + update), invented

    site.trainer.work.commit = changed


def forge_batches(site: Site) -> None:
    """Train on one image all the time, with the digests of the batches that were due."""
    samples = site.trainer.samples
    samples.batch = lambda places, device, batch=samples.batch: batch(torch.zeros_like(places), device)


@pytest.mark.parametrize(
    ("cheat", "words"),
    [
        (lambda site: train_less(site, 2), ""),  # all committed states are true; the later ones were never made
        (lambda site: train_less(site, 6), ""),
        (invent_update, "the update does not follow from the last state"),
        (forge_batches, ""),
    ],
)
def test_audit_finds_work_that_was_not_done_whatever_is_drawn(sites, tmp_path, cheat, words):
    reported = faults(audit(execute(tmp_path / "run", sites, cheat=cheat), sites))
    assert set(reported) == {"0", "1", "2"}
    assert all(words in fault for fault in reported.values())


@pytest.mark.parametrize("kind", ["image", "label"])
def test_audit_finds_images_and_masks_changed_after_enrolment(sites, own_sites, tmp_path, kind):
    run = execute(tmp_path / "run", sites)
    case = SiteFolder(own_sites / "site2").cases("training")[0]
    file, content = (case.image_file, case.image) if kind == "image" else (case.label_file, case.label)
    changed = np.array(content)
    changed[0, 0, 0, 0] = 1 - changed[0, 0, 0, 0]
    np.save(file, changed)
    reported = faults(audit(run, sites, images=own_sites / "site2"))
    assert set(reported.values()) == {"images or masks are not those that the site enrolled"}
    assert len(reported) == 3


def test_commitment_counts_only_as_signed_in_its_round(signed, keys, tmp_path):
    """A site that logs another commitment once the draw is known is held to the first."""
    run = Path(shutil.copytree(signed, tmp_path / "run"))
    records, path = read_ledger(run / "ledger.jsonl"), log_of(run)
    before = find_commitments(read_site_log(path).entries, records)
    lines = lines_of(path)
    late = next(line for line in lines if line["work"] == "train" and line["round"] == 0)
    entry = {name: late[name] for name in late if name not in ("previous", "hash", "signature")}
    entry["commitment"] = {**entry["commitment"], "root": "0" * 64}
    Ledger(path, Signer(keys / "site2.key", keys / "site2.crt")).append(entry)
    assert find_commitments(read_site_log(path).entries, records) == before


def test_commitment_to_other_images_than_enrolled_does_not_count(sites, tmp_path):
    run = execute(tmp_path / "run", sites)
    records, path = read_ledger(run / "ledger.jsonl"), log_of(run)

    def forge(lines):
        for line in lines:
            if line["work"] == "enrol":
                line["samples"] = "0" * 64

    assert len(find_commitments(read_site_log(path).entries, records)) == 3
    rewritten(path, forge)
    assert find_commitments(read_site_log(path).entries, records) == {}


def test_draw_follows_from_the_next_answers_of_others(signed):
    records, closing = read_ledger(signed / "ledger.jsonl"), read_closing(signed)
    log = read_site_log(log_of(signed))
    commitment = find_commitments(log.entries, records)[0].model_copy(update={"leaves": 1000})

    def draw(round=0, changed=records, commitment=commitment, closing=closing):
        return draw_leaf("site2", round, commitment, changed, closing)

    own = [record.model_copy(update={"logs": {**record.logs, "site2": "0" * 64}}) for record in records]
    others = [record.model_copy(update={"logs": {**record.logs, "site1": "0" * 64}}) for record in records]
    assert 1 <= draw() <= 1000
    assert draw(changed=own) == draw()  # nothing that the site itself says later moves it
    assert draw(changed=others) != draw()
    assert draw(commitment=commitment.model_copy(update={"root": "1" * 64})) != draw()
    assert draw(2) is not None
    assert draw(2, closing=None) is None


def verified(run: Path, keys: Path):
    found = verify_run(run, [log_of(run, name) for name in NAMES], Trust(keys / "root.crt", "server"))
    return {shown.site: shown for shown in found.work}, [str(finding) for finding in found.unproven]


def test_verify_counts_repeated_steps_of_an_auditor(signed, sites, keys, tmp_path):
    shown, questions = verified(signed, keys)
    assert {len(work.drawn) for work in shown.values()} == {3}
    assert {work.share for work in shown.values()} == {0.0}
    assert not [text for text in questions if "steps" in text]  # nobody was asked
    statement = audit(signed, sites)
    path = write_statement(signed / AUDITS, statement, Signer(keys / "auditor.key", keys / "auditor.crt"))
    shown, questions = verified(signed, keys)
    assert (len(shown["site2"].repeated), shown["site2"].share) == (3, 1.0)
    assert "CN=auditor" in shown["site2"].auditor
    assert not [text for text in questions if "site2" in text and "steps" in text]
    write_statement(signed / AUDITS, statement, Signer(keys / "site2.key", keys / "site2.crt"))
    shown, questions = verified(signed, keys)
    assert (len(shown["site2"].repeated), shown["site2"].share) == (3, 0.0)
    assert any("only its own key signed that" in text for text in questions)
    path.unlink()


def test_verify_refuses_forged_statements(signed, sites, keys):
    statement = audit(signed, sites)
    auditor = Signer(keys / "auditor.key", keys / "auditor.crt")
    failed = {"0": statement.rounds["0"].model_copy(update={"fault": "state 2 of 3 is another"})}
    path = write_statement(signed / AUDITS, statement.model_copy(update={"rounds": failed}), auditor)
    shown, questions = verified(signed, keys)
    assert (shown["site2"].repeated, shown["site2"].share) == ([], 0.0)
    assert any("round 0 as it said: state 2 of 3 is another" in text for text in questions)
    content = json.loads(path.read_text())
    content["rounds"]["0"]["fault"] = ""
    path.write_text(json.dumps(content))
    with pytest.raises(Contradiction, match="its signature is not that of its certificate"):
        verified(signed, keys)
    other = {"0": statement.rounds["0"].model_copy(update={"leaf": statement.rounds["0"].leaf % 3 + 1})}
    write_statement(signed / AUDITS, statement.model_copy(update={"rounds": other}), auditor)
    with pytest.raises(Contradiction, match="other steps than those"):
        verified(signed, keys)
    write_statement(signed / AUDITS, statement, Signer(keys / "stranger.key", keys / "stranger.crt"))
    with pytest.raises(BadInput, match="neither the certificate that signed"):
        verified(signed, keys)
    path.unlink()


def test_rounds_without_a_site_count_as_not_repeated():
    """A site that stops answering, instead of sending something else, is paid for the rounds that it trained."""
    assert RepeatedWork("site2", [0, 1], [0, 1], [0, 1], is_independent=True, rounds=8).share == 0.25


@pytest.mark.parametrize("words", ["another plan or ledger", "other steps"])
def test_payment_counts_no_statement_of_another_run_or_draw(signed, sites, keys, words):
    """Two runs of one plan have its digest in common; a site could show the auditor a ledger that draws as it likes."""
    statement, records = audit(signed, sites), read_ledger(signed / "ledger.jsonl")
    first = statement.rounds["0"]
    lie = {
        "another plan or ledger": {"ledger": "0" * 64},
        "other steps": {"rounds": {"0": first.model_copy(update={"leaf": first.leaf % 3 + 1})}},
    }[words]
    auditor = Signer(keys / "auditor.key", keys / "auditor.crt")
    path = write_statement(signed / AUDITS, statement, auditor)
    assert summarise_statement(signed, records, "site2").share == 1.0
    write_statement(signed / AUDITS, statement.model_copy(update=lie), auditor)
    with pytest.raises(Contradiction, match=words):
        summarise_statement(signed, records, "site2")
    path.unlink()


def test_interrupted_training_commits_to_the_same_states(sites, tmp_path, monkeypatch):
    monkeypatch.setattr(training_checkpoint, "INTERVAL", 0.0)
    monkeypatch.setattr(training_checkpoint, "MOST_SHARE", 1e9)
    config, folder = tiny_plan("ditto", **SETTINGS), SiteFolder(sites / "site1")

    def site(memory: Path) -> Site:
        return Site(build_trainer(config, folder, memory, "cpu", **secret_arguments(memory, folder)), config, memory)

    whole = site(tmp_path / "whole")
    start = build_start(whole)
    whole.train(start)
    draw = local_training.draw_batches
    for limit in (9, 3):
        read = iter(range(1, 100))  # batches of this process

        def cut(*arguments, limit=limit, read=read):
            for batch in draw(*arguments):
                if next(read) == limit:
                    raise KeyboardInterrupt
                yield batch

        monkeypatch.setattr(local_training, "draw_batches", cut)
        with pytest.raises(KeyboardInterrupt):
            site(tmp_path / "cut").train(start)
    monkeypatch.setattr(local_training, "draw_batches", draw)
    site(tmp_path / "cut").train(start)
    logged = [read_site_log(tmp_path / name / "site_log.jsonl").entries[-1].commitment for name in ("whole", "cut")]
    assert logged[0] == logged[1]
    assert logged[0].leaves == 6  # two trainings of six steps


def build_start(site: Site) -> Task:
    network = initial_network(site.config.network, 0)
    return Task(0, flat.get_parameters(network), flat.get_buffers(network))


def test_work_folder_drops_the_oldest_rounds_beyond_its_size(sites, tmp_path, monkeypatch):
    monkeypatch.setattr(step_commitments, "MOST_KEPT", 1)
    run = execute(tmp_path / "run", sites)
    assert [file.name for file in (run / "sites" / "site2" / WORK).iterdir()] == ["round_00002.pt"]
    assert list(audit(run, sites).rounds) == ["2"]


def test_kept_states_that_are_not_those_committed_are_a_fault(sites, tmp_path):
    run = execute(tmp_path / "run", sites)
    file = run / "sites" / "site2" / WORK / "round_00001.pt"
    content = torch.load(file, weights_only=True)
    content["leaves"][0] = merkle_root([])
    torch.save(content, file)
    assert faults(audit(run, sites)) == {"1": "the states that the site kept are not those that it committed to"}
