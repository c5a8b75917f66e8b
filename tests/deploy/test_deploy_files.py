"""The files of deploy/: what they name exists, and nothing runs with more rights than it needs."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml
from federation_factory import make_federation
from kit_processes import wait_for_sites

from fedmerit.schema.site_folder import SiteFolder
from fedmerit_deploy import session

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def instructions():
    """Those of the Dockerfile, as (name, rest), lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    return [tuple(line.split(maxsplit=1)) for line in re.sub(r"\\\n\s*", " ", text).splitlines() if line.strip()]


def test_image_copies_existing_files():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    copied = [rest.split() for name, rest in instructions() if name == "COPY" and "--from" not in rest]
    sources = [source for words in copied for source in words[:-1]]
    roots = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["where"]
    assert {"pyproject.toml", "constraints.txt", "requirements", *roots} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored


def test_image_is_pinned_and_without_privileges():
    found = instructions()
    versions = [rest.partition("=")[2] for name, rest in found if name == "ARG" and rest.startswith("PYTHON=")]
    assert len(versions) == 1
    assert re.match(r"3\.\d+\.\d+-", versions[0])
    assert [rest.split()[0] for name, rest in found if name == "FROM"] == ["python:${PYTHON}@${PYTHON_DIGEST}"] * 2
    digests = [rest.partition("=")[2] for name, rest in found if name == "ARG" and rest.startswith("PYTHON_DIGEST")]
    assert len(digests) == 1
    assert re.fullmatch(r"(sha256:[0-9a-f]{64})?", digests[0])  # nothing is built by the tag only
    assert not re.search(r"extra-index", (DEPLOY / "Dockerfile").read_text())
    installs = [rest for name, rest in found if name == "RUN" and "pip install" in rest]
    assert all("--no-deps" in words for text in installs for words in text.split("pip install")[1:])
    assert "--require-hashes --requirement /wheels/runtime.txt" in installs[1]
    assert not any("--extra-index-url" in text for text in installs)
    assert [rest for name, rest in found if name == "USER"] == ["10001"]
    assert found[-1][0] == "CMD"


