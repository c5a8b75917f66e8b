"""What the preflight finds of a machine: the way to the server, ports, device, caps, room. No process is started."""

import json
import shutil
import socket
from collections import namedtuple

import pytest
import torch

from fedmerit.errors import BadInput
from fedmerit.flare.deploy import machine_checks
from fedmerit.flare.deploy.kits import prepare_server, prepare_site


def read(path):
    return json.loads(path.read_text())


def test_server_out_of_reach(ready, monkeypatch, found):
    assert [state for state, _ in found(ready, "server")] == ["fail"]
    assert [state for state, _ in found(ready, "server", offline=True)] == ["warn"]
    monkeypatch.setattr(machine_checks, "server_address", lambda kit: ("no-such-host.invalid", 8002))
    ((_, told),) = found(ready, "server")
    assert "/etc/hosts" in told


def test_another_service_on_the_servers_port(ready, monkeypatch, found):
    with socket.create_server(("localhost", 0)) as other:
        monkeypatch.setattr(machine_checks, "server_address", lambda kit: ("localhost", other.getsockname()[1]))
        monkeypatch.setattr(machine_checks, "CONNECT", 0.5)
        ((state, _),) = found(ready, "server")
        assert state == "fail"


def test_ports_in_use(federation, found):
    server = federation / "fedmerit/prod_00/localhost"
    prepare_server(server)
    assert [state for state, _ in found(server, "server")] == ["ok"]
    port = int(read(server / "startup/fed_server.json")["servers"][0]["admin_port"])
    with socket.create_server(("", port)):
        ((state, told),) = found(server, "server")
    assert state == "fail"
    assert str(port) in told


def test_device_that_is_not_there(ready, found):
    path = ready / "local/fedmerit.json"
    path.write_text(json.dumps(read(path) | {"device": "cuda:77"}))
    ((state, told),) = found(ready, "device")
    assert (state, "cuda:77" in told) == ("fail", True)


def test_caps_on_evaluations(ready, sites, found):
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
def test_room(ready, monkeypatch, gib, state, found):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, int(gib * 2**30)))
    monkeypatch.setattr(machine_checks, "free_memory", lambda: int(gib * 2**30))
    assert [one for one, _ in found(ready, "disk")] == [one for one, _ in found(ready, "memory")] == [state]


def test_a_container_has_the_cores_that_it_is_allowed(ready, monkeypatch, found):
    monkeypatch.setattr(machine_checks, "cores", lambda: 3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert found(ready, "device") == [("ok", "cpu, 3 cores")]
