"""What a run on NVFlare and its operators say to each other.

The engine knows two hooks, and no package that provides them. `fedmerit_deploy` does, by entry points of the group
`GROUP`: `SitePolicy`, the rules of a hospital's machine, and `JobEvents`, what the server's machine knows and keeps.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedmerit.errors import BadInput
from fedmerit.files import read_object

if TYPE_CHECKING:  # an admin who only asks for the status need not load PyTorch
    from fedmerit.schema.configuration.run import RunConfiguration
    from fedmerit.site.job_ledger import JobLedger
    from fedmerit.site.policy import Manifest

GROUP = "fedmerit.operations"
PROGRESS = "fedmerit.progress"  # topic by which an admin asks the server's half of a job for its progress
NOTE = "fedmerit.note"  # topic by which an admin adds a line to the next record of the ledger
REPEATS = "fedmerit_repeats"  # in a job's meta.json, if it repeats another's run without a site: which, without whom
NO_SITE = "no site took it"  # why a job ended that no site took


class SitePolicy(Protocol):
    """The rules of one machine, made from its manifest and its ledger of jobs."""

    def check(self, plan: "RunConfiguration", sites: int, job: str = "") -> None:
        """Raise `BadInput` with every reason if the machine refuses a plan in which so many sites take part."""

    def note_training(self, plan: "RunConfiguration", job: str, round: int, received: str) -> None:
        """Note that a round is going to be trained; raise `BadInput` if the machine refuses the job by now."""


class JobEvents(Protocol):
    """A view of the server's machine: what it knows of sites and keeps of jobs, made from the folder of its kit."""

    def shut_out(self, site: str) -> str:
        """Return why a site may take no part any more; "" if it may."""

    def ended(self, job: str, records: Sequence[Mapping[str, Any]], error: BaseException | str, finished: bool) -> None:
        """Keep how a job ended: the ledger's records, the error that ended it or "", whether the run is complete."""


def site_policy(manifest: "Manifest", ledger: "JobLedger | None" = None) -> SitePolicy:
    """Return the rules of a machine; `BadInput` if no installed package provides them."""
    for entry in entry_points(group=GROUP, name="site_policy"):
        policy: SitePolicy = entry.load()(manifest, ledger)
        return policy
    raise BadInput(
        "the rules of this machine's manifest cannot be checked: no installed package provides them; install "
        "FedMerit's wheel here"
    )


def job_events(kit: Path) -> JobEvents | None:
    """Return the events of the server with the startup kit ``kit``; None if no installed package provides them."""
    for entry in entry_points(group=GROUP, name="job_events"):
        events: JobEvents = entry.load()(kit)
        return events
    return None


def read_repeats(workspace: Path) -> str:
    """Return `REPEATS` of the job in NVFlare's folder ``workspace`` of it; "" if it repeats none."""
    file = workspace / "meta.json"
    return str(read_object(file).get(REPEATS, "")) if file.exists() else ""


def absences(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return, by site, in how many rounds a run was without it, and why in the last of these.

    Only sites that lack in the last round, or in more than half of the rounds since they joined, are named.
    """
    absent = {}
    for site in sorted({site for record in records for site in (*record["participants"], *record["rejected"])}):
        first = max((place for place, one in enumerate(records) if site in one.get("joined", ())), default=0)
        counted = records[first:]  # a joined site counts from its joining
        without = [record for record in counted if site not in record["participants"]]
        if without and (without[-1] is records[-1] or 2 * len(without) > len(counted)):
            why = without[-1]["rejected"].get(site, "not asked")
            mentions = (one for one in reversed(records) if site in {*one["participants"], *one.get("left", ())})
            if (last := next(mentions, None)) and site not in last["participants"]:
                why = f"it left with round {last['round']}, before it took part in {last['left'][site]['rounds']}"
            absent[site] = (
                f"absent in {len(without)} of {len(counted)} rounds, last in round {without[-1]['round']}: {why}"
            )
    return absent
