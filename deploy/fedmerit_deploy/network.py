"""The line between a site and the server: the proxy that gRPC takes, and whether a kit's processes are connected.

gRPC obeys variables of the environment that a plain connection does not. It reads the names in lower case only, in the
order of `VARIABLES`, and asks the proxy for a tunnel (``CONNECT``). Loads nothing heavy.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from fedmerit_deploy.kit_files import read_kind, server_address

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
EXCEPTIONS = ("no_grpc_proxy", "no_proxy")  # hosts, and ends of host names, that gRPC reaches without a proxy
LONGEST_ANSWER = 4096  # bytes of a proxy's answer


def is_connected(kit: Path) -> bool:
    """Return whether processes of this machine, or container, have the connections that the ``kit``'s owner needs.

    The server listens on its port; a site has a connection to the server's port.
    """
    is_server, port = read_kind(kit) == "server", server_address(kit)[1]
    status = psutil.CONN_LISTEN if is_server else psutil.CONN_ESTABLISHED
    ends = ((one.status, one.laddr if is_server else one.raddr) for one in psutil.net_connections("tcp"))
    return any(state == status and address and address.port == port for state, address in ends)


def find_proxy(host: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """Return variable and value of the proxy through which gRPC goes to ``host``; None if it goes there directly."""
    variable = next((name for name in VARIABLES if environment.get(name)), None)
    excepted = next((environment[name] for name in EXCEPTIONS if environment.get(name)), "")
    ends = [end.strip().lower() for end in excepted.split(",")]
    if variable is None or any(end and host.lower().endswith(end) for end in ends):
        return None
    return variable, environment[variable]


def proxy_advice(host: str) -> str:
    """Return the end of a message that ``host`` cannot be reached: what to do about a proxy; "" without one."""
    proxy = find_proxy(host)
    if proxy is None:
        return ""
    variable, value = proxy
    return f"; {variable}={value} sends gRPC through a proxy: set no_proxy={host} where the start script runs"


def connect(host: str, port: int, timeout: float) -> socket.socket:
    """Return a TCP connection to a server, as gRPC makes it: through a proxy if the environment names one.

    Raises:
        OSError: the server or the proxy cannot be reached.
    """
    proxy = find_proxy(host)
    if proxy is None:
        return socket.create_connection((host, port), timeout=timeout)
    address = urlsplit(proxy[1] if "://" in proxy[1] else f"http://{proxy[1]}")
    tunnel = socket.create_connection((address.hostname or "", address.port or 80), timeout=timeout)
    tunnel.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    answer = b""
    while b"\r\n\r\n" not in answer and len(answer) < LONGEST_ANSWER and (part := tunnel.recv(1)):
        answer += part
    status = answer.partition(b"\r\n")[0].decode(errors="replace")
    if " 200" not in status:
        tunnel.close()
        raise ConnectionRefusedError(f"the proxy says {status[:100]!r}")
    return tunnel


@contextmanager
def no_proxy_for(host: str) -> Iterator[None]:
    """Let this process, and those that it starts in the block, reach ``host`` directly."""
    before = {name: os.environ.get(name) for name in EXCEPTIONS}
    for name, value in before.items():
        os.environ[name] = ",".join(filter(None, [value or before["no_proxy"], host]))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
