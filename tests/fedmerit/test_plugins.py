"""Parts that others bring: found by name, loaded when asked for, refused where nobody approved them."""

import hashlib
import importlib
import importlib.util
import json
import py_compile
import shutil
import subprocess
import sys
from functools import partial
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from federation_factory import RULES, federation
from tiny import TINY

from fedmerit import plugins
from fedmerit.contract.method import Method
from fedmerit.engines import resumption, runs
from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS
from fedmerit.schema.configuration.run import make_configuration
from fedmerit.server.checkpoint import is_finished
from fedmerit.trainers.factory import build_network
from fedmerit.trainers.monai.local_training import LOSSES, OPTIMIZERS
from fedmerit.trainers.monai.networks import NETWORKS
from fedmerit.trust import ALL, TRUST
from fedmerit_data.kinds import KINDS
from fedmerit_deploy import session
from fedmerit_deploy.site_policy import ClassValidator
from fedmerit_lab.attacks.attack import ATTACKS

PACKAGE = Path(__file__).resolve().parents[1] / "own_parts"
CLASS = "own_parts.parts:Evenly"
PROCEED = (lambda run: resumption.require_same(run, {}), lambda run: runs.execute(run, print))
SETTINGS = {"architecture": "one-layer", "loss": "squared", "optimizer": "nesterov", "lr": "0.05"}
SCRIPT = '''
"""A method of a script."""
from dataclasses import dataclass
from fedmerit.methods.fedavg import FedAvg
from fedmerit.plugins import register


@register("methods", "of-a-script")
@dataclass(frozen=True)
class Mine(FedAvg):
    """As FedAvg."""
'''


@pytest.fixture(autouse=True)
def compiled_files(monkeypatch):
    """Where Python looks for them is as it was after each test; a person named every part."""
    monkeypatch.setattr(sys, "pycache_prefix", sys.pycache_prefix)
    monkeypatch.setenv(TRUST, ALL)


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """A folder with the package, as pip installs it."""
    root = tmp_path_factory.mktemp("own_parts")
    shutil.copytree(PACKAGE, root / "source")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", root / "site")
    subprocess.run([sys.executable, "-m", "pip", "install", *options, root / "source"], check=True)
    return root / "site"


