"""A rehearsal of a job: the shortest run of its plan with every connected site, and a verdict on each of them.

Network, method, filters and encryption are the job's own, so that messages have their real size both ways. Only the
rounds, and the batches in a round, are fewer.
"""

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.fuel.flare_api.flare_api import Session

from fedmerit.errors import BadInput, RunFailed
from fedmerit.evidence.ledger import Ledger
from fedmerit.evidence.verification.run import verify_run
from fedmerit.files import read_json, write_json
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.results import read_results
from fedmerit.site.policy import JobRules
from fedmerit_deploy import session
from fedmerit_deploy.check_result import CheckResult, Finding, fail, ok, warn
from fedmerit_deploy.job_ends import explain_end
from fedmerit_deploy.site_states import SiteState, read_federation

NAME = "rehearsal"  # of the job
MEGABYTE = 1e6
OWN_LOG = "errors.log in its kit, below runs/JOB/sites, says why"


def rehearse(kit: Path, job: Path, folder: Path, wait: float) -> list[CheckResult]:
    """Rehearse a job folder with all sites that are connected; a line for each site, and one for the record.

    Args:
        job: the job folder, as `fedmerit job export` wrote it.
        folder: a new or empty folder for the shorter job and the run folder.
        wait: seconds for the sites to answer, and for the job to end.

    Raises:
        BadInput, RunFailed: no site is connected, or as of `fedmerit_deploy.session.session`.
    """
    export_rehearsal(job, folder / NAME, wait)
    state = read_federation(kit)
    if all(site.silent is None for site in state.sites.values()):
        raise BadInput("no site is connected; have them start, then rehearse again")
    run: Path | None = folder / "run"
    with session.session(kit) as opened:
        job_id = session.submit(opened, folder / NAME)
        description = _await_end(opened, job_id, wait)
        why = [*explain_end(description, advise=False)]
        try:
            session.fetch(opened, job_id, folder / "run")
        except BadInput as error:
            run, why = None, [str(error)]
    refused = {name: text for name, _, text in (one.partition(": ") for one in session.explain_refusal(description))}
    return [*judge(state.sites, refused, run, why), *_judge_record(run)]


def export_rehearsal(job: Path, out: Path, wait: float) -> None:
    """Write the shorter job of a job folder to ``out``; `BadInput` if it is no job folder of FedMerit's."""
    config = job / "app" / "config"
    if not config.is_dir():
        raise BadInput(f"{job}: no job folder (no app/config in it); write one with `fedmerit job export`")
    shutil.copytree(job, out)
    write_json(out / "meta.json", {**read_json(job / "meta.json"), "name": NAME, "min_clients": 1})
    found = False
    for path in sorted((out / "app" / "config").glob("*.json")):
        content = read_json(path)
        for part in _find_arguments(content):
            if "plan" in part:
                part["plan"], found = shorten(part["plan"]), True
            if "min_sites" in part:
                part |= {"min_sites": 1, "round_timeout": wait}
        write_json(path, content)
    if not found:
        raise BadInput(f"{job}: names no plan; expected a job of `fedmerit job export`")


def shorten(plan: Mapping[str, Any]) -> dict[str, Any]:
    """A plan of as few rounds as its method can do, and of as few batches as sites' default rules allow."""
    config = RunConfiguration.from_dict(plan)
    shorter = dict(plan) | {"rounds": max(1, config.build_method().needs.rounds)}
    if not config.script:
        rules, training = JobRules(), config.training
        images = rules.sgd_images if training.optimizer == "sgd" else rules.least_images
        steps = math.ceil(images / training.batch_size)
        steps = min(steps, training.steps) if training.steps else steps
        shorter["training"] = plan["training"] | {"epochs": 1, "steps": steps, "warmup_rounds": 0}
    return RunConfiguration.from_dict(shorter).to_dict()


def judge(
    sites: Mapping[str, SiteState], refused: Mapping[str, str], run: Path | None, ended: Sequence[str]
) -> list[CheckResult]:
    """A verdict for each site, with what to mend.

    Args:
        refused: by site, why it did not take the job.
        ended: why not, or what else is known of the job's end.
    """
    lines = []
    for name, site in sites.items():
        state, text = _judge_site(name, site, refused, run, ended)
        lines.append(CheckResult(name, state, text))
    return lines


def _judge_site(
    name: str, site: SiteState, refused: Mapping[str, str], run: Path | None, ended: Sequence[str]
) -> Finding:
    if site.silent is None:
        return fail(f"{site.connection}: have it started; `fedmerit deploy check` there says what hinders it")
    if name in refused:
        return fail(f"refuses the job: {refused[name]}; `fedmerit check --plan JOB --kit KIT` there names the rule")
    if run is None:
        return fail("; ".join(ended))
    record = Ledger(run / "ledger.jsonl").records[-1]
    if name not in record["participants"]:
        reason = record["rejected"].get(name, "it was not asked: it connected after the job had begun")
        return fail(f"{reason}; {OWN_LOG}")
    rows = read_results(run)
    own = rows[rows["site"] == name]
    sent, received = (own.loc[own["quantity"] == f"bytes_{way}", "value"].sum() for way in ("sent", "received"))
    took = own.loc[own["quantity"] == "seconds", "value"].sum()
    text = f"sent {sent / MEGABYTE:.1f} MB, received {received / MEGABYTE:.1f} MB, worked {took:.0f} s"
    return warn(f"{text}; look at: {'; '.join(site.flags)}") if site.flags else ok(text)


def _judge_record(run: Path | None) -> list[CheckResult]:
    """Whether the fetched run verifies; nothing of no run."""
    if run is None:
        return []
    try:
        found = verify_run(run)
    except (BadInput, RunFailed) as error:
        return [CheckResult("record", *fail(f"does not verify: {error}"))]
    encrypted = "encrypted, " if "he" in read_json(run / "run.json").get("privacy", ()) else ""
    return [CheckResult("record", *ok(f"{encrypted}{found.records} round verified, signed by {found.signer}"))]


def _await_end(opened: Session, job_id: str, wait: float) -> Mapping[str, Any]:
    """NVFlare's description of a job when it is over; it is stopped if that takes too long."""
    deadline, stopped = time.monotonic() + 2 * wait, False
    while not session.has_job_ended(description := session.job(opened, job_id)):
        if time.monotonic() > deadline and not stopped:
            session.abort(opened, job_id)
            stopped = True
        time.sleep(session.POLL)
    return description


def _find_arguments(content: Any) -> list[dict[str, Any]]:
    """All ``args`` in a job's configuration."""
    inner = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    found = [one for part in inner for one in _find_arguments(part)]
    return [*found, content["args"]] if isinstance(content, dict) and isinstance(content.get("args"), dict) else found
