"""The way that gRPC takes to a server, by the environment: directly, or through a proxy that is asked for a tunnel."""

import os
import socket
import threading

import pytest

from fedmerit_deploy.network import VARIABLES, connect, find_proxy, no_proxy_for


@pytest.mark.parametrize(
    ("environment", "found"),
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
def test_the_proxy_on_the_way_to_a_host(environment, found):
    assert (find_proxy("fl.example.org", environment) or (None,))[0] == found


@pytest.mark.parametrize("before", [{}, {"no_proxy": "example.org"}, {"no_grpc_proxy": "example.org"}])
def test_a_host_is_reached_directly_in_a_block(monkeypatch, before):
    for name in (*VARIABLES, "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"https_proxy": "http://p:1"} | before).items():
        monkeypatch.setenv(name, value)
    outside = dict(os.environ)
    with no_proxy_for("localhost"):
        assert find_proxy("localhost") is None
        assert (find_proxy("example.org") is None) == bool(before)
    assert dict(os.environ) == outside


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n", b"HTTP/1.1 403 no\r\n\r\n", b""])
def test_a_tunnel_is_asked_for(monkeypatch, answer):
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