@pytest.fixture
def own_parts(installed, monkeypatch):
    """The package, installed where this process and its children find it."""
    monkeypatch.syspath_prepend(installed)
    monkeypatch.setenv("PYTHONPATH", f"{installed}:{':'.join(sys.path)}")
    for one in (METHODS, NETWORKS, LOSSES, OPTIMIZERS, KINDS, ATTACKS):
        monkeypatch.setattr(one, "_loaded", {})
    yield installed
    for name in [name for name in sys.modules if name.startswith("own_parts")]:
        del sys.modules[name]


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script that registers a method."""
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT)
    monkeypatch.setattr(plugins, "_registered", {})
    monkeypatch.setattr(plugins, "_imported", set())
    monkeypatch.setattr(METHODS, "_loaded", {})
    monkeypatch.setenv(plugins.SCRIPTS, str(path))
    return path


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    """Raw files for the reader of the package: a bright disc each."""
    root = tmp_path_factory.mktemp("blobs")
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:32, :32]
    for site in ("A", "B"):
        (root / site).mkdir()
        for case in range(4):
            middle = random.integers(10, 22, 2)
            mask = (rows - middle[0]) ** 2 + (columns - middle[1]) ** 2 < 36
            np.savez(root / site / f"{case}.npz", image=mask + random.normal(0, 0.2, mask.shape), mask=mask)
    return root


@pytest.fixture
def prepared(own_parts, blobs, fedmerit, tmp_path):
    """Site folders, by the reader of the package."""
    reported = fedmerit(
        *("prepare", "arrays", "--source", blobs, "--out", tmp_path / "sites", "--size", 32, "--no-pictures"),
        *("--jobs", 1),
    )
    assert reported.exit_code == 0, reported.output
    return tmp_path / "sites"


def test_one_of_each_is_found_by_name(own_parts):
    for group, name in (
        (METHODS, "evenly"),
        (NETWORKS, "one-layer"),
        (LOSSES, "squared"),
        (OPTIMIZERS, "nesterov"),
        (KINDS, "arrays"),
        (ATTACKS, "halved"),
    ):
        assert name in group
        assert list(group)[-1] == name or group is ATTACKS  # all of which are plugins
        assert group[name] is group[name]
    assert list(METHODS)[:3] == ["standalone", "pooled", "fedavg"]


def test_nothing_is_loaded_before_it_is_asked_for(own_parts):
    assert "evenly" in plugins.names("methods")
    assert plugins.is_name("losses", "squared")
    assert METHODS["fedavg"]
    assert "own_parts.parts" not in sys.modules


def test_one_of_each_on_the_local_engine(prepared, fedmerit, tmp_path):
    run = tmp_path / "run"
    settings = [text for name, value in SETTINGS.items() for text in ("--set", f"{name}={value}")]
    reported = fedmerit(
        *("lab", "run", "--out", run, "--method", "evenly", "--sites", prepared, "--rounds", 2, "--engine", "local"),
        *("--attack", "B=halved", "--set", "step=0.5", *settings),
    )
    assert reported.exit_code == 0, reported.output
    assert is_finished(run, 2)
    info = json.loads((run / "run.json").read_text())
    assert info["parameters"] == {"step": 0.5}
    assert info["attacks"] == {"B": "halved:from_=0"} or info["attacks"]["B"].startswith("halved")
    assert json.loads((run / "models" / "model.json").read_text())["architecture"] == "one-layer"
    reported = fedmerit("evaluate", run, "--sites", prepared, "--metric", "volume-error")
    assert reported.exit_code == 0, reported.output
    assert "volume-error" in reported.output


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sim", "poc"])
def test_one_of_each_on_nvflare(prepared, tmp_path, engine, assert_same_run):
    for where in ("local", engine):
        runs.create(tmp_path / where / "run", "evenly", prepared, rounds=2, engine=where, settings=SETTINGS)
        runs.execute(tmp_path / where / "run", lambda record: None)
    assert_same_run(tmp_path / "local" / "run", tmp_path / engine / "run")


@pytest.mark.slow
def test_a_script_on_the_simulator(script, sites, tmp_path):
    settings = TINY
    runs.create(tmp_path / "run", "of-a-script", sites, rounds=1, engine="sim", settings=settings)
    runs.execute(tmp_path / "run", lambda record: None)
    assert is_finished(tmp_path / "run", 1)


def test_a_script_registers_and_a_run_remembers_it(script, sites, tmp_path):
    settings = TINY | {"augmentation": "none"}
    runs.create(tmp_path / "run", "of-a-script", sites, rounds=1, engine="local", settings=settings)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["parts"] == {
        str(script): hashlib.sha256(SCRIPT.rstrip().encode()).hexdigest()
    }
    runs.execute(tmp_path / "run", lambda record: None)
    assert is_finished(tmp_path / "run", 1)


def test_a_script_that_a_run_names_is_imported_only_where_it_is_given_again(script, sites, tmp_path, monkeypatch):
    """A run folder may be another's."""
    settings = TINY | {"guard": "on"}
    runs.create(tmp_path / "run", "of-a-script", sites, rounds=1, engine="local", settings=settings)
    monkeypatch.setattr(plugins, "_registered", {})
    monkeypatch.setattr(plugins, "_imported", set())
    monkeypatch.setattr(METHODS, "_loaded", {})
    monkeypatch.delenv(plugins.SCRIPTS)
    for proceed in PROCEED:
        with pytest.raises(BadInput, match=f"run.json: names {script} .* with FEDMERIT_PARTS={script} before it"):
            proceed(tmp_path / "run")
    assert plugins.scripts() == []
    assert plugins._imported == set()
    monkeypatch.chdir(script.parent)
    monkeypatch.setenv(plugins.SCRIPTS, script.name)
    resumption.require_same(tmp_path / "run", {})
    assert plugins._imported == {str(script)}


def test_a_script_that_was_changed_continues_with_no_run(script, sites, tmp_path):
    settings = TINY | {"augmentation": "none"}
    runs.create(tmp_path / "run", "of-a-script", sites, rounds=1, engine="local", settings=settings)
    begun = script.read_text()
    script.write_text(begun + "# as FedAvg, except this line\n")
    for proceed in PROCEED:
        with pytest.raises(BadInput, match=f"{script}: was changed since .*run.json was written.*; put back what it"):
            proceed(tmp_path / "run")
    script.write_text(f'{begun}\n\nif __name__ == "__main__":\n    print("no import executes this")\n')
    runs.execute(tmp_path / "run", lambda record: None)
    assert is_finished(tmp_path / "run", 1)


