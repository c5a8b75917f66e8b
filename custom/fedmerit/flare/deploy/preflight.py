"""The preflight of a machine: every line says what was checked, the result, and what to do about it."""

from collections.abc import Callable, Iterator
from pathlib import Path

from fedmerit.flare.deploy import kit_checks, machine_checks
from fedmerit.flare.deploy.check_result import CheckResult, Finding
from fedmerit.flare.deploy.kits import read_kind, read_manifest, read_name


def preflight(kit: Path, offline: bool = False) -> list[CheckResult]:
    """Everything but the data (`fedmerit check` knows that).

    Args:
        kit: the startup kit of a site or of the server, made ready.
        offline: the server need not be reachable yet.

    Raises:
        BadInput: the folder is no startup kit of a site or of the server, or it was not made ready.
    """
    kind = read_kind(kit)
    manifest = read_manifest(kit)
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("versions", lambda: kit_checks.versions(kit)),
        ("certificate", lambda: kit_checks.certificate(kit, kind)),
        ("policy", lambda: kit_checks.policy(kit)),
        *([("gate", lambda: kit_checks.gate(kit))] if kind == "client" else []),
        ("parts of others", lambda: kit_checks.parts(kit)),
        ("encryption", lambda: kit_checks.encryption(kit, kind)),
        ("server", lambda: machine_checks.ports(kit) if kind == "server" else machine_checks.server(kit, offline)),
        ("device", lambda: machine_checks.device(manifest.get("device", "auto"), read_name(kit))),
        *(
            [("evaluations", lambda: machine_checks.evaluations(manifest.get("evaluations", "")))]
            if kind == "client"
            else []
        ),
        ("disk", lambda: machine_checks.disk(kit)),
        ("memory", machine_checks.memory),
    ]
    return [CheckResult(what, state, message) for what, check in checks for state, message in check()]
