"""What the preflight finds on a machine, made ready or spoiled. No process is started."""

import datetime
import json
import shutil
import socket
from collections import namedtuple

import psutil
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, serialize_pri_key

from fedmerit.errors import BadInput
from fedmerit.flare.deploy import machine_checks
from fedmerit.flare.deploy.kits import prepare_server, prepare_site
from fedmerit.flare.deploy.poc import free_port
from fedmerit.flare.deploy.preflight import preflight
from fedmerit.flare.deploy.project import make_project
from fedmerit.flare.deploy.provision import init
from fedmerit.flare.recipe import site_policy

CLASSES = site_policy()["class_allow_list"]


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory):
    out, port = tmp_path_factory.mktemp("preflight") / "federation", free_port()
    project = make_project(
        {"site1": "lead", "site2": "lead"},
        "localhost",
        "lead",
        {"a@lead.org": "project_admin"},
        "fedmerit",
        (port, port),
    )
    init(out, project)
    return out


@pytest.fixture
def federation(provisioned, tmp_path):
    """A copy that a test may spoil."""
    return shutil.copytree(provisioned, tmp_path / "federation")


@pytest.fixture
def ready(federation, sites):
    """A site's kit, made ready."""
    kit = federation / "fedmerit/prod_00/site1"
    prepare_site(kit, sites / "site1")
    return kit


def read(path):
    return json.loads(path.read_text())


def found(kit, what, **options):
    """State and text of the preflight's lines on one matter."""
    return [(line.state, line.told) for line in preflight(kit, **options) if line.what == what]


def test_everything_is_looked_at_and_fine(ready):
    lines = preflight(ready, offline=True)
    after = ["encryption", "server", "device", "evaluations", "disk", "memory"]
    assert [line.what for line in lines] == ["versions", "certificate", "policy", *after]
    assert [line.what for line in lines if line.state == "fail"] == []
    assert {"versions", "certificate", "policy", "device"} <= {line.what for line in lines if line.state == "ok"}


@pytest.mark.parametrize(
    ("package", "state"), [("fedmerit", "fail"), ("nvflare", "fail"), ("torch", "warn"), ("monai", "warn")]
)
def test_other_versions(ready, package, state):
    path = ready / "local/fedmerit_versions.json"
    path.write_text(json.dumps(read(path) | {package: "0.0.1"}))
    ((told_state, told),) = found(ready, "versions")
    assert told_state == state
    assert f"pip install {package}==0.0.1" in told


def test_versions_that_nobody_wrote_down(ready):
    (ready / "local/fedmerit_versions.json").unlink()
    assert [state for state, _ in found(ready, "versions")] == ["warn"]


def certify(federation, kit, first, last, name="site1"):
    """A new certificate of the federation's authority, valid between two days from now."""
    authority = load_pem_private_key(read(federation / "fedmerit/state/cert.json")["root_pri_key"].encode(), None)
    private, public = generate_keys()
    now = datetime.datetime.now(datetime.UTC)
    valid = {"not_valid_before": now + datetime.timedelta(first), "not_valid_after": now + datetime.timedelta(last)}
    made = generate_cert(Identity(name, "lead"), Identity("fedmerit"), authority, public, **valid)
    (kit / "startup/client.crt").write_bytes(serialize_cert(made))
    (kit / "startup/client.key").write_bytes(serialize_pri_key(private))


@pytest.mark.parametrize(
    ("first", "last", "state", "word"),
    [
        (-20, -10, "fail", "is valid from"),
        (1, 10, "fail", "clock"),
        (-1, 10, "warn", "ends on"),
        (-1, 90, "ok", "site1"),
    ],
)
def test_expiry(ready, federation, first, last, state, word):
    certify(federation, ready, first, last)
    states = dict(found(ready, "certificate"))
    assert word in states[state]
    assert ("fail" in states) == (state == "fail")


def test_certificate_of_another(ready, federation):
    certify(federation, ready, -1, 90, name="site2")
    ((state, told),) = found(ready, "certificate")
    assert state == "fail"
    assert "site2" in told