def test_a_script_that_is_not_there_begins_no_run(sites, tmp_path, monkeypatch):
    monkeypatch.setenv(plugins.SCRIPTS, str(tmp_path / "gone.py"))
    with pytest.raises(BadInput, match=r"gone.py: no such script of own parts, SCRIPT.py; FEDMERIT_PARTS names it"):
        runs.create(tmp_path / "run", "fedavg", sites, rounds=1, engine="local")
    assert not (tmp_path / "run").exists()


def test_a_function_of_ones_own_builds_a_network(tmp_path, monkeypatch):
    (tmp_path / "at_home.py").write_text(
        "from torch import nn\n\n\ndef build(in_channels, out_channels):\n"
        "    return nn.Conv2d(in_channels, out_channels, 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    network = {"in_channels": 1, "labels": ["prostate"]}
    config = make_configuration("fedavg", "prostate", 1, 0, network, {"architecture": "at_home:build"})
    assert type(build_network(config.network)).__name__ == "Conv2d"


@pytest.mark.parametrize("name", ["this:s", "pip.__main__:main", "nvflare.lighter.provision:main", "antigravity:fly"])
def test_what_has_no_parts_is_not_imported_for_being_named(name, monkeypatch):
    """By the run.json, or model.json, of somebody else."""
    module = name.partition(":")[0]
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(BadInput, match="nothing of them is imported only for its name"):
        plugins.load("methods", name)
    assert module not in sys.modules


def test_a_module_that_ends_the_process_as_it_is_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "at_an_end.py").write_text("raise SystemExit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadInput, match=r"at_an_end:Method .*cannot be loaded \(SystemExit"):
        plugins.load("methods", "at_an_end:Method")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architecture": "none-such"}, "expected one of dynunet, .*package.module:NAME"),
        ({"architecture": "subprocess:getoutput", "arguments": '{"cmd": "true"}'}, "is of Python, of a program,"),
        ({"architecture": "yaml:unsafe_load", "arguments": '{"stream": "a"}'}, "is of Python, of a program,"),
        ({"architecture": "torch.hub:load", "arguments": '{"model": "a"}'}, "of torch and MONAI only"),
        ({"architecture": "own_parts.parts:NoSuch"}, "cannot be loaded .AttributeError"),
        ({"architecture": "one-layer", "norm": "group"}, "has its own"),
        ({"architecture": "one-layer", "arguments": '{"depth": 3}'}, "OneLayer refuses"),
        ({"loss": "none-such"}, "loss='none-such': expected one of dice_ce, dice, or a part of that name"),
        ({"optimizer": "none-such"}, "optimizer='none-such': expected one of adam"),
    ],
)
def test_what_is_not_there_is_named(own_parts, settings, message):
    with pytest.raises(BadInput, match=message):
        build_network(make_configuration("fedavg", "t", 1, 0, {"in_channels": 1, "labels": ["a"]}, settings).network)


def test_what_is_no_method_is_refused(own_parts):
    with pytest.raises(BadInput, match="expected a frozen dataclass"):
        METHODS["own_parts.parts:OneLayer"]


def test_a_method_has_to_be_a_dataclass_itself_and_to_have_a_round(script):
    body = (
        "import fedmerit",
        "from fedmerit.methods.fedavg import FedAvg",
        "from fedmerit.contract.method import Method",
    )
    decorator = "from dataclasses import dataclass\n@fedmerit.register('methods', 'mine')\n"
    for last in (
        "class Mine(FedAvg):\n    step: float = 1.0\n",
        "@dataclass(frozen=True)\nclass Mine(Method):\n    pass\n",
    ):
        script.write_text("\n".join([*body, decorator + last]))
        plugins._imported.clear()
        with pytest.raises(BadInput, match=r"expected a frozen dataclass derived from .*Method, with round"):
            METHODS["mine"]


def test_a_script_that_fails_is_named(script):
    script.write_text("1 / 0\n")
    with pytest.raises(BadInput, match=r"mine.py: cannot be imported \(ZeroDivisionError"):
        list(METHODS)


