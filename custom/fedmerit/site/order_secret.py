"""The secret of a site for one job: the order of its images, its batches and its augmentation follow from it.

The plan's seed is known to everybody. Two jobs whose order follows from it differ in known images, and so may their
updates. A secret is drawn when a job begins at the site; a job that continues in the same folder keeps it.
"""

import hashlib
import os
import secrets
from pathlib import Path
from typing import Any

from fedmerit.files import read_text
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.trainers.step_commitments import WORK, WorkFolder

FILE = "order.secret"  # in the site's folder of the run


def make_secret(folder: Path) -> str:
    """Return the secret of the job with this folder of the site's, drawn if there is none yet."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{FILE}.{os.getpid()}.new"
    draft.touch(mode=0o600)
    draft.write_text(secrets.token_hex(32))
    try:
        os.link(draft, folder / FILE)  # another process of the job may have been first
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    return read_secret(folder)


def read_secret(folder: Path) -> str:
    """Return the secret of a job; "": its order follows from the plan's seed."""
    path = folder / FILE
    return read_text(path).strip() if path.exists() else ""


def name_job(job: str, folder: Path) -> str:
    """Return the name in the ledger of jobs of a job with this id and folder: with another secret it is another job.

    A server can name any earlier job as the one that it resumes. If that one's folder is gone, the site draws a new
    secret, and the same images come in another order: the difference of both shows what that of two jobs shows.
    """
    secret = read_secret(folder)
    return f"{job}-{hashlib.sha256(secret.encode()).hexdigest()[:8]}" if secret else job


def secret_arguments(own: Path, folder: SiteFolder) -> dict[str, Any]:
    """Return the arguments of an image trainer that depend on the secret of the job with the site's folder ``own``."""
    secret = read_secret(own)
    return {"secret": secret, "work": WorkFolder(own / WORK, secret or folder.digest)}