def test_certificate_of_another_federation(ready, tmp_path):
    project = make_project({"site1": "lead"}, "localhost", "lead", {"a@b.org": "lead"})
    other = next(kit.path for kit in init(tmp_path / "other", project) if kit.name == "site1")
    for name in ("client.crt", "client.key"):
        shutil.copy(other / "startup" / name, ready / "startup" / name)
    ((state, told),) = found(ready, "certificate")
    assert state == "fail"
    assert "not signed by the federation" in told


def test_key_of_another(ready):
    shutil.copy(ready.parent / "site2/startup/client.key", ready / "startup/client.key")
    assert [told for state, told in found(ready, "certificate") if state == "fail" and "belong together" in told]


def test_key_that_others_may_read(ready):
    (ready / "startup/client.key").chmod(0o644)
    assert [told for state, told in found(ready, "certificate") if state == "warn" and "chmod 600" in told]


@pytest.mark.parametrize("name", ["client.crt", "client.key", "rootCA.pem"])
def test_spoiled_certificate_file(ready, name):
    (ready / "startup" / name).write_text("nothing")
    ((state, told),) = found(ready, "certificate")
    assert state == "fail"
    assert "unpack the kit again" in told


@pytest.mark.parametrize(
    ("change", "state", "word"),
    [
        ({"class_allow_list": CLASSES[:1]}, "fail", "lacks"),
        ({"class_allow_list": [*CLASSES, "os.system"]}, "warn", "os.system"),
        ({"class_list_enforcement_mode": "warn"}, "warn", "enforced"),
        ({"class_allow_list": None}, "fail", "not FedMerit's"),
    ],
)
def test_other_policy(ready, change, state, word):
    path = ready / "local/resources.json"
    path.write_text(json.dumps(read(path) | change))
    ((told_state, told),) = found(ready, "policy")
    assert (told_state, word in told) == (state, True)


def test_server_out_of_reach(ready, monkeypatch):
    assert [state for state, _ in found(ready, "server")] == ["fail"]
    assert [state for state, _ in found(ready, "server", offline=True)] == ["warn"]
    monkeypatch.setattr(machine_checks, "server_address", lambda kit: ("no-such-host.invalid", 8002))
    ((_, told),) = found(ready, "server")
    assert "/etc/hosts" in told


def test_another_service_on_the_servers_port(ready, monkeypatch):
    with socket.create_server(("localhost", 0)) as other:
        monkeypatch.setattr(machine_checks, "server_address", lambda kit: ("localhost", other.getsockname()[1]))
        monkeypatch.setattr(machine_checks, "CONNECT", 0.5)
        ((state, _),) = found(ready, "server")
        assert state == "fail"


def test_ports_in_use(federation):
    server = federation / "fedmerit/prod_00/localhost"
    prepare_server(server)
    assert [state for state, _ in found(server, "server")] == ["ok"]
    port = int(read(server / "startup/fed_server.json")["servers"][0]["admin_port"])
    with socket.create_server(("", port)):
        ((state, told),) = found(server, "server")
    assert state == "fail"
    assert str(port) in told


def test_device_that_is_not_there(ready):
    path = ready / "local/fedmerit.json"
    path.write_text(json.dumps(read(path) | {"device": "cuda:77"}))
    ((state, told),) = found(ready, "device")
    assert (state, "cuda:77" in told) == ("fail", True)


def test_caps_on_evaluations(ready, sites):
    assert found(ready, "evaluations")[0][1].startswith("as many models a round as the run needs")
    prepare_site(ready, sites / "site1", evaluations="validation=8,testing=4")
    assert found(ready, "evaluations")[0][1] == "at most 8 models a round on validation, 4 models a round on testing"
    prepare_site(ready, sites / "site1")
    assert read(ready / "local/fedmerit.json")["evaluations"] == "validation=8,testing=4"
    prepare_site(ready, sites / "site1", evaluations="")
    assert found(ready, "evaluations")[0][1].startswith("as many")
    with pytest.raises(BadInput, match="evaluations 'validation': expected SPLIT=NUMBER"):
        prepare_site(ready, sites / "site1", evaluations="validation")


@pytest.mark.parametrize(("gib", "state"), [(0.5, "fail"), (2, "warn"), (100, "ok")])
def test_room(ready, monkeypatch, gib, state):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, int(gib * 2**30)))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: namedtuple("memory", "available")(int(gib * 2**30)))
    assert [one for one, _ in found(ready, "disk")] == [one for one, _ in found(ready, "memory")] == [state]