def test_a_deployed_machine_imports_what_it_approved_only(own_parts, monkeypatch):
    monkeypatch.setenv(plugins.APPROVED, "{}")
    with pytest.raises(BadInput) as refused:
        METHODS["evenly"]
    assert "own_parts.parts" not in sys.modules
    digest = plugins.approvable(CLASS).digest
    assert f"fedmerit deploy approve {CLASS} --sha256 {digest} --kit KIT" in str(refused.value)
    monkeypatch.setenv(plugins.APPROVED, json.dumps({CLASS: digest}))
    assert METHODS["evenly"].__name__ == "Evenly"
    with pytest.raises(BadInput, match="is not approved here"):  # the same distribution, another class
        LOSSES["squared"]


def test_a_changed_distribution_is_another_one(installed, own_parts, monkeypatch, tmp_path):
    digest = plugins.approvable(CLASS).digest
    shutil.copytree(installed, tmp_path / "site")
    module = tmp_path / "site" / "own_parts" / "parts.py"
    module.write_text(module.read_text() + "\n# changed\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    importlib.invalidate_caches()
    monkeypatch.setenv(plugins.APPROVED, json.dumps({CLASS: digest}))
    with pytest.raises(BadInput, match="another version of it is approved here"):
        METHODS["evenly"]


@pytest.fixture
def copied(installed, own_parts, monkeypatch, tmp_path):
    """A copy of the installed package that a test may spoil, found in its place."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(installed)])
    shutil.copytree(installed, tmp_path / "site", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    importlib.invalidate_caches()
    return tmp_path / "site"


def test_a_compiled_file_that_is_not_of_its_source_is_not_read_where_parts_are_approved(copied, monkeypatch):
    """Python checks none that says it need not: with the digest of one wheel another would be imported."""
    digest, source = plugins.approvable(CLASS).digest, copied / "own_parts" / "parts.py"
    monkeypatch.setattr(sys, "pycache_prefix", None)
    (copied / "other.py").write_text("class Evenly:\n    pass\n")
    to = importlib.util.cache_from_source(str(source))
    py_compile.compile(
        str(copied / "other.py"), to, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, doraise=True
    )
    assert plugins.approvable(CLASS).digest == digest
    assert not issubclass(plugins.load("methods", CLASS), Method)
    for name in [name for name in sys.modules if name.startswith("own_parts")]:
        del sys.modules[name]
    monkeypatch.setenv(plugins.APPROVED, json.dumps({CLASS: digest}))
    assert issubclass(plugins.load("methods", CLASS), Method)


@pytest.mark.parametrize("name", ["hidden.py", "__pycache__/hidden.py", "__pycache__/hidden.pyc"])
def test_a_file_that_no_digest_is_of_is_no_part_of_what_is_approved(copied, name):
    assert plugins.approvable(CLASS).digest
    path = copied / "own_parts" / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(BadInput, match="of no distribution that is installed here from a wheel"):
        plugins.approvable(CLASS)


def test_what_an_installer_writes_belongs_to_no_digest(copied):
    digest, (info,) = plugins.approvable(CLASS).digest, copied.glob("*.dist-info")
    (copied.parent / "bin").mkdir()
    entries = (info / "entry_points.txt").read_text() + "\n[console_scripts]\nown = own_parts.parts:main\n"
    (info / "entry_points.txt").write_text(entries)
    with_program = (info / "RECORD").read_text() + "../bin/own,,\n../bin/other,,\n"
    (info / "RECORD").write_text(with_program)
    digests = set()
    for program, other in (("#!/here", "1"), ("#!/there", "1"), ("#!/there", "2")):
        (copied.parent / "bin" / "own").write_text(program)
        (copied.parent / "bin" / "other").write_text(other)
        digests.add(plugins.approvable(CLASS).digest)
    assert len(digests) == 2
    assert digest not in digests


def test_what_hides_a_distribution_is_not_taken_for_it(own_parts, monkeypatch, tmp_path):
    (tmp_path / "own_parts").mkdir()
    (tmp_path / "own_parts" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert distribution("own-parts").version == "1.0"
    reference = plugins.find_reference("methods", "evenly")
    assert reference is not None
    assert reference.digest == ""
    assert "not installed from a wheel" in plugins.refusal(reference, {CLASS: ""})


def test_a_script_on_a_deployed_machine(script, monkeypatch):
    monkeypatch.setenv(plugins.APPROVED, "{}")
    with pytest.raises(KeyError):
        METHODS["of-a-script"]
    reference = plugins.approvable(str(script))
    monkeypatch.setenv(plugins.APPROVED, json.dumps({reference.text: reference.digest}))
    assert METHODS["of-a-script"].__name__ == "Mine"
    monkeypatch.setattr(plugins, "_imported", set())
    script.write_text(SCRIPT + "# changed\n")
    with pytest.raises(BadInput, match="another version"):
        list(METHODS)


def test_a_job_is_refused_as_it_is_deployed(own_parts, tmp_path):
    (tmp_path / "config").mkdir()
    plan = {"method": "evenly", "network": {"architecture": "os:system"}, "training": {"loss": "dice"}}
    part = {"path": "fedmerit.engines.nvflare.executor.MeritExecutor", "args": {"plan": plan}}
    content = {"format_version": 2, "executors": [{"tasks": ["train"], "executor": part}]}
    (tmp_path / "config" / "config_fed_client.json").write_text(json.dumps(content))
    manifest = tmp_path / "fedmerit.json"

    def refused(**parts):
        manifest.write_text(json.dumps({"site": "A", "parts": parts}))
        validator = ClassValidator("config_fed_client.json", str(manifest))
        validator.authorizer.authorize_component_config = lambda *_: None  # NVFlare's own share, tested elsewhere
        return validator.validate(str(tmp_path))[0]

    digest = plugins.approvable(CLASS).digest
    assert f"methods: 'evenly': {CLASS} of own-parts 1.0: is not approved here" in refused()
    assert f"--sha256 {digest}" in refused()
    assert "os:system of no installed distribution" in refused(**{CLASS: digest})
    assert "own_parts.parts" not in sys.modules
    plan["network"]["architecture"] = "UNETR"
    (tmp_path / "config" / "config_fed_client.json").write_text(json.dumps(content))
    assert refused(**{CLASS: digest}) == ""
    assert str(tmp_path) not in (said := refused(**{"/data/MUELLER": 7}))  # which leaves the hospital
    assert "MUELLER" not in said
    assert "fedmerit.json cannot be read" in said


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_deployment_takes_what_its_machines_approved(prepared, fedmerit, tmp_path):
    job = tmp_path / "job"
    settings = [text for name, value in SETTINGS.items() for text in ("--set", f"{name}={value}")]
    reported = fedmerit(
        "job", "export", "--method", "evenly", "--sites", prepared, "--out", job, "--rounds", 1, *settings
    )
    assert reported.exit_code == 0, reported.output
    with federation(tmp_path / "kits", prepared, rules=RULES.model_copy(update={"least_images": 2})) as made:
        refused = made.submit(job)
        assert made.wait(refused) != session.COMPLETED
        reported = fedmerit("job", "status", refused, "--kit", made.admin)
        assert f"fedmerit deploy approve {CLASS}" in reported.output
        parts = [f"own_parts.parts:{name}" for name in ("Evenly", "OneLayer", "Squared", "nesterov")]
        for kit in made.kits.values():
            reported = fedmerit("deploy", "approve", *parts, "--kit", kit)
            assert reported.exit_code == 0, reported.output
        assert made.wait(made.submit(job)) == session.COMPLETED, made.log()


def test_an_object_without_source_may_be_a_part(monkeypatch):
    monkeypatch.setattr(plugins, "_registered", {})
    monkeypatch.setattr(plugins, "_imported", set())
    monkeypatch.setenv(plugins.SCRIPTS, "")
    loss = partial(max, 0)
    plugins.register("losses", "of-python")(max)
    plugins.register("losses", "of-an-object")(loss)
    assert plugins.load("losses", "of-an-object") is loss
    assert plugins.scripts() == [str(Path(__file__).resolve())]


def test_where_no_package_brings_a_part_its_own_name_is_asked_for():
    with pytest.raises(BadInput, match=r"metric 'nope': unknown; expected module:name; no package here brings one$"):
        plugins.get_part(plugins.Catalogue("metrics", {}, callable, "x"), "nope", "metric")