def test_nothing_is_installed_by_a_name_that_no_index_has():
    """Nobody owns the name on PyPI: another package would be installed. And nothing comes from a second index."""
    places = (
        "README.md",
        "CONTRIBUTING.md",
        "RELEASING.md",
        "Makefile",
        "docs",
        "deploy",
        "custom",
        "cli",
        "evaluation",
        "examples",
    )
    files = [
        file for place in places for file in ([ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*"))
    ]
    texts = {
        file: file.read_text()
        for file in files
        if file.suffix in ("", ".md", ".py", ".yaml", ".j2", ".service") and file.is_file()
    }
    assert len(texts) > 300
    for file, text in texts.items():
        assert not re.search(r"pip install ['\"]?fedmerit\b(?!-)", text), file
        assert "extra-index" not in text, file


def test_compose_services_are_contained():
    content = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert set(content["services"]) == {"server", "site", "watch"}
    for name, service in content["services"].items():
        assert (
            DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]
        ).resolve() == DEPLOY / "Dockerfile"
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"]
        assert not service.get("privileged")
        assert "no-new-privileges:true" in service["security_opt"]
        assert ("ports" in service) == (name == "server")  # a hospital opens nothing
        assert ("healthcheck" in service) == (name != "watch")
    admins = yaml.safe_load((DEPLOY / "compose.admins.yaml").read_text())["services"]
    assert set(admins) == {"server"}
    assert set(admins["server"]) == {"ports"}
    published = content["services"]["server"]["ports"] + admins["server"]["ports"]
    assert [re.findall(r"\{(\w+):", port) for port in published] == [["PORT"] * 2, ["ADMIN_PORT"] * 2]
    assert "ADMIN_PORT" in (DEPLOY / "compose.yaml").read_text()  # whose head says what there is to set
    images = [volume for volume in content["services"]["site"]["volumes"] if "/sites/" in volume]
    assert [volume.rpartition(":")[2] for volume in images] == ["ro"]
    gpu = yaml.safe_load((DEPLOY / "compose.gpu.yaml").read_text())["services"]["site"]
    arguments = {rest.partition("=")[0] for name, rest in instructions() if name == "ARG"}
    assert set(gpu["build"]["args"]) <= arguments


def unit(name="fedmerit@"):
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read(DEPLOY / f"{name}.service")
    return parser


def test_supervisor_unit_and_service_call_job_watch(fedmerit):
    service = unit("fedmerit-watch@")["Service"]
    command = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["watch"]["command"]
    for words in (service["ExecStart"].split(), command):
        result = fedmerit(*words[1:3], "3f2a", "--kit", "/nowhere", words[6], "/nowhere/log")
        assert (result.exit_code, "/nowhere: no startup kit" in result.stderr) == (2, True), result.output
    assert service["User"] == unit()["Service"]["User"]
    assert service["RestartPreventExitStatus"] == "1"  # what it gave up stays given up


def test_unit_runs_start_script_without_privileges():
    service = unit()["Service"]
    assert service["ExecStart"] == "/bin/bash /var/lib/fedmerit/%i/startup/sub_start.sh --once"
    assert service["User"] == "fedmerit"
    assert service["NoNewPrivileges"] == "true"
    assert service["ProtectSystem"] == "strict"
    assert service["ReadWritePaths"] == service["WorkingDirectory"] == "/var/lib/fedmerit/%i"
    assert unit()["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
@pytest.mark.parametrize("name", ["fedmerit@", "fedmerit-watch@"])
def test_systemd_accepts_unit(tmp_path, name):
    path = tmp_path / f"{name}site1.service"
    shutil.copy(DEPLOY / f"{name}.service", path)
    found = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60)
    found = [line for line in found.stderr.splitlines() if name in line and "is not executable" not in line]
    assert found == []  # FedMerit lies elsewhere here


def test_start_script_has_option_of_image_and_unit():
    import nvflare.lighter.templates

    template = Path(nvflare.lighter.templates.__path__[0]) / "master_template.yml"
    script = yaml.safe_load(template.read_text())["sub_start_sh"]
    assert "--once)" in script


def contained(kit, site_folder, words, **more):
    """A command in a root that can only be read, without rights, as compose.yaml has its services: by bubblewrap."""
    command = [
        *("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/mnt"),
        *("--bind", str(kit), "/mnt/kit", "--ro-bind", str(site_folder), f"/mnt/sites/{site_folder.name}"),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL", "--die-with-parent"),
        *("--setenv", "HOME", "/tmp", "--chdir", "/mnt/kit"),
    ]
    text = [re.sub(r"/(kit|sites)\b", r"/mnt/\1", word) for word in words]  # a root that is only read gets no folder
    return subprocess.Popen([*command, *text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


@pytest.mark.slow
def test_services_run_contained(tmp_path, sites, wait_for):
    """Not by a container engine: that of the machine this was written on could not start one."""
    if not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    home = Path.home() / ".fedmerit-test"  # /tmp is the container's own
    (root := Path(tempfile.mkdtemp(dir=home.parent, prefix=home.name))).chmod(0o700)
    try:
        folder = shutil.copytree(sites / "site1", root / "site1")
        admin, (server, site) = make_federation(root / "kits", None, [SiteFolder(folder)])
        compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
        start = json.loads(next(rest for name, rest in instructions() if name == "CMD"))
        check = ["fedmerit", "deploy", "site", "--kit", "/kit", "--site-folder", "/sites/site1", "--offline"]
        assert " ".join(check[:7]).replace("site1", "NAME") in (DEPLOY / "compose.yaml").read_text()
        output, _ = (prepared := contained(site, folder, check)).communicate()
        assert prepared.returncode == 0, output
        output, _ = (
            prepared := contained(server, folder, ["fedmerit", "deploy", "server", "--kit", "/kit"])
        ).communicate()
        assert prepared.returncode == 0, output
        health = compose["services"]["site"]["healthcheck"]["test"][1:]
        assert contained(site, folder, health).wait() == 1
        for kit in (server, site):
            (kit / "daemon_pid.fl").write_text("2")  # as a killed container leaves it: here the start script itself
        running = [contained(kit, folder, start, start_new_session=True) for kit in (server, site)]
        try:
            for kit in (server, site):
                wait_for(lambda kit=kit: contained(kit, folder, health).wait() == 0, 300)
            with session.session(admin, 60) as opened:
                wait_for_sites(opened, ["site1"], 120)
            assert all(one.poll() is None for one in running)
        finally:
            for one in running:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait()
    finally:
        shutil.rmtree(root)
