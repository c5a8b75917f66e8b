"""``python -m fedmerit_deploy.health KIT``: a container's health check; exits with 1 if the kit is not at work.

The server is if it listens on its port, a site if it has a connection to the server's. Imports nothing heavy: it runs
every minute. `fedmerit deploy check` says more.
"""

import json
import sys
from pathlib import Path

import psutil


def is_at_work(kit: Path) -> bool:
    """Whether processes of this machine, or container, have the connections that the ``kit``'s owner needs."""
    kind = "server" if (kit / "startup" / "fed_server.json").exists() else "client"
    content = json.loads((kit / "startup" / f"fed_{kind}.json").read_text())
    port = int(content["servers"][0]["service"]["target"].rpartition(":")[2])
    found = psutil.net_connections("tcp")
    if kind == "server":
        return any(one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port for one in found)
    return any(one.status == psutil.CONN_ESTABLISHED and one.raddr and one.raddr.port == port for one in found)


if __name__ == "__main__":
    sys.exit(not is_at_work(Path(sys.argv[1])))
