"""Checks of a machine: the way to the server, device, disk, memory."""

import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from fedmerit.errors import BadInput
from fedmerit.files import read_json
from fedmerit.flare.deploy.check_result import Finding, fail, ok, warn
from fedmerit.flare.deploy.kits import server_address
from fedmerit.flare.deploy.processes import running_processes
from fedmerit.machine import cores, free_memory
from fedmerit.trainers.monai_trainer.machine_settings import evaluation_caps, pick_device

GIB = 2**30
DISK = (1, 5)  # GiB free: below the first is too little, below the second little; models of every round, and logs
MEMORY = (1, 4)  # GiB available, likewise; one training process with a U-Net takes 1 to 2
CONNECT = 5.0  # seconds


def server(kit: Path, offline: bool) -> Iterator[Finding]:
    """Whether a site reaches the server and is accepted; ``offline``: it need not be started yet."""
    host, port = server_address(kit)
    bad = warn if offline else fail
    startup = kit / "startup"
    try:
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, port), timeout=CONNECT) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            if secure.recv(1):
                yield ok(f"{host}:{port} answers, and accepts the certificate of this kit")
            else:
                yield fail(f"{host}:{port} hangs up: it does not accept the certificate of this kit; ask for a new one")
    except ssl.SSLCertVerificationError as error:
        yield fail(
            f"{host}:{port} answers with a certificate that is not its own ({error.verify_message}); "
            "is a proxy in between?"
        )
    except ssl.SSLError as error:
        yield bad(f"{host}:{port} answers, but not over TLS ({error.reason}); is another service on that port?")
    except socket.gaierror:
        yield bad(f"{host} is not known here; have the name entered in the DNS, or in /etc/hosts")
    except TimeoutError:
        yield bad(f"{host}:{port} does not answer; have outgoing TCP to that port opened in the firewall")
    except OSError as error:
        yield bad(
            f"{host}:{port} cannot be reached ({error.strerror or error}); is the server started, is the port right?"
        )


def ports(kit: Path) -> Iterator[Finding]:
    """Whether the server can listen where the sites look for it."""
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


def device(setting: str, name: str) -> Iterator[Finding]:
    """What the manifest's ``setting`` means for ``name``: a GPU and its free memory, or the processor."""
    try:
        chosen = pick_device(setting, name)
    except BadInput as error:
        yield fail(f"{error}; run `fedmerit deploy` with another --device")
        return
    if chosen.type == "cuda":
        free, total = torch.cuda.mem_get_info(chosen)
        yield ok(f"{torch.cuda.get_device_name(chosen)}, {free / GIB:.1f} of {total / GIB:.1f} GiB free")
    else:
        yield ok(f"{chosen.type}, {cores()} cores")


def evaluations(setting: str) -> Iterator[Finding]:
    """The manifest's caps on what is evaluated for the server."""
    try:
        caps = evaluation_caps(setting)
    except BadInput as error:
        yield fail(f"{error}; run `fedmerit deploy site` with another --evaluations")
        return
    text = ", ".join(f"{number} models a round on {split}" for split, number in caps.items())
    yield ok(f"at most {text}" if text else "as many models a round as the run needs; --evaluations caps them")


def disk(kit: Path) -> Iterator[Finding]:
    """Room where the kit lies."""
    yield _check_amount(shutil.disk_usage(kit).free, DISK, f"free at {kit}", "make room, or move the kit")


def memory() -> Iterator[Finding]:
    """Memory that is free, in a container what it still allows."""
    yield _check_amount(free_memory(), MEMORY, "available", "end other programs, or take a larger machine")


def _check_amount(amount: int, limits: tuple[int, int], what: str, advice: str) -> Finding:
    text = f"{amount / GIB:.1f} GiB {what}"
    if amount >= limits[1] * GIB:
        return ok(text)
    least = limits[0] if amount < limits[0] * GIB else limits[1]
    return (fail if amount < limits[0] * GIB else warn)(f"{text}, expected {least} or more; {advice}")
