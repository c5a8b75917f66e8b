"""The page of ``fedmerit check --plan``: what a job would do at a site, and what the site's rules say of it."""

from pathlib import Path

from rich.text import Text

from fedmerit.schema.site_folder import SiteFolder
from fedmerit.site.machine_settings import follow_approvals
from fedmerit.site.policy import Manifest
from fedmerit.trainers.factory import count_images
from fedmerit_cli.terminal import console, plain_table
from fedmerit_deploy.job_plan import describe_job, read_configuration, read_job
from fedmerit_deploy.kit_files import require_kind
from fedmerit_deploy.kits import read_manifest
from fedmerit_deploy.site_policy import RuleCheck, check_rules

FORESEEN = "nobody can tell from the job what such code does"


def print_plan(path: Path, kit: Path | None) -> int:
    """Print the page of the job at ``path``, by the rules of a site's ``kit`` or the default ones; 1: it is refused.

    Raises:
        BadInput: there is no such job, its plan cannot run, or the kit is no site's or not prepared.
    """
    manifest = Manifest(site="any")
    if kit is not None:
        require_kind(kit, "client")
        manifest = read_manifest(kit)
    follow_approvals(manifest)  # a plan may name code of others: nothing is imported that is not approved
    job = read_job(path)
    config = read_configuration(job, path)
    images = count_images(SiteFolder(Path(manifest.site_folder)), config) if manifest.site_folder else None
    checks = check_rules(manifest, config, job.sites, images)
    checks += [RuleCheck("code", one, "none that a job brings or names", False, FORESEEN) for one in job.code]
    table = plain_table("", "")
    table.show_header = False
    for title, text in describe_job(job, config, images):
        table.add_row(Text(title, style="bold"), text)
    console.print(table)
    rules = plain_table("rule", "the job asks for", "this site allows", "")
    for check in checks:
        verdict = Text("allowed", style="green") if check.passes else Text("REFUSED", style="bold red")
        rules.add_row(check.rule, check.requested, check.allowed, verdict)
    console.print(rules)
    refused = [check for check in checks if not check.passes]
    for check in refused:
        console.print(f"refused: {check.sentence}", soft_wrap=True)
    whose = f"the rules of {manifest.site} ({kit})" if kit else "the default rules; --kit KIT takes a site's own"
    console.print(f"{'refused' if refused else 'allowed'} by {whose}", soft_wrap=True)
    return int(bool(refused))
