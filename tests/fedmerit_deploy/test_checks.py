"""What the preflight finds in a startup kit and on its machine. No process is started."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from certificates import certify

from fedmerit.engines.nvflare.start_scripts import NO_SPACES
from fedmerit.errors import BadInput
from fedmerit.plugins import approvable
from fedmerit_deploy import checks
from fedmerit_deploy.checks import accept_loose, check_machine
from fedmerit_deploy.kits import approve, class_policy, prepare_server, prepare_site
from fedmerit_deploy.processes import running_processes
from fedmerit_deploy.provisioning import init, make_project


def test_check_machine_covers_all_matters(ready):
    lines = check_machine(ready, offline=True)
    after = ["encryption", "start", "server", "device", "rules for jobs", "disk", "memory"]
    assert [line.what for line in lines] == ["kit", "versions", "certificate", "policy", "egress filter", *after]
    assert [line.what for line in lines if line.state == "fail"] == []
    assert {"versions", "certificate", "policy", "device"} <= {line.what for line in lines if line.state == "ok"}


def test_check_machine_of_a_moved_kit_fails(ready, tmp_path, found):
    """The check passed, and then jobs were refused, or wrote where the kit had been."""
    moved = shutil.move(ready, tmp_path / "moved")
    (state, text), _ = found(moved, "policy", offline=True)
    assert (state, str(ready) in text) == ("fail", True)


CLASSES = class_policy("client", surveys=True)["class_allow_list"]
GATE = "fedmerit.engines.nvflare.egress.EgressFilter"


def read(path):
    return json.loads(path.read_text())


def edit(name, **changes):
    """Change entries of a JSON file of a kit."""
    return lambda kit: (kit / name).write_text(json.dumps(read(kit / name) | changes))


def filtered(*filters):
    """Write a privacy scope with these filters of results."""
    scopes = [{"name": "a", "task_result_filters": list(filters)}] if filters else []
    return lambda kit: (kit / "local/privacy.json").write_text(json.dumps({"scopes": scopes}))


VERSIONS, MANIFEST, RESOURCES = (f"local/{name}.json" for name in ("fedmerit_versions", "fedmerit", "resources"))
ENDS = "privacy.json: jobs would end here"


@pytest.mark.parametrize(
    ("spoil", "what", "state", "words"),
    [
        (edit(VERSIONS, fedmerit="0.0.1"), "versions", "fail", "install the wheel of that version, which the coordin"),
        (edit(VERSIONS, nvflare="0.0.1"), "versions", "fail", "pip install nvflare==0.0.1"),
        (edit(VERSIONS, torch="0.0.1"), "versions", "warn", "pip install torch==0.0.1"),
        (edit(VERSIONS, numpy="0.0.1"), "versions", "warn", "pip install numpy==0.0.1"),
        (edit(VERSIONS, python="0.0.1"), "versions", "warn", "need not repeat bit for bit"),
        (edit(RESOURCES, class_allow_list=CLASSES[:1]), "policy", "fail", "lacks"),
        (edit(RESOURCES, class_allow_list=[*CLASSES, "os.system"]), "policy", "fail", "os.system"),
        (edit(RESOURCES, class_list_enforcement_mode="warn"), "policy", "fail", "enforced"),
        (edit(RESOURCES, class_allow_list=None), "policy", "fail", "not FedMerit's"),
        (lambda kit: (kit / "local/privacy.json").write_text("{}"), "egress filter", "fail", ENDS),
        (filtered(), "egress filter", "fail", ENDS),
        (filtered({"args": {}}), "egress filter", "fail", ENDS),
        (filtered({"path": GATE, "args": {"decimals": 12}}), "egress filter", "fail", ENDS),
        (filtered({"path": GATE, "args": {"decimal": 3}}), "egress filter", "fail", ENDS),
        (edit(MANIFEST, device="cuda:77"), "device", "fail", "cuda:77"),
        (edit(MANIFEST, hidden=["disc"]), "facts for admins", "fail", "disc: unknown"),
        (edit(MANIFEST, hidden=["gpu", "disk"]), "facts for admins", "ok", "gpu, disk"),
        (lambda kit: (kit / "startup/client.key").chmod(0o644), "certificate", "warn", "chmod 600"),
        (
            lambda kit: shutil.copy(kit.parent / "site2/startup/client.key", kit / "startup/client.key"),
            *("certificate", "fail", "belong together"),
        ),
    ],
)
def test_check_reports_what_is_spoiled_in_a_kit(ready, found, spoil, what, state, words):
    spoil(ready)
    lines = found(ready, what, offline=True)
    ((reported_state, reported),) = [line for line in lines if line[0] != "ok"] or lines
    assert reported_state == state
    assert words in reported


@pytest.mark.parametrize(
    ("first", "last", "state", "word"),
    [
        (-20, -10, "fail", "is valid from"),
        (1, 10, "fail", "clock"),
        (-1, 10, "warn", "ends on"),
        (-1, 90, "ok", "site1"),
    ],
)
def test_check_reports_certificate_out_of_date(ready, federation, first, last, state, word, found):
    certify(federation / "fedmerit/state/cert.json", ready / "startup/client", "site1", first, last)
    states = dict(found(ready, "certificate"))
    assert word in states[state]
    assert states.keys() == {state}


def test_check_rejects_certificate_of_other_federation(ready, tmp_path, found):
    project = make_project({"site1": "lead"}, "localhost", "lead", {"a@b.org": "lead"})
    other = next(kit.path for kit in init(tmp_path / "other", project) if kit.name == "site1")
    for name in ("client.crt", "client.key"):
        shutil.copy(other / "startup" / name, ready / "startup" / name)
    ((state, reported),) = found(ready, "certificate")
    assert state == "fail"
    assert "not signed by the federation" in reported


def test_check_describes_egress_filter(ready, found):
    assert found(ready, "egress filter") == [("ok", "6 decimals, surveys of 5 patients and more")]
    path = ready / "local/privacy.json"
    content = read(path)
    (scope,) = content["scopes"]
    (gate,) = scope["task_result_filters"]
    gate["args"] |= {"encrypted": True, "decimals": 3, "least": 9}
    scope["task_result_filters"].insert(
        0, {"path": "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy", "args": {}}
    )
    path.write_text(json.dumps(content))
    strict = "only encrypted updates, 3 decimals, surveys of 9 patients and more; before it PercentilePrivacy"
    assert found(ready, "egress filter") == [("ok", strict)]
    scope["task_result_filters"].reverse()
    path.write_text(json.dumps(content))
    ((state, reported),) = found(ready, "egress filter")
    assert (state, "does not end with the egress filter" in reported) == ("fail", True)
    ((state, reported),) = found(ready, "egress filter", accept=True)
    assert (state, reported[-10:]) == ("warn", "(accepted)")


def test_check_compares_parts_with_approvals(ready, tmp_path, found):
    script = tmp_path / "mine.py"
    script.write_text("one = 1\n")
    assert found(ready, "parts of others") == []
    approve(ready, [approvable(str(script))])
    assert found(ready, "parts of others") == [("ok", f"{script} is as it was approved")]
    script.write_text("one = 2\n")
    ((state, reported),) = found(ready, "parts of others")
    assert (state, "another version of it is approved here" in reported) == ("fail", True)
    script.unlink()
    assert found(ready, "parts of others") == [("fail", f"{script}: no such file")]
    (ready / "local/fedmerit.json").write_text(json.dumps(read(ready / "local/fedmerit.json") | {"parts": "all"}))
    assert [state for state, _ in found(ready, "parts of others")] == ["fail"]
    assert [state for state, _ in found(ready, "parts of others", accept=True)] == ["warn"]


def test_check_warns_of_roles_that_may_bring_code(ready, found):
    path = ready / "local/authorization.json"
    content = read(path)
    content["permissions"]["lead"]["byoc"] = "any"
    content["permissions"]["member"]["shell_commands"] = "o:site"
    path.write_text(json.dumps(content))
    ((state, reported),) = found(ready, "policy")
    assert state == "fail"
    assert "code of others or a shell is open to lead, member; " in reported
    accept_loose(ready, {"versions"})
    assert [state for state, _ in found(ready, "policy")] == ["fail"]
    accept_loose(ready, {"policy"})
    assert [state for state, _ in found(ready, "policy")] == ["warn"]
    content["permissions"]["org_admin"]["byoc"] = "any"
    path.write_text(json.dumps(content))
    assert [state for state, _ in found(ready, "policy")] == ["fail"]  # more than was accepted


def test_check_reports_unreachable_server(ready, monkeypatch, found):
    assert [state for state, _ in found(ready, "server")] == ["fail"]
    assert [state for state, _ in found(ready, "server", offline=True)] == ["warn"]
    monkeypatch.setattr(checks, "server_address", lambda kit: ("no-such-host.invalid", 8002))
    ((_, reported),) = found(ready, "server")
    assert "/etc/hosts" in reported


def test_check_names_proxy_of_grpc(ready, monkeypatch, found):
    with socket.create_server(("localhost", 0)) as closed:
        proxy = f"http://localhost:{closed.getsockname()[1]}"
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setenv("no_proxy", "example.org")
    ((state, reported),) = found(ready, "server", offline=True)
    assert (state, f"https_proxy={proxy}" in reported, "no_proxy=localhost" in reported) == ("fail", True, True)
    monkeypatch.setenv("no_proxy", "example.org,localhost")
    ((state, reported),) = found(ready, "server", offline=True)
    assert (state, "https_proxy" in reported) == ("warn", False)


def test_check_reports_left_over_process_file(ready, found):
    (ready / "daemon_pid.fl").write_text(f"{os.getppid()}\n")
    assert ("fail", "delete the file") in [(state, reported[-15:]) for state, reported in found(ready, "start")]
    (ready / "daemon_pid.fl").write_text("999999999\n")  # start.sh deletes it
    assert "fail" not in dict(found(ready, "start"))


def test_check_reports_python_of_start_script(ready, monkeypatch, found):
    monkeypatch.setenv("PATH", "/nowhere")
    here = Path(sys.executable).parent
    assert found(ready, "start") == [("ok", f"start.sh will take {here / 'python3'}")]
    (ready / "local/python_folder").write_text("/elsewhere\n")
    ((state, reported),) = found(ready, "start")
    assert (state, f"PATH={here}:" in reported) == ("warn", True)


def test_kit_in_a_folder_with_spaces_is_refused_by_check_and_start_script(ready):
    kit = Path(shutil.move(ready, ready.with_name("my kit")))
    try:
        checked = {one.what: (one.state, one.message) for one in check_machine(kit, offline=True)}
        assert checked["start"] == ("fail", NO_SPACES)
        done = subprocess.run(["bash", kit / "startup" / "start.sh"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (1, f"FedMerit: {NO_SPACES}\n")
        assert not running_processes(kit)
    finally:
        shutil.move(kit, ready)


def test_check_warns_of_start_script_that_imports_from_its_folder(ready, found):
    path = ready / "startup/sub_start.sh"
    path.write_text(path.read_text().replace("export PYTHONSAFEPATH=1\n", ""))
    assert [reported for state, reported in found(ready, "start") if state == "warn" and "renew the kit" in reported]


def test_check_rejects_rules_that_allow_more_than_the_defaults(ready, found):
    manifest = ready / "local/fedmerit.json"
    content = read(manifest)
    content["jobs"] |= {"least_images": 0, "share_models": True, "largest_lr": 1e6}
    manifest.write_text(json.dumps(content))
    reported = found(ready, "rules for jobs")
    assert [state for state, _ in reported] == ["fail"] * 3
    assert any("least_images 0, the default is 8; undo it, or give --accept" in text for _, text in reported)
    assert [state for state, _ in found(ready, "rules for jobs", accept=True)] == ["warn"] * 3
    accept_loose(ready)
    assert [state for state, _ in found(ready, "rules for jobs")] == ["warn"] * 3


def test_check_reports_ports_in_use(federation, found):
    server = federation / "fedmerit/prod_00/localhost"
    prepare_server(server)
    assert [state for state, _ in found(server, "server")] == ["ok"]
    port = int(read(server / "startup/fed_server.json")["servers"][0]["admin_port"])
    with socket.create_server(("", port)):
        ((state, reported),) = found(server, "server")
    assert state == "fail"
    assert str(port) in reported


def test_check_shows_changed_rules(ready, sites, found):
    assert found(ready, "rules for jobs") == [("ok", "the defaults")]
    prepare_site(ready, sites / "site1", evaluations="validation=8,testing=4")
    changed = "evaluations validation=8, testing=4, server_validation=64"
    assert found(ready, "rules for jobs") == [("ok", changed)]
    prepare_site(ready, sites / "site1")
    assert found(ready, "rules for jobs") == [("ok", changed)]
    prepare_site(ready, sites / "site1", evaluations="")
    assert found(ready, "rules for jobs") == [("ok", "the defaults")]
    for wrong in ("validation", "training=1", "testing=-1", "testing=1,testing=2", "testing=\u0661"):
        with pytest.raises(BadInput, match="expected SPLIT=NUMBER"):
            prepare_site(ready, sites / "site1", evaluations=wrong)


@pytest.mark.parametrize(("gib", "state"), [(0.5, "fail"), (2, "warn"), (100, "ok")])
def test_check_compares_disk_and_memory(ready, monkeypatch, gib, state, found):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, int(gib * 2**30)))
    monkeypatch.setattr(checks, "free_memory", lambda: int(gib * 2**30))
    assert [one for one, _ in found(ready, "disk")] == [one for one, _ in found(ready, "memory")] == [state]


@pytest.mark.parametrize("name", ["start.sh", "sub_start.sh", "stop_fl.sh"])
def test_check_rejects_damaged_start_script(ready, name, found):
    script = ready / "startup" / name
    text = script.read_text()
    for damaged, word in (
        ("", "only a part of it"),
        (text[: len(text) // 2], "only a part of it"),
        (text.replace("\n", "\r\n"), "line ends of Windows"),
    ):
        script.write_text(damaged, newline="")
        ((state, message),) = found(ready, "start", offline=True)
        assert state == "fail"
        assert word in message
    script.write_text(text)
    script.chmod(0o600)
    assert found(ready, "start", offline=True)[0][0] == "fail"
    script.unlink()
    assert "file not found; unpack the kit again" in found(ready, "start", offline=True)[0][1]


@pytest.mark.parametrize("content", ["null", "[1]", "{}"])
@pytest.mark.parametrize("name", ["resources.json", "authorization.json"])
def test_prepare_site_refuses_damaged_policy_before_it_writes(ready, sites, name, content):
    before = (ready / "local/resources.json").read_text()
    (ready / f"local/{name}.default").write_text(content)
    with pytest.raises(BadInput, match=f"{name}.default: (holds no JSON object|lacks )"):
        prepare_site(ready, sites / "site1")
    assert (ready / "local/resources.json").read_text() == before
