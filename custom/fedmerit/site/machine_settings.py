"""The settings of one machine: where images and runs lie, on which device to work.

Jobs never carry a path. Server and sites read these variables where they run; in a deployment the manifest in their
startup kit sets them.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from fedmerit.errors import BadInput
from fedmerit.files import RUN_NAME, read_object
from fedmerit.plugins import APPROVED
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit.site.policy import MANIFEST, Manifest, read_manifest_file
from fedmerit.trust import trust_records

SITES = "FEDMERIT_SITES"  # the folder in which this machine's site folders lie
SITE_FOLDER = "FEDMERIT_SITE_FOLDER"  # the site folder of the one site on this machine, instead of `SITES`
RUN = "FEDMERIT_RUN"  # the run folder; inside NVFlare's workspace if not set
RUNS = "FEDMERIT_RUNS"  # or the folder in which every job has a run folder of its own, by its id; clones have none
SERVER = "server"  # instead of a site's name, for the server's own evaluation
SERVER_SITES = "FEDMERIT_SERVER_SITES"  # at the server: site folders of its own, to evaluate on; optional
DEVICES = "FEDMERIT_DEVICES"  # e.g. "cuda:0" for every site here, or "RUNMC=cuda:0,BMC=cpu"

MANIFEST_SETTINGS = {
    "site_folder": SITE_FOLDER,
    "device": DEVICES,
    "server_sites": SERVER_SITES,
    "run": RUN,
    "runs": RUNS,
}


def follow_manifest(local: Path, name: str) -> Manifest | None:
    """Let the manifest in a startup kit's ``local`` folder set all variables of this process.

    Returns:
        The manifest; the default one on a provisioned machine that nobody prepared; None without a kit, as in the
        simulator, where server and sites are one user's own machine.

    Raises:
        BadInput: the manifest is not that of ``name`` (a site, or `SERVER`), or is none.
    """
    path = local / MANIFEST
    if not path.exists():
        if not (local.parent / "startup" / "rootCA.pem").exists():
            return None
        os.environ[APPROVED] = "{}"
        return Manifest(site=name)
    manifest = read_manifest_file(path)
    if manifest.site != name:
        raise BadInput(f"{path}: is that of {manifest.site!r}, but this is {name}; run `fedmerit deploy` here")
    for setting, variable in MANIFEST_SETTINGS.items():
        os.environ[variable] = getattr(manifest, setting)
    os.environ[SITES] = ""
    follow_approvals(manifest)
    return manifest


def follow_approvals(manifest: Manifest) -> None:
    """Let this process import only the parts of others that a manifest approves."""
    if manifest.approved is None:
        os.environ.pop(APPROVED, None)
        trust_records()
    else:
        os.environ[APPROVED] = json.dumps(manifest.approved)


def site_folder(site: str) -> SiteFolder:
    """Return this machine's folder of ``site``."""
    if own := os.environ.get(SITE_FOLDER):
        folder = SiteFolder(Path(own))
        if folder.name != site:
            raise BadInput(f"{own}: holds site {folder.name}, but this is site {site}; prepare it under that name")
        return folder
    root = os.environ.get(SITES)
    if not root:
        raise BadInput(f"site {site}: {SITES} is not set; set it to the folder that holds {site}/site.json")
    if not Path(root).is_absolute():  # NVFlare changes the working directory
        raise BadInput(f"site {site}: {SITES} is {root!r}; expected an absolute path")
    return SiteFolder(Path(root) / site)


def server_sites() -> list[SiteFolder]:
    """Return the server's own site folders, for methods that have models evaluated there; none if not set."""
    root = os.environ.get(SERVER_SITES)
    if root and not Path(root).is_absolute():
        raise BadInput(f"{SERVER_SITES} is {root!r}; expected an absolute path")
    return open_sites(Path(root)) if root else []


def run_folder(workspace: Path) -> Path:
    """Return where this machine keeps the run.

    ``FEDMERIT_RUN``, or below ``FEDMERIT_RUNS``, else in NVFlare's workspace.

    Args:
        workspace: NVFlare's folder of the job, named by the job's id.
    """
    if run := os.environ.get(RUN):
        return Path(run)
    runs = os.environ.get(RUNS)
    return Path(runs) / first_job(workspace) if runs else workspace / RUN_NAME


def first_job(workspace: Path) -> str:
    """Return the id of the job, or of the one it was cloned from: a clone resumes the run."""
    meta = workspace / "meta.json"
    name = str((read_object(meta) if meta.exists() else {}).get("cloned_from") or workspace.name)
    if not re.fullmatch(r"[\w-]+", name):
        raise BadInput(f"{meta}: cloned from {name!r}; expected the id of a job")
    return name


def assign_devices(setting: str, sites: Sequence[str]) -> str:
    """Return a run's device setting; for none, or auto, one that gives its sites the GPUs of this machine in turn."""
    devices = torch.cuda.device_count() if setting in ("", "auto") else 0
    return ",".join(f"{site}=cuda:{row % devices}" for row, site in enumerate(sites)) if devices > 1 else setting


def configured_device(site: str, setting: str | None = None) -> str:
    """Return the device of ``site`` in a setting as `DEVICES` describes it; "auto" if it says none.

    Raises:
        BadInput: the setting is not of that form.
    """
    setting = os.environ.get(DEVICES, "") if setting is None else setting
    if "=" not in setting:
        return setting or "auto"
    return _parse_by_site(setting).get(site, "auto")


def require_known_sites(setting: str, sites: Sequence[str], present: Sequence[str]) -> None:
    """Raise `BadInput` if a device setting names a site that is not in ``sites``.

    The message lists those ``present``.
    """
    if "=" in setting and (unknown := set(_parse_by_site(setting)) - set(sites)):
        names = ", ".join(sorted(unknown))
        raise BadInput(f"device setting {setting!r}: no site {names}; there are {', '.join(present)}")


def _parse_by_site(setting: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in setting.split(",")]
    found = {name: chosen for name, _, chosen in pairs}
    if len(found) < len(pairs) or not all(name and chosen for name, chosen in found.items()):
        expected = "expected DEVICE, or SITE=DEVICE,SITE=DEVICE, each site at most once"
        raise BadInput(f"device setting {setting!r}: {expected}")
    return found
