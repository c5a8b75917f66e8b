"""The contexts of encrypted runs: made once, kept, put into kits, and found by a job."""

from types import SimpleNamespace

import pytest
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.sec.security_content_service import LoadResult, SecurityContentService

from fedmerit.errors import BadInput

pytest.importorskip("tenseal", reason="TenSEAL is not installed: pip install -e '.[he]'")

from fedmerit.engines.nvflare.encryption import SERVER_CONTEXT, SITES_CONTEXT, ContextBuilder, contexts, find_context


def test_contexts_are_kept_and_the_sites_own_is_private(tmp_path):
    assert contexts(tmp_path) == contexts(tmp_path)
    assert (tmp_path / "client_context.tenseal").stat().st_mode & 0o077 == 0


@pytest.fixture
def kept(tmp_path):
    """A folder with contexts, of few bytes."""
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / SITES_CONTEXT).write_bytes(b"secret")
    (folder / SERVER_CONTEXT).write_bytes(b"public")
    return folder


@pytest.mark.parametrize("named", [True, False], ids=["a folder of their own", "the project's"])
def test_the_secret_goes_into_the_sites_kits_only(kept, tmp_path, named):
    for name in ("server", "A", "B", "admin"):
        (tmp_path / name).mkdir()
    project = SimpleNamespace(get_server=lambda: "server", get_clients=lambda: ["A", "B"])
    state = tmp_path / "nowhere" if named else kept
    context = SimpleNamespace(get_kit_dir=lambda name: str(tmp_path / name), get_state_dir=lambda: str(state))
    ContextBuilder(str(kept) if named else "").build(project, context)
    found = {path: path.read_bytes() for name in ("server", "A", "B", "admin") for path in (tmp_path / name).iterdir()}
    assert found == {
        tmp_path / "server/server_context.tenseal": b"public",
        tmp_path / "A/client_context.tenseal": b"secret",
        tmp_path / "B/client_context.tenseal": b"secret",
    }
    assert [path.stat().st_mode & 0o777 for path in found if path.name == SITES_CONTEXT] == [0o600] * 2


@pytest.fixture
def fl_ctx():
    made = FLContext()
    made.set_prop(FLContextKey.SECURE_MODE, True)
    return made


def test_in_the_simulator_contexts_lie_in_the_run(kept, fl_ctx, tmp_path):
    fl_ctx.set_prop(FLContextKey.SECURE_MODE, False)
    assert find_context(SITES_CONTEXT, fl_ctx, tmp_path) == b"secret"
    assert find_context(SERVER_CONTEXT, fl_ctx, tmp_path) == b"public"


@pytest.mark.parametrize("result", [LoadResult.NO_SUCH_CONTENT, LoadResult.NOT_SIGNED, LoadResult.INVALID_SIGNATURE])
def test_a_context_that_was_not_provisioned_is_refused(kept, fl_ctx, tmp_path, monkeypatch, result):
    monkeypatch.setattr(SecurityContentService, "load_content", lambda name: (b"another", result))
    with pytest.raises(
        BadInput, match=rf"startup/client_context\.tenseal: .*{result.name}; .*`fedmerit deploy init --he`"
    ):
        find_context(SITES_CONTEXT, fl_ctx, tmp_path)
