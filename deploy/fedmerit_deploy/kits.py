"""Make startup kits ready for their machines: what may run there, where images lie, and who may do what."""

import json
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import JobConstants
from nvflare.app_common.widgets.component_path_authorizer import CLASS_ALLOW_LIST

from fedmerit.contract.method import DECIMALS
from fedmerit.engines.nvflare.components import class_path
from fedmerit.engines.nvflare.egress import EgressFilter
from fedmerit.engines.nvflare.recipe import build_site_policy
from fedmerit.engines.nvflare.start_scripts import PYTHON_FOLDER
from fedmerit.errors import BadInput
from fedmerit.evidence.signatures import KIT_KEY
from fedmerit.files import read_object, sha256, write_json, write_text
from fedmerit.machine import pick_device
from fedmerit.plugin_references import Reference
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit.site.machine_settings import SERVER
from fedmerit.site.policy import MANIFEST, JobRules, Manifest, SiteScript, change_rules, parse_caps, read_manifest_file
from fedmerit_deploy.facts import SiteFacts
from fedmerit_deploy.job_ends import JobEnds
from fedmerit_deploy.kit_files import read_kind, read_name, require_kind
from fedmerit_deploy.kit_integrity import read_seal, require_no_brought_policy, seal
from fedmerit_deploy.launcher import SiteLauncher
from fedmerit_deploy.provisioning import place_key
from fedmerit_deploy.revocation import RevocationCheck
from fedmerit_deploy.site_policy import ClassValidator
from fedmerit_deploy.survey import SURVEY_CLASSES

SCOPE = "fedmerit"  # the privacy scope that jobs get here
RIGHTS = (  # what is left of "any": NVFlare's categories, and commands in none that tell of jobs
    *("submit_job", "clone_job", "manage_job", "download_job", "view", "operate"),
    *("list_job", "download_job_components", "get_job_log", "check_resources", "report_version"),
)
BYOC = "byoc"
ASK = "app_command"  # right to ask a job at work for its progress
REFUSED = (BYOC, "shell_commands", "server-predeployed-flwr")  # to everyone: foreign code, shells, Flower apps
UNWANTED = {"site_log_streamer"}  # components of NVFlare's default that would send a site's error log to the server


def prepare_site(
    kit: Path,
    folder: Path | None,
    device: str = "auto",
    byoc: bool = False,
    surveys: bool | None = None,
    evaluations: str | None = None,
    key: Path | None = None,
    script: SiteScript | None = None,
) -> None:
    """Make a site's kit ready: what may run there, and the manifest that binds the site to its images and script.

    Args:
        kit: the site's startup kit.
        folder: the site folder, as `fedmerit prepare` wrote it; its name has to be the site's. None: only
            a script trains there.
        device: "cpu", "cuda:0" or "auto".
        byoc: whether jobs may bring code of their own, as NVFlare's default policy has it.
        surveys: whether jobs may ask for a survey of the images; None: as decided before, at first they may.
        evaluations: caps on what the site evaluates for the server, for `parse_caps`; None: as before.
        key: the site's own private key, if the coordinator made none; it is put into the kit.
        script: the script that jobs may have train there; None: as before, at first none.

    Raises:
        BadInput: the kit is no site's, or brings rules or code, the folder is not the site's, the device does not
            exist, the caps cannot be read, or the key is missing or another's.
    """
    require_kind(kit, "client")
    require_no_brought_policy(kit)
    site, before = read_name(kit), read_manifest(kit) if is_prepared(kit) else None
    if folder:
        images = SiteFolder(folder)
        if images.name != site:
            raise BadInput(f"{folder}: holds site {images.name!r}, the kit is that of {site!r}; the names must agree")
        images.require_cases()
    pick_device(device, site)
    if key is not None:
        place_key(kit, key)
    if not (kit / "startup" / KIT_KEY).exists():
        raise BadInput(f"{kit}: holds no key, the site made its own; name it with --key, as `deploy request` wrote it")
    rules = before.jobs if before else JobRules()
    if evaluations is not None:
        rules = rules.model_copy(update={"evaluations": parse_caps(evaluations)})
    resources = _default(kit, "resources.json", "components")
    resources["components"] = [part for part in resources["components"] if part["id"] not in UNWANTED]
    for part in resources["components"]:
        if part["id"] == "resource_manager":  # FedMerit's jobs ask for no GPU: the manifest says which
            part["path"] = class_path(SiteFacts)
            part["args"] |= {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0}
        if part["id"] == "process_launcher":
            part["path"] = class_path(SiteLauncher)
    resources["allow_log_streaming"] = False
    resources_before = kit / "local" / "resources.json"
    if surveys is None:
        surveys = not resources_before.exists() or allows_surveys(read_object(resources_before))
    _write_policy(kit, resources, byoc, surveys)
    images_at = str(folder.resolve()) if folder else ""
    script = script or (before.script if before else None)
    _write_manifest(kit, site, jobs=rules, script=script, site_folder=images_at, device=device)


