"""Every attack by its spec, and which runs may attack."""

import json
from unittest.mock import MagicMock

import pytest
from refusals import refused
from tiny import flags

from fedmerit.engines import runs
from fedmerit.engines.nvflare.executor import MeritExecutor
from fedmerit.engines.nvflare.recipe import build_site_policy
from fedmerit.errors import BadInput
from fedmerit.files import write_json
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.declarations import parameters
from fedmerit.schema.results import read_results
from fedmerit.schema.run_info import read_run
from fedmerit.site.policy import MANIFEST, Manifest, read_manifest_file
from fedmerit.site.site import Site
from fedmerit_lab.attacks import attacked_runs
from fedmerit_lab.attacks.attack import ATTACKS, format_attack, parse_attack
from fedmerit_lab.attacks.attacked_runs import SYBILS
from fedmerit_lab.attacks.attacker_site import AttackerSite
from fedmerit_lab.attacks.simulator import AttackerExecutor


@pytest.mark.parametrize("kind", ATTACKS)
def test_format_attack_inverts_parse_attack(kind):
    needed = {"twin": ":of=site2", "near-twin": ":of=site2", "rigged": ":friends=site1+site2"}.get(kind, "")
    attack = parse_attack(f"{kind}{needed}:from=4")
    assert type(attack) is ATTACKS[kind]
    assert attack.from_ == attack.first == 4
    assert parse_attack(format_attack(attack)) == attack
    assert format_attack(attack).startswith(f"{kind}:from=4")
    assert type(attack).__doc__
    assert parameters(type(attack)).keys() == vars(attack).keys()
    assert all(parameter.text for parameter in parameters(type(attack)).values())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("", ["''", "repeat, replay"]), ("lazy", ["attack 'lazy'", "sign-flip"]),
        ("zero:share=0.5", ["'share=0.5'", "from"]), ("zero:from=soon", ["from='soon'", "a whole number"]),
        ("shifted:share=0", ["share=0", "above 0, at most 1"]), ("shifted:by=1", ["by=1", "above 0, below 1"]),
        ("scaled:by=0", ["by=0", "other than 0"]), ("inflated:what=dice", ["what='dice'", "num_samples"]),
        ("twin", ["of: missing", "twin:of=SITE"]), ("rigged", ["friends: missing", "rigged:friends=A+B"])
    ],
)  # fmt: skip
def test_parse_attack_rejects_unusable_spec(spec, words):
    with pytest.raises(BadInput) as caught:
        parse_attack(spec)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ({"site9": "zero"}, "no site site9; there are site1, site2, site3"),
        ({"site1": "twin:of=C"}, "no site C"),
        ({"site1": "rigged:friends=site1+C"}, "no site C"),
        ({"site1": "zero:from=3"}, "begins in round 3, counted from 0, and there are 3"),
        *(({"site1": kind}, f"`fedmerit lab attacks --kinds {kind} --attackers site1`") for kind in SYBILS),
    ],
)
def test_create_rejects_impossible_attack_before_writing(sites, tmp_path, specs, words):
    with pytest.raises(BadInput, match=words):
        attacked_runs.create(tmp_path / "run", specs, method="fedavg", sites=sites, rounds=3, engine="local")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("options", "words"), [({"engine": "poc"}, "provisioned"), ({"method": "pooled"}, "no site")])
def test_create_rejects_runs_in_which_no_site_can_attack(sites, tmp_path, options, words):
    chosen = {"method": "fedavg", "engine": "local", "sites": sites, "rounds": 3, **options}
    with pytest.raises(BadInput, match=words):
        attacked_runs.create(tmp_path / "run", {"site1": "zero"}, **chosen)
    assert not (tmp_path / "run").exists()


def test_lab_run_records_attacks_and_resumes_with_the_same(fedmerit, sites, tmp_path):
    run = tmp_path / "run"
    given = ("--method", "fedavg", "--sites", sites, "--rounds", 2, "--engine", "local", "--set", "schedule=constant")
    tiny = flags()
    result = fedmerit("lab", "run", "--out", run, *given, *tiny, "--attack", "site2=scaled:from=1:by=3")
    assert result.exit_code == 0, result.output
    assert read_run(run)["attacks"] == {"site2": "scaled:from=1:by=3.0"}
    norms = read_results(run).query("quantity == 'norm' and site == 'site2'")["value"].to_list()
    assert norms[1] > 2 * norms[0]
    assert fedmerit("lab", "run", "--resume", "--out", run, "--attack", "site2=scaled:by=3:from=1").exit_code == 0
    refused(fedmerit("lab", "run", "--resume", "--out", run, "--attack", "site2=zero"), "attacks")
    refused(fedmerit("lab", "run", "--out", tmp_path / "b", *given, "--attack", "zero"), "--attack zero: expected NAME")
    with pytest.raises(BadInput, match=r"simulated attacks.*`fedmerit lab run --resume"):
        runs.execute(run, lambda record: None)


def test_no_deployed_machine_can_be_made_to_attack(tmp_path, monkeypatch):
    """Options, manifests and jobs have no place for an attack, and no site allows the executor of the laboratory."""
    with pytest.raises(BadInput, match="unknown option attacks"):
        RunOptions.read({"attacks": {"site1": "zero"}})
    write_json(tmp_path / MANIFEST, {"site": "site1", "site_folder": "/sites/site1", "behaviours": "site1=zero"})
    with pytest.raises(BadInput, match="behaviours"):
        read_manifest_file(tmp_path / MANIFEST)
    policy = json.dumps(build_site_policy(track=True))
    assert "fedmerit_lab" not in policy
    assert AttackerExecutor.__name__ not in policy


@pytest.fixture
def context(sites, tmp_path, monkeypatch):
    """NVFlare's context at site1 of three, whose run.json and environment name an attack."""
    write_json(tmp_path / "run.json", {"attacks": {"site1": "zero"}})
    for name, value in {"SITES": sites, "RUN": tmp_path, "ATTACKS": "site1=zero", "BEHAVIOURS": "site1=zero"}.items():
        monkeypatch.setenv(f"FEDMERIT_{name}", str(value))
    made = MagicMock()
    made.get_identity_name.return_value = "site1"
    made.get_engine().get_workspace().get_run_dir.return_value = str(tmp_path)
    made.get_engine().get_workspace().get_startup_kit_dir.return_value = str(tmp_path)
    made.get_engine().get_clients.return_value = []
    return made


@pytest.mark.parametrize(
    ("executor", "site"), [(MeritExecutor, Site), (AttackerExecutor, AttackerSite)], ids=["product", "laboratory"]
)
def test_only_the_executor_of_the_laboratory_wraps_an_attacker(context, monkeypatch, executor, site):
    monkeypatch.setattr(MeritExecutor, "_follow_manifest", lambda self, fl_ctx: None)
    network = {"in_channels": 1, "labels": ["prostate"], "width": 2, "depth": 2}
    plan = {"method": "fedavg", "task": "prostate", "rounds": 2, "seed": 0, "network": network, "training": {}}
    assert type(executor(plan).open_site(context)) is site


def test_the_executor_of_the_laboratory_refuses_a_provisioned_machine(context, monkeypatch):
    monkeypatch.setattr(MeritExecutor, "_follow_manifest", lambda self, fl_ctx: Manifest(site="site1"))
    with pytest.raises(BadInput, match="a provisioned site simulates none"):
        AttackerExecutor({}).open_site(context)
