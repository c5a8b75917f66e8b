"""Processes of kits: started by the kit's own script, found by its folder, ended with all that belongs to it."""

import json
import socket
import threading

import pytest
from kit_processes import end, start

from fedmerit_deploy.processes import connect, find_proxy, is_connected, running_processes

SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def kit(tmp_path):
    """A kit of two processes, the second as one of a job; nothing of it is left when the test ends."""
    made = tmp_path / "kits/A"
    script(made, f'python3 -S -c "{SLEEP}" "$PWD/startup" & python3 -S -c "{SLEEP}" "$PWD" a.worker_process &')
    yield made
    end(tmp_path / "kits")


def script(kit, command):
    (kit / "startup").mkdir(parents=True, exist_ok=True)
    (kit / "startup/start.sh").write_text(f'cd "$(dirname "$0")/.."\n{command}\n')


def jobs(found):
    return [process.cmdline()[-1] == "a.worker_process" for process in found]


def test_running_processes_belong_to_kit(kit, wait_for):
    other = kit.with_name("AB")  # no folder in A
    script(other, f'python3 -S -c "{SLEEP}" "$PWD" &')
    start(kit)
    start(other)
    wait_for(lambda: sorted(jobs(running_processes(kit.parent))) == [False, False, True], 300)
    assert sorted(jobs(running_processes(kit))) == [False, True]
    assert jobs(running_processes(kit, job_only=True)) == [True]
    end(kit)
    assert running_processes(kit) == []
    assert jobs(running_processes(kit.parent)) == [False]


def test_is_connected_by_port_of_server(tmp_path):
    server, site = tmp_path / "server/startup", tmp_path / "site/startup"
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        for folder, kind in ((server, "server"), (site, "client")):
            folder.mkdir(parents=True)
            content = {"servers": [{"service": {"target": f"localhost:{port}"}}]}
            (folder / f"fed_{kind}.json").write_text(json.dumps(content))
        assert [is_connected(folder.parent) for folder in (server, site)] == [True, False]
        with socket.create_connection(("127.0.0.1", port)):
            assert is_connected(site.parent)
    assert not is_connected(server.parent)


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({}, None),
        ({"HTTPS_PROXY": "http://p:1"}, None),  # gRPC reads lower case only
        ({"https_proxy": "http://p:1"}, "https_proxy"),
        ({"http_proxy": "http://p:1", "grpc_proxy": "http://q:2"}, "grpc_proxy"),
        ({"https_proxy": "http://p:1", "no_proxy": "other.org, FL.example.org"}, None),
        ({"https_proxy": "http://p:1", "no_proxy": ".example.org"}, None),
        ({"https_proxy": "http://p:1", "no_proxy": "*"}, "https_proxy"),
        ({"https_proxy": "http://p:1", "no_proxy": "example.org", "no_grpc_proxy": "other.org"}, "https_proxy"),
    ],
)
def test_find_proxy_reads_variables_as_grpc_does(environment, variable):
    assert (find_proxy("fl.example.org", environment) or (None,))[0] == variable


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n", b"HTTP/1.1 403 no\r\n\r\n", b""])
def test_connect_asks_proxy_for_tunnel(monkeypatch, answer):
    with socket.create_server(("localhost", 0)) as proxy:
        asked = []

        def serve():
            with proxy.accept()[0] as line:
                asked.append(line.recv(1000))
                line.sendall(answer + (b"hello" if b"200" in answer else b""))

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setenv("grpc_proxy", f"localhost:{proxy.getsockname()[1]}")
        monkeypatch.delenv("no_grpc_proxy", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        if b"200" in answer:
            with connect("fl.example.org", 8002, 60) as line:
                assert line.recv(5) == b"hello"
        else:
            with pytest.raises(ConnectionRefusedError, match="the proxy says"):
                connect("fl.example.org", 8002, 60)
        thread.join()
    assert asked[0].startswith(b"CONNECT fl.example.org:8002 HTTP/1.1\r\n")