def approve_script(file: Path, args: str = "", command: str = "") -> SiteScript:
    """Return what a manifest says of a script that may train, as the file is now; `BadInput` if it is no script."""
    if not file.is_file():
        raise BadInput(f"--script {file}: file not found; expected the site's Python script")
    if file.suffix != ".py":
        raise BadInput(f"--script {file}: expected a Python script, *.py")
    return SiteScript(file=str(file.resolve()), sha256=sha256(file), args=args, command=command)


def prepare_server(
    kit: Path, server_sites: Path | None = None, runs: Path | None = None, device: str = "auto", byoc: bool = False
) -> None:
    """Make the server's kit ready.

    Args:
        kit: the server's startup kit.
        server_sites: folder of site folders of the server's own, for methods that evaluate there.
        runs: folder for the run folders, each by its job's id; None: ``runs`` in the kit.
        device: "cpu", "cuda:0" or "auto".
        byoc: whether jobs may bring code of their own.

    Raises:
        BadInput: the kit is not the server's, or brings rules or code, the site folders are none, ``runs`` cannot be
            a folder, or the device does not exist.
    """
    require_kind(kit, "server")
    require_no_brought_policy(kit)
    if server_sites:
        open_sites(server_sites)
    if runs:
        try:
            runs.mkdir(stat.S_IRWXU, parents=True, exist_ok=True)  # models, and updates if they are kept
        except OSError as error:
            raise BadInput(f"--runs {runs}: cannot be a folder ({error.strerror}); name another") from None
    pick_device(device, "the server")
    storage = kit.resolve() / "storage"  # NVFlare's default is the same folder in /tmp for every federation
    resources = _default(kit, "resources.json", "components")
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(storage / "snapshots")
    for part in resources["components"]:
        if part["id"] == "job_manager":
            part["args"]["uri_root"] = str(storage / "jobs")
        if part["id"] == "job_scheduler":  # a job that waits for a site is looked at again soon
            part["args"] |= {"min_schedule_interval": 2.0, "max_schedule_interval": 30.0}
    for name, component in {"job_ends": JobEnds, "revocation": RevocationCheck}.items():
        resources["components"].append({"id": name, "path": class_path(component), "args": {}})
    _write_policy(kit, resources, byoc, surveys=True)
    folders = {"server_sites": server_sites, "runs": runs}
    _write_manifest(kit, SERVER, device=device, **{name: str(path.resolve()) for name, path in folders.items() if path})


def is_prepared(kit: Path) -> bool:
    """Return whether `prepare_site` or `prepare_server` was run."""
    return (kit / "local" / MANIFEST).exists()


def read_manifest(kit: Path) -> Manifest:
    """Return what `prepare_site` or `prepare_server` wrote; `BadInput` if neither was run."""
    path = kit / "local" / MANIFEST
    if not is_prepared(kit):
        raise BadInput(f"{path}: file not found; run `fedmerit deploy site` or `fedmerit deploy server` for this kit")
    return read_manifest_file(path)


def approve(kit: Path, parts: Sequence[Reference]) -> None:
    """Let jobs name parts of others on this machine, each in the version that is installed now.

    Raises:
        BadInput: the kit is not made ready yet, or brings rules.
    """
    require_no_brought_policy(kit)
    manifest = read_manifest(kit)
    approved = {**(manifest.approved or {}), **{part.text: part.digest for part in parts}}
    _write_sealed(kit, manifest.model_copy(update={"parts": approved}))


def set_rules(kit: Path, settings: Sequence[str], accept: bool = False) -> JobRules:
    """Change a site's rules for jobs, seal them, and return all of them.

    Args:
        kit: the site's startup kit, made ready.
        settings: ``NAME=VALUE`` each; the values as JSON, names also separated by commas.
        accept: whether rules that allow more than the defaults are meant.

    Raises:
        BadInput: the kit is not made ready or brings rules, a setting is no rule, or one allows more than the
            defaults and is not accepted; nothing is changed then.
    """
    require_kind(kit, "client")
    require_no_brought_policy(kit)
    manifest = read_manifest(kit)
    rules = change_rules(manifest.jobs, settings)
    if new := [rule for rule in rules.looser if rule not in manifest.jobs.looser] if not accept else []:
        raise BadInput(
            f"{new[0]}: allows more than the defaults; nothing is changed; give --accept if your hospital means it"
        )
    _write_sealed(kit, manifest.model_copy(update={"jobs": rules}))
    return rules


