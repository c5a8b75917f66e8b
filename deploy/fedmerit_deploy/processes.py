"""The processes of a startup kit on this machine, their connections, and the proxy that these take. Loads little.

gRPC obeys variables of the environment that a plain connection does not. It reads the names in lower case only, in the
order of `VARIABLES`, and asks the proxy for a tunnel (``CONNECT``).
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from fedmerit.child_processes import NO_PROXY
from fedmerit_deploy.kit_files import read_kind, server_address

VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
LONGEST_ANSWER = 4096  # bytes of a proxy's answer


def running_processes(folder: Path, job_only: bool = False) -> list[psutil.Process]:
    """Return every process at work from kits in, or below, ``folder``; with ``job_only`` only those of jobs."""
    root, processes = str(folder.resolve()), []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            is_of_kit = any(word == root or word.startswith(root + os.sep) for word in words)
            is_wanted = not job_only or any(word.endswith((".runner_process", ".worker_process")) for word in words)
            if is_of_kit and is_wanted and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                processes.append(process)
    return processes


def find_left_over(kit: Path) -> str:
    """Return what a killed process left in a kit, so its start script would start nothing; "" if there is nothing.

    The script takes the process whose number is in ``daemon_pid.fl`` for its own, whatever runs under it today.
    """
    file = kit / "daemon_pid.fl"
    try:
        number = int(file.read_text())
    except (OSError, ValueError):
        return ""
    if not psutil.pid_exists(number) or any(process.pid == number for process in running_processes(kit)):
        return ""
    return f"{file}: names process {number}, which is none of this kit: start.sh would start nothing; delete the file"


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
    excepted = next((environment[name] for name in NO_PROXY if environment.get(name)), "")
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
