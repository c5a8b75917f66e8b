"""A site that is taken out of a run: the training is repeated without it, and nothing of it is in the model.

The run that it took part in stays, with its ledger. Its certificate stays valid until it is revoked.
"""

import tempfile

from nvflare.fuel.flare_api.flare_api import Session

from fedmerit.engines.nvflare.operations import REPEATS
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import read_object, write_json
from fedmerit_deploy import session

SERVER = "server"  # NVFlare's word, in a job's deploy_map


def remove_site(opened: Session, job_id: str, site: str) -> str:
    """Stop a run, if it is at work, and submit a job that repeats it from round 0 without ``site``; the job's id.

    It is the leave-one-out run: the same plan and seeds, by all other sites that are connected.

    Raises:
        BadInput: the site has no part in the run, or too few others are connected.
    """
    description = session.job(opened, job_id)
    first = str(description.get("cloned_from") or job_id)
    took = session.job_sites(description) | session.job_sites(session.job(opened, first))
    if site not in took:
        raise BadInput(f"job {job_id}: {site} has no part in it; its sites are {', '.join(sorted(took)) or 'none'}")
    others, least = sorted(set(session.connected(opened)) - {site}), int(description.get("min_clients") or 1)
    if len(others) < least:
        raise BadInput(
            f"job {job_id}: needs {least} sites without {site}, connected are {', '.join(others) or 'none'}; wait for "
            "others, or submit a job with fewer --min-sites"
        )
    if not session.has_job_ended(description):
        session.stop(opened, job_id)
    with tempfile.TemporaryDirectory(prefix="removal-") as folder:
        # beside the job folder lie NVFlare's own meta.json of the job, which has other names, and its workspace
        found = [path.parents[1] for path in session.download(opened, first, folder).rglob("app/config")]
        job = next((path for path in found if (path / "meta.json").is_file()), None)
        if job is None:
            raise RunFailed(f"job {first}: the server gave no job folder; submit that again, without {site}")
        meta = read_object(job / "meta.json")
        meta["deploy_map"] = {app: [SERVER, *others] for app in meta["deploy_map"]}
        meta[REPEATS] = f"repeats the run of job {first} without {site}"
        write_json(job / "meta.json", meta)
        return session.submit(opened, job)
