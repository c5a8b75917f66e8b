"""The contexts of encrypted runs: made by NVFlare's provisioning, put into startup kits, found there by a job."""

from pathlib import Path

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.sec.security_content_service import LoadResult, SecurityContentService
from nvflare.lighter.constants import ProvFileName
from nvflare.lighter.impl.he import HEBuilder
from nvflare.lighter.spec import Builder, Project, ProvisionContext

from fedmerit.ciphertexts import DEGREE, KEYS, PRIMES, SCALE_BITS
from fedmerit.errors import BadInput
from fedmerit.files import write_atomically

SITES_CONTEXT, SERVER_CONTEXT = ProvFileName.CLIENT_CONTEXT_TENSEAL, ProvFileName.SERVER_CONTEXT_TENSEAL


class ContextBuilder(Builder):
    """An NVFlare provisioning step: one secret key into every site's kit, a context without it into the server's.

    Other than NVFlare's `HEBuilder`, which it calls, it keeps what it made: sites that are added later get the same.

    Args:
        keys: folder in which the contexts are, or are kept; that of the project's other secrets if not given.
    """

    def __init__(self, keys: str = ""):
        self.keys = keys

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        """Write the contexts into the kits of server and sites."""
        of_sites, of_server = contexts(Path(self.keys or ctx.get_state_dir()))
        Path(ctx.get_kit_dir(project.get_server()), SERVER_CONTEXT).write_bytes(of_server)
        for site in project.get_clients():
            path = Path(ctx.get_kit_dir(site), SITES_CONTEXT)
            path.write_bytes(of_sites)
            path.chmod(0o600)


def contexts(folder: Path) -> tuple[bytes, bytes]:
    """Return the context of the sites, with the secret key, and of the server; make them in ``folder`` if missing."""
    of_sites, of_server = folder / SITES_CONTEXT, folder / SERVER_CONTEXT
    if not (of_sites.exists() and of_server.exists()):
        maker = HEBuilder(DEGREE, list(PRIMES), SCALE_BITS)
        maker.initialize(None, None)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        write_atomically(of_sites, lambda file: file.write(maker.get_serialized_context(is_client=True)))
        of_sites.chmod(0o600)
        write_atomically(of_server, lambda file: file.write(maker.get_serialized_context()))
    return of_sites.read_bytes(), of_server.read_bytes()


def find_context(name: str, fl_ctx: FLContext, run: Path) -> bytes:
    """Return the context of the site or server in this process.

    Args:
        name: `SITES_CONTEXT` or `SERVER_CONTEXT`.
        run: the run folder, where the simulator's sites and server have it.

    Raises:
        BadInput: the startup kit has none, or it is not the one that was provisioned.
    """
    if not fl_ctx.get_prop(FLContextKey.SECURE_MODE, True):
        return (run / KEYS / name).read_bytes()
    content, result = SecurityContentService.load_content(name)
    if result != LoadResult.OK:
        raise BadInput(
            f"startup/{name}: {result}; an encrypted job needs unchanged kits of `fedmerit deploy init --he`"
        )
    return bytes(content)