def _write_sealed(kit: Path, manifest: Manifest) -> None:
    """Write the manifest of a kit, and seal its current content with what was accepted before."""
    manifest.write(kit / "local")
    before = read_seal(kit)
    seal(kit, before.accepted if before else ())


def allows_surveys(resources: Mapping[str, Any]) -> bool:
    """Return whether jobs may ask for a survey, by a kit's resources.json."""
    return bool(set(SURVEY_CLASSES) & set(resources.get(CLASS_ALLOW_LIST, ())))


def class_policy(kind: str, surveys: bool) -> dict[str, Any]:
    """Return the entries of a kit's resources.json that decide which classes jobs may name.

    Args:
        kind: of the kit.
        surveys: whether those of surveys are among them.
    """
    policy = build_site_policy(track=kind == "server")
    return policy | {CLASS_ALLOW_LIST: [*policy[CLASS_ALLOW_LIST], *(SURVEY_CLASSES if surveys else ())]}


def privacy_policy(kind: str) -> dict[str, Any]:
    """Return privacy.json: one scope, which every job gets; at a site with the egress filter last."""
    gate = {"path": class_path(EgressFilter), "args": {"decimals": DECIMALS, "encrypted": False}}
    filters = [gate] if kind == "client" else []
    scope = {"name": SCOPE, "properties": {}, "task_result_filters": filters, "task_data_filters": []}
    return {"scopes": [scope], "default_scope": SCOPE}


def _default(kit: Path, name: str, part: str) -> dict[str, Any]:
    """Return a file of local/ as NVFlare provisioned it; `BadInput` if it lacks the ``part``."""
    content = read_object(path := kit / "local" / f"{name}.default")
    if part not in content:
        raise BadInput(f"{path}: lacks {part}; unpack the kit again")
    return content


def _write_policy(kit: Path, resources: dict[str, Any], byoc: bool, surveys: bool) -> None:
    """Write NVFlare's files in local/ that decide who may do what here, with only the classes of FedMerit's jobs."""
    local, kind = kit / "local", read_kind(kit)
    kit.chmod(stat.S_IRWXU)  # what runs write below tells of images, or is trained on them; unpacking may open a kit
    config = JobConstants.SERVER_JOB_CONFIG if kind == "server" else JobConstants.CLIENT_JOB_CONFIG
    validator = {"config": config, "manifest": str(local.resolve() / MANIFEST)}
    resources |= {
        "class_list_enforcement_mode": "enforce",
        "app_validator": {"path": class_path(ClassValidator), "args": validator},
    }
    authorization = _authorization(_default(kit, "authorization.json", "permissions"), byoc)
    write_json(local / "resources.json", resources | class_policy(kind, surveys))
    write_json(local / "authorization.json", authorization)
    if not (local / "privacy.json").exists():  # a hospital may have made it stricter
        write_json(local / "privacy.json", privacy_policy(kind))
    write_text(local / PYTHON_FOLDER, f"{Path(sys.executable).parent}\n")  # start.sh takes its python3


def _authorization(policy: Mapping[str, Any], byoc: bool) -> dict[str, Any]:
    """Return NVFlare's default policy without code of others and shells, for every role."""
    permissions: dict[str, Any] = json.loads(json.dumps(policy["permissions"]))
    for role, rights in permissions.items():
        granted = dict.fromkeys((*RIGHTS, BYOC), rights) if isinstance(rights, str) else rights
        refused = [right for right in REFUSED if right != BYOC or not byoc]
        permissions[role] = granted | {ASK: granted["view"]} | dict.fromkeys(refused, "none")
    return {**policy, "permissions": permissions}


def _write_manifest(kit: Path, name: str, **settings: Any) -> None:
    """Write the manifest of a machine, with what its operator approved and hid before."""
    kept = read_manifest(kit).model_dump(include={"parts", "hidden"}) if is_prepared(kit) else {}
    runs = str(kit.resolve() / "runs")  # NVFlare clears its own folders
    _write_sealed(kit, Manifest(site=name, **{**kept, "runs": runs, **settings}))
