"""A rehearsal of a job: the shortest run of its plan with every connected site, and a verdict on each site.

Network, method, filters and encryption are the job's own, so that messages have their real size both ways. Only the
rounds, and the batches in a round, are fewer.
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput, RunFailed
from fedmerit.evidence.ledger import Ledger
from fedmerit.evidence.verification.run import verify_run
from fedmerit.files import read_object, write_json
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.results import read_results
from fedmerit.site.policy import JobRules
from fedmerit_deploy import session
from fedmerit_deploy.checks import CheckResult, Finding, fail, ok, warn
from fedmerit_deploy.job_ends import explain_end
from fedmerit_deploy.status import SiteState, read_federation

NAME = "rehearsal"  # of the job
MEGABYTE = 1e6
OWN_LOG = "errors.log in its kit, below runs/JOB/sites, says why"


def rehearse(kit: Path, job: Path, folder: Path, wait: float) -> list[CheckResult]:
    """Rehearse a job folder with all connected sites; return a line for each site, and one for the record.

    Args:
        kit: the admin's startup kit.
        job: the job folder, as `fedmerit job export` wrote it.
        folder: a new or empty folder for the shorter job and the run folder.
        wait: seconds for the sites to answer, and for the job to end.

    Raises:
        BadInput: no site is connected, or the server refuses a command.
        RunFailed: NVFlare failed at a command.
    """
    export_rehearsal(job, folder / NAME, wait)
    state = read_federation(kit)
    if all(site.silent is None for site in state.sites.values()):
        raise BadInput("no site is connected; have them start, then rehearse again")
    run: Path | None = folder / "run"
    with session.session(kit) as opened:
        job_id = session.submit(opened, folder / NAME)
        description = session.await_end(opened, job_id, 2 * wait)
        if not session.has_job_ended(description):
            session.stop(opened, job_id)
            description = session.job(opened, job_id)
        why = [*explain_end(description, advise=False)]
        try:
            session.fetch(opened, job_id, folder / "run")
        except BadInput as error:
            run, why = None, [str(error)]
    reasons = (text.partition(": ") for text in session.explain_refusal(description))
    refused = {name: text for name, _, text in reasons}
    verdicts = {name: judge_site(name, site, refused.get(name), run, why) for name, site in state.sites.items()}
    return [*(CheckResult(name, *verdict) for name, verdict in verdicts.items()), *_judge_record(run)]


def export_rehearsal(job: Path, out: Path, wait: float) -> None:
    """Write the shorter job of a job folder to ``out``; `BadInput` if it is no job folder of FedMerit's."""
    config = job / "app" / "config"
    if not config.is_dir():
        raise BadInput(f"{job}: no job folder (no app/config in it); write one with `fedmerit job export`")
    shutil.copytree(job, out)
    write_json(out / "meta.json", {**read_object(job / "meta.json"), "name": NAME, "min_clients": 1})
    has_plan = False
    for path in sorted((out / "app" / "config").glob("*.json")):
        content = read_object(path)
        for part in _find_arguments(content):
            if "plan" in part:
                part["plan"], has_plan = shorten(part["plan"]), True
            if "min_sites" in part:
                part |= {"min_sites": 1, "round_timeout": wait}
        write_json(path, content)
    if not has_plan:
        raise BadInput(f"{job}: names no plan; expected a job of `fedmerit job export`")


def shorten(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan of as few rounds as its method can do, and of as few batches as sites' default rules allow."""
    config = RunConfiguration.from_dict(plan)
    shorter = dict(plan) | {"rounds": max(1, config.build_method().needs.rounds)}
    if not config.script:
        rules, training = JobRules(), config.training
        images = rules.sgd_images if training.optimizer == "sgd" else rules.least_images
        steps = math.ceil(images / training.batch_size)
        steps = min(steps, training.steps) if training.steps else steps
        shorter["training"] = plan["training"] | {"epochs": 1, "steps": steps}
    return RunConfiguration.from_dict(shorter).to_dict()


def judge_site(name: str, site: SiteState, refused: str | None, run: Path | None, ended: Sequence[str]) -> Finding:
    """Return the verdict on a site, with what to mend.

    Args:
        name: of the site.
        site: its state before the rehearsal.
        refused: why it did not take the job; None: it took it.
        run: the fetched run folder; None: there is none.
        ended: why there is no run, or what else is known of the job's end.
    """
    if site.silent is None:
        return fail(f"{site.connection}: have it started; `fedmerit deploy check` there says what hinders it")
    if refused is not None:
        return fail(f"refuses the job: {refused}; `fedmerit check --plan JOB --kit KIT` there names the rule")
    if run is None:
        return fail("; ".join(ended))
    record = Ledger(run / "ledger.jsonl").records[-1]
    if name not in record["participants"]:
        reason = record["rejected"].get(name, "it was not asked: it connected after the job had begun")
        return fail(f"{reason}; {OWN_LOG}")
    rows = read_results(run)
    sums = rows[rows["site"] == name].groupby("quantity")["value"].sum()
    sent, received, took = (sums.get(quantity, 0.0) for quantity in ("bytes_sent", "bytes_received", "seconds"))
    text = f"sent {sent / MEGABYTE:.1f} MB, received {received / MEGABYTE:.1f} MB, worked {took:.0f} s"
    return warn(f"{text}; look at: {'; '.join(site.flags)}") if site.flags else ok(text)


def _judge_record(run: Path | None) -> list[CheckResult]:
    """Return whether the fetched run verifies; nothing without a run."""
    if run is None:
        return []
    try:
        verified = verify_run(run)
    except (BadInput, RunFailed) as error:
        return [CheckResult("record", *fail(f"does not verify: {error}"))]
    encrypted = "encrypted, " if "he" in read_object(run / "run.json").get("privacy", ()) else ""
    return [CheckResult("record", *ok(f"{encrypted}{verified.records} round verified, signed by {verified.signer}"))]


def _find_arguments(content: Any) -> list[dict[str, Any]]:
    """Return all ``args`` in a job's configuration."""
    inner = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    arguments = [one for part in inner for one in _find_arguments(part)]
    has_own = isinstance(content, dict) and isinstance(content.get("args"), dict)
    return [*arguments, content["args"]] if has_own else arguments
