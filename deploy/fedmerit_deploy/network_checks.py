"""The preflight's checks of the start and of the line: by the way that the start script and gRPC go."""

import shutil
import socket
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from fedmerit.files import read_json
from fedmerit_deploy.check_result import Finding, fail, ok, warn
from fedmerit_deploy.kit_files import server_address
from fedmerit_deploy.processes import find_left_over, running_processes
from fedmerit_deploy.proxies import connect, proxy_advice

CONNECT = 5.0  # seconds
CLOCK_ERRORS = (9, 10)  # OpenSSL's numbers of a certificate that is not valid yet, or no longer


def check_start(kit: Path) -> Iterator[Finding]:
    """Whether startup/start.sh, which takes ``python3`` of PATH, would start what is checked here."""
    here, python = Path(sys.executable), shutil.which("python3")
    if python is None or Path(python).parent.resolve() != here.parent.resolve():
        yield warn(
            f"start.sh takes python3 of PATH, {python or 'which has none'}; this is {here}: "
            f"PATH={here.parent}:$PATH {kit / 'startup' / 'start.sh'}"
        )
    left = find_left_over(kit)
    if left:
        yield fail(left)
    elif python:
        yield ok("runs already" if running_processes(kit) else f"start.sh will take {python}")


def check_server(kit: Path, offline: bool) -> Iterator[Finding]:
    """Whether a site reaches the server and is accepted; ``offline``: it need not be started yet."""
    host, port = server_address(kit)
    bad = warn if offline else fail
    startup = kit / "startup"
    try:
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        context.set_alpn_protocols(["h2"])
        with connect(host, port, CONNECT) as plain, context.wrap_socket(plain, server_hostname=host) as secure:
            if secure.recv(1):
                yield ok(f"{host}:{port} answers, and accepts the certificate of this kit")
            else:
                yield fail(f"{host}:{port} hangs up: it does not accept the certificate of this kit; ask for a new one")
    except ssl.SSLCertVerificationError as error:
        yield fail(
            f"{host}:{port} answers with a certificate that is not its own ({error.verify_message}); "
            f"is a proxy in between{', or this clock wrong' if error.verify_code in CLOCK_ERRORS else ''}?"
        )
    except ssl.SSLError as error:
        yield bad(f"{host}:{port} answers, but not over TLS ({error.reason}); is another service on that port?")
    except OSError as error:
        if proxy := proxy_advice(host):
            yield fail(f"{host}:{port} cannot be reached ({error.strerror or error}){proxy}")
        elif isinstance(error, socket.gaierror):
            yield bad(f"{host} is not known here; have the name entered in the DNS, or in /etc/hosts")
        elif isinstance(error, TimeoutError):
            yield bad(f"{host}:{port} does not answer; have outgoing TCP to that port opened in the firewall")
        else:
            reason = error.strerror or error
            yield bad(f"{host}:{port} cannot be reached ({reason}); is the server started, is the port right?")


def check_ports(kit: Path) -> Iterator[Finding]:
    """Whether the server can listen where its kit says, and sites find it there."""
    if running_processes(kit):
        yield ok("runs already")
        return
    content = read_json(kit / "startup" / "fed_server.json")["servers"][0]
    host, port = server_address(kit)
    taken = [*_check_ports_free({port, int(content["admin_port"])})]
    yield from map(fail, taken)
    try:
        known = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except socket.gaierror:
        yield warn(f"{host} is not known here; the sites need it in their DNS or /etc/hosts")
        return
    own = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    if not known & own:
        yield warn(f"{host} is {', '.join(sorted(known))}, no address of this machine; fine if it is passed on to here")
    elif not taken:
        yield ok(f"{host}, port {port} is free; have incoming TCP to it opened in the firewall")


def _check_ports_free(ports: set[int]) -> Iterator[str]:
    """Why ports cannot be listened on."""
    for port in sorted(ports):
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("", port))
            except OSError as error:
                reason = error.strerror or error
                yield f"port {port} cannot be listened on ({reason}); stop what is there, or provision other ports"
