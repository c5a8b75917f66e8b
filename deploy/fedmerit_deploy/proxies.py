"""Which proxy gRPC takes to a host: by variables of the environment that a plain connection does not obey.

gRPC reads the names in lower case only, in this order, and asks the proxy for a tunnel (``CONNECT``).
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
EXCEPTIONS = ("no_grpc_proxy", "no_proxy")  # hosts, and ends of host names, that gRPC reaches without one
LONGEST_ANSWER = 4096  # bytes of a proxy's


def find_proxy(host: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """Variable and value of the proxy through which gRPC goes to ``host``; None: it goes there directly."""
    variable = next((name for name in VARIABLES if environment.get(name)), None)
    excepted = next((environment[name] for name in EXCEPTIONS if environment.get(name)), "")
    ends = [one.strip().lower() for one in excepted.split(",")]
    if variable is None or any(one and host.lower().endswith(one) for one in ends):
        return None
    return variable, environment[variable]


def proxy_advice(host: str) -> str:
    """The end of a message that ``host`` cannot be reached: what to do about a proxy; "" if there is none."""
    found = find_proxy(host)
    if found is None:
        return ""
    variable, value = found
    return f"; {variable}={value} sends gRPC through a proxy: set no_proxy={host} where the start script runs"


def connect(host: str, port: int, timeout: float) -> socket.socket:
    """A TCP connection to a server, as gRPC makes it: through a proxy if the environment names one.

    Raises:
        OSError: there is none.
    """
    found = find_proxy(host)
    if found is None:
        return socket.create_connection((host, port), timeout=timeout)
    address = urlsplit(found[1] if "://" in found[1] else f"http://{found[1]}")
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
    """In here this process, and those that it starts, reach ``host`` directly."""
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
