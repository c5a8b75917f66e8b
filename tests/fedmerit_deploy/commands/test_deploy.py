"""`fedmerit deploy`: kits and their contents. No process is started."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedmerit.site.policy import JobRules
from fedmerit_deploy.kits import class_policy, prepare_server, prepare_site
from fedmerit_deploy.provisioning import PROJECT_FILE

CLASSES = class_policy("client", surveys=True)["class_allow_list"]


@pytest.fixture
def kit(federation):
    return federation / "fedmerit/prod_00/site1"


@pytest.fixture
def server(federation):
    return federation / "fedmerit/prod_00/localhost"


def read(path):
    return json.loads(path.read_text())


def open_to_others(root):
    """Files and folders that others may read, write or run."""
    return [str(path) for path in (root, *root.rglob("*")) if path.stat().st_mode & 0o077]


def test_init_closes_files_to_others(provisioned):
    files = [path for path in provisioned.rglob("*") if path.is_file()]
    keys = [path for path in files if b"PRIVATE KEY" in path.read_bytes()]
    assert {path.name for path in keys} == {"cert.json", "server.key", "client.key"}
    assert len(keys) == 1 + 5
    assert not open_to_others(provisioned)
    assert {oct(path.stat().st_mode & 0o777) for path in keys} == {"0o600"}
    assert {oct(path.stat().st_mode & 0o777) for path in provisioned.rglob("*") if path.is_dir()} == {"0o700"}


@pytest.mark.slow
def test_nvflare_command_provisions_project_file(provisioned, scripts, tmp_path):
    command = [scripts / "nvflare", "provision", "-p", provisioned / PROJECT_FILE, "-w", tmp_path / "work"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300, capture_output=True)
    ours, theirs = (
        {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
        for root in (provisioned / "fedmerit/prod_00", tmp_path / "work/fedmerit/prod_00")
    )
    assert ours == theirs
    assert "site1/local/fedmerit_versions.json" in ours


def test_check_compares_kit_with_printed_digest(federation, fedmerit):
    """Before anything is prepared or started; NVFlare itself takes a kit with another port."""
    added = fedmerit("deploy", "init", "--add", "--sites", "site3:hospital3", "--out", federation)
    lines = added.output.split("site3: ")[1].splitlines()
    kit, digest = Path(lines[0].removesuffix(", SHA-256:")), lines[1]
    assert re.fullmatch(r"([0-9a-f]{4} ){15}[0-9a-f]{4}", digest)
    assert "telephone" in added.output
    assert not (kit / "startup/signature.json").exists()
    result = fedmerit("deploy", "check", "--kit", kit, "--digest", digest)
    assert (result.exit_code, "unchanged since the coordinator wrote it" in result.output) == (0, True)
    path = kit / "startup/fed_client.json"
    path.write_text(path.read_text().replace("localhost:", "localhost:1"))
    result = fedmerit("deploy", "check", "--kit", kit, "--digest", digest)
    assert result.exit_code == 2
    assert f"the coordinator names {digest}" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_rules_are_shown_changed_and_accepted(ready, fedmerit):
    shown = fedmerit("deploy", "rules", "--kit", ready)
    assert (shown.exit_code, "least_images" in shown.output) == (0, True), shown.output
    looser = ("deploy", "rules", "--kit", ready, "--set", "least_images=4")
    refused = fedmerit(*looser)
    assert (refused.exit_code, "give --accept if your hospital means it" in refused.stderr) == (2, True)
    accepted = fedmerit(*looser, "--accept")
    assert (accepted.exit_code, "(accepted)" in " ".join(accepted.output.split())) == (0, True), accepted.output
    later = fedmerit("deploy", "check", "--kit", ready, "--offline")
    assert "least_images 4, the default is 8 (accepted)" in " ".join(later.output.split())
    assert fedmerit("deploy", "rules", "--kit", ready, "--set", "share_models=true").exit_code == 2


def test_init_prints_digests_of_requests(tmp_path, fedmerit):
    reported = fedmerit("deploy", "request", "--name", "HK", "--out", tmp_path / "request").output
    digest = re.search(r"([0-9a-f]{4} ){15}[0-9a-f]{4}", reported)[0]
    made = fedmerit(
        *("deploy", "init", "--out", tmp_path / "federation", "--sites", "HK", "--server", "localhost"),
        *("--requests", tmp_path / "request"),
    )
    assert made.exit_code == 0, made.output
    assert f"request of HK: {tmp_path}/request/HK.csr, SHA-256:\n{digest}\n" in made.output


def test_kits_hold_only_own_key(provisioned):
    keys = {path.parents[1].name: path.read_bytes() for path in provisioned.glob("fedmerit/prod_00/*/startup/*.key")}
    assert len(keys) == len(set(keys.values())) == 5
    state = read(provisioned / "fedmerit/state/cert.json")
    secret = state["root_pri_key"].splitlines()[1]
    kits = [path for path in provisioned.glob("fedmerit/prod_00/**/*") if path.is_file()]
    assert not any(secret in path.read_text(errors="replace") for path in kits)


def test_renew_prints_next_steps(federation, fedmerit):
    result = fedmerit("deploy", "renew", "--out", federation, "--names", "site2, a@lead.org")
    assert result.exit_code == 0, result.output
    for text in (str(federation / "fedmerit/prod_01/site2"), "fedmerit/prod_01/a@lead.org", "startup/"):
        assert text in result.output
    assert "site1" not in result.output
    assert "every site has to restart" not in result.output
    assert (
        "every site has to restart" in fedmerit("deploy", "renew", "--out", federation, "--names", "localhost").output
    )


def test_add_leaves_other_kits_unchanged(federation, fedmerit):
    result = fedmerit("deploy", "init", "--add", "--sites", "site3:hospital3", "--out", federation)
    assert result.exit_code == 0, result.output
    assert "site1" not in result.output
    for name in ("site1", "localhost", "a@lead.org"):
        for path in (federation / "fedmerit/prod_00" / name / "startup").glob("*.crt"):
            assert path.read_bytes() == (federation / "fedmerit/prod_01" / name / "startup" / path.name).read_bytes()
    again = fedmerit("deploy", "init", "--add", "--sites", "site3", "--out", federation)
    assert again.exit_code == 2
    assert "site3" in again.stderr


@pytest.fixture(scope="module")
def keyed(tmp_path_factory, fedmerit):
    """A federation with keys for encrypted runs, to which a site was added."""
    pytest.importorskip("tenseal", reason="TenSEAL is not installed: pip install -e '.[he]'")
    out = tmp_path_factory.mktemp("keyed") / "federation"
    for options in (("--sites", "site1,site2", "--server", "localhost", "--he"), ("--sites", "site3", "--add")):
        result = fedmerit("deploy", "init", "--out", out, *options)
        assert result.exit_code == 0, result.output
    return out / "fedmerit"


def test_encryption_key_is_only_in_site_kits(keyed):
    before, after = keyed / "prod_00", keyed / "prod_01"
    sites = [after / f"site{place}" for place in (1, 2, 3)] + [before / "site1", before / "site2"]
    keys = {kit: (kit / "startup/client_context.tenseal").read_bytes() for kit in sites}
    assert len(set(keys.values())) == 1
    of_server = (after / "localhost/startup/server_context.tenseal").read_bytes()
    assert of_server == (before / "localhost/startup/server_context.tenseal").read_bytes()
    found = {path for path in keyed.rglob("*") if path.is_file() and path.read_bytes() in keys.values()}
    private = {kit / "startup/client_context.tenseal" for kit in sites} | {keyed / "state/client_context.tenseal"}
    assert found == private
    assert all(path.stat().st_mode & 0o077 == 0 for path in private)


@pytest.mark.parametrize(
    ("name", "spoil", "state", "word"),
    [
        ("site1", None, "ok", "decrypts"),
        ("localhost", None, "ok", "decrypts nothing"),
        ("site1", "server_context.tenseal", "fail", "lacks the secret key"),
        ("localhost", "client_context.tenseal", "fail", "holds the sites' secret key"),
        ("site1", "rootCA.pem", "fail", "cannot be read"),
    ],
)
def test_check_opens_encryption_context(keyed, sites, tmp_path, found, name, spoil, state, word):
    kits = shutil.copytree(keyed / "prod_01", tmp_path / "kits")
    kit = kits / name
    if name == "site1":
        prepare_site(kit, sites / "site1")
    else:
        prepare_server(kit)
    if spoil:
        own = "client" if name == "site1" else "server"
        source = next(kits.glob(f"*/startup/{spoil}"))
        (kit / f"startup/{own}_context.tenseal").write_bytes(source.read_bytes())
    ((reported_state, reported),) = found(kit, "encryption", offline=True)
    assert reported_state == state
    assert word in reported


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"--sites": "site1,site1"}, ["site1", "once"]),
        ({"--sites": "site 1"}, ["site 1", "letters"]),
        ({"--sites": "a,A"}, ["case"]),
        ({"--sites": "site1:my org"}, ["my org"]),
        ({"--sites": "localhost"}, ["localhost", "reserved"]),
        ({"--sites": "fl", "--server": "fl"}, ["fl", "server's name too"]),
        ({"--org": "x" * 64}, ["64 characters", "63 at most"]),
        ({"--ports": "8002,0"}, ["port 0", "65535"]),
        ({"--server": "fl_server"}, ["fl_server", "host name"]),
        ({"--server": "300.1.1.1"}, ["300.1.1.1", "address"]),
        ({"--server": None}, ["--server"]),
        ({"--ports": "80000"}, ["80000", "65535"]),
        ({"--ports": "1,2,3"}, ["--ports"]),
        ({"--admin": "me:lead"}, ["me", "e-mail"]),
        ({"--admin": "me@x.org:boss"}, ["boss", "project_admin"]),
        ({"--admin": "me@x.org:member"}, ["submit"]),
        ({"--name": "my federation"}, ["my federation"]),
    ],
)
def test_init_rejects_unusable_options(fedmerit, tmp_path, options, words):
    given = {"--sites": "site1,site2", "--server": "localhost", "--out": tmp_path / "new"} | options
    result = fedmerit("deploy", "init", *(part for item in given.items() if item[1] is not None for part in item))
    assert result.exit_code == 2, result.output
    assert [word for word in words if word not in result.stderr] == []
    assert not (tmp_path / "new").exists()


def test_site_command_prepares_kit(kit, sites, fedmerit):
    result = fedmerit("deploy", "site", "--kit", kit, "--sites-folder", sites, "--device", "cpu", "--offline")
    assert result.exit_code == 0, result.output
    content = read(kit / "local/fedmerit.json")
    assert content.pop("jobs") == JobRules().model_dump(mode="json")
    assert content == {"site": "site1", "site_folder": str(sites / "site1"), "device": "cpu", "runs": str(kit / "runs")}
    resources = read(kit / "local/resources.json")
    assert resources["class_allow_list"] == CLASSES
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["allow_log_streaming"] is False
    parts = {part["id"]: part for part in resources["components"]}
    assert "site_log_streamer" not in parts
    assert parts["resource_manager"]["args"]["num_of_gpus"] == 0
    for rights in read(kit / "local/authorization.json")["permissions"].values():
        assert rights["byoc"] == rights["shell_commands"] == rights["server-predeployed-flwr"] == "none"
    assert read(kit / "local/authorization.json")["permissions"]["project_admin"]["submit_job"] == "any"
    assert read(kit / "local/privacy.json")["default_scope"] == "fedmerit"
    assert "start.sh" in result.output


def test_byoc_option_allows_code(kit, sites, fedmerit, found):
    options = ("--site-folder", sites / "site1", "--byoc", "--offline")
    result = fedmerit("deploy", "site", "--kit", kit, *options)
    assert result.exit_code == 0, result.output
    permissions = read(kit / "local/authorization.json")["permissions"]
    assert (permissions["project_admin"]["byoc"], permissions["org_admin"]["byoc"]) == ("any", "none")
    assert permissions["project_admin"]["shell_commands"] == "none"
    assert [state for state, _ in found(kit, "policy")] == ["warn"]


def test_server_command_prepares_kit(server, sites, fedmerit, tmp_path):
    result = fedmerit("deploy", "server", "--kit", server, "--server-sites", sites, "--runs", tmp_path / "runs")
    assert result.exit_code == 0, result.output
    assert read(server / "local/fedmerit.json") == {
        "site": "server",
        "server_sites": str(sites),
        "runs": str(tmp_path / "runs"),
        "device": "auto",
    }
    text = (server / "local/resources.json").read_text()
    assert "/tmp/nvflare" not in text
    assert str(server / "storage") in text
    assert (
        read(server / "local/resources.json")["class_allow_list"]
        == class_policy("server", surveys=True)["class_allow_list"]
    )


@pytest.mark.parametrize(("command", "name"), [("site", "localhost"), ("server", "site1"), ("site", "a@lead.org")])
def test_commands_reject_kit_of_other_kind(federation, sites, fedmerit, command, name):
    folder = ("--sites-folder", sites) if command == "site" else ()
    result = fedmerit("deploy", command, "--kit", federation / "fedmerit/prod_00" / name, *folder)
    assert result.exit_code == 2
    assert f"expected that of {'a site' if command == 'site' else 'the server'}" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ["--sites-folder", "--site-folder"]),
        (("--site-folder", "{sites}/site2"), ["site1", "site2"]),
        (("--site-folder", "{sites}/site9"), ["site9", "fedmerit prepare"]),
        (("--sites-folder", "{sites}", "--device", "cuda:77"), ["cuda:77", "site1"]),
    ],
)
def test_site_command_rejects_unusable_options(kit, sites, fedmerit, options, words):
    result = fedmerit("deploy", "site", "--kit", kit, *(option.format(sites=sites) for option in options))
    assert result.exit_code == 2
    assert [word for word in words if word not in result.stderr] == []
    assert not (kit / "local/fedmerit.json").exists()


def test_site_command_reports_faults_of_images(ready, own_sites, fedmerit):
    folder = own_sites / "site1"
    lists = read(folder / "datalist.json")
    os.remove(folder / lists["training"][0]["image"])
    prepare_site(ready, folder)
    result = fedmerit("deploy", "check", "--kit", ready, "--offline")
    assert result.exit_code == 1
    assert "fedmerit check" in " ".join(result.output.split())
    assert "not ready: 1" in result.stderr


def test_check_rejects_unprepared_kit(kit, fedmerit):
    result = fedmerit("deploy", "check", "--kit", kit)
    assert result.exit_code == 2
    assert "fedmerit deploy site" in result.stderr
