"""job_ledger.jsonl: what jobs trained on a site's images, in a hash chain of the site's machine, across jobs.

Rules bound one update. The difference between updates of two jobs that differ only in their steps can show one image.
So the site notes every round of every job: the plan's digest, the model that it received, the images that it used. If
a job trains the same network by the same loss and optimizer as an earlier one, the two are *related*, and the later
needs the data manager's word. The ledger stays at the site.
"""

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import GENESIS, Ledger
from fedmerit.evidence.signatures import Signer
from fedmerit.files import record_hash
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.declarations import read
from fedmerit.schema.records import JOB_ALLOWED, JOB_BEGAN, JOB_TRAINED, JobEntry
from fedmerit.trainers.factory import list_sizes
from fedmerit.trainers.privacy_budget import Mechanism

JOB_LEDGER = "job_ledger.jsonl"  # in a site's kit, beside local/, whose files are sealed
# What makes two jobs unrelated, beside the sizes of all weights. All else a server could change a little: method and
# parameters, rounds, steps, epochs, fold, seed, batch size, learning rate, settings that a network does not use, ...
NETWORK = ("architecture", "in_channels", "labels")
SAME_OPTIMIZERS = {"adamw": "adam"}  # alike up to a weight decay


@dataclass(frozen=True)
class TrainedJob:
    """A job that trained on the site's images."""

    job: str  # its id
    plan: str  # SHA-256
    study: str
    day: str
    family: str  # as of `job_family`
    settings: Mapping[str, Any]  # as of `job_settings`
    rounds: int = 0  # trained


@dataclass
class JobHistory:
    """The jobs of a site's machine so far, and the data manager's words that no job has used."""

    jobs: list[TrainedJob] = field(default_factory=list)
    words: dict[str, int] = field(default_factory=dict)  # by digest of a plan: how many jobs
    # of rounds by DP-SGD, each once, by job, plan, round and received model
    mechanisms: dict[tuple[str, str, int, str], Mechanism] = field(default_factory=dict)
    rounds: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)  # by job, plan and received model

    def find(self, job: str, plan: str) -> TrainedJob | None:
        """Return the job with this id and plan, if it trained; None if it did not."""
        return next((one for one in self.jobs if (one.job, one.plan) == (job, plan)), None)

    def related(self, config: RunConfiguration) -> list[TrainedJob]:
        """Return the jobs that trained the same network as a plan by the same loss and optimizer, the last first."""
        return [one for one in reversed(self.jobs) if one.family == job_family(config)]

    def mechanisms_without(self, job: str, plan: str) -> list[Mechanism]:
        """Return the mechanisms of all rounds by DP-SGD but those of one job."""
        return [mechanism for key, mechanism in self.mechanisms.items() if key[:2] != (job, plan)]


class JobLedger:
    """The ledger of a site's machine.

    Args:
        path: the file.
        signer: of its records; None: they are not signed.
    """

    def __init__(self, path: Path, signer: Signer | None = None):
        self._chain = Ledger(path, signer)

    @property
    def path(self) -> Path:
        """The file."""
        return self._chain.path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from adding to the ledger, so what was looked up in it still holds."""
        with self.path.with_name(f".{self.path.name}.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def entries(self) -> Iterator[JobEntry]:
        """Yield the entries in order.

        Raises:
            BadInput: a line is none, or was changed, or one before it was taken out.
        """
        previous = GENESIS
        for line, record in enumerate(self._chain.records, start=1):
            entry = read(JobEntry, record, f"{self.path}, line {line}: not an entry of the ledger of jobs")
            content = {name: value for name, value in record.items() if name not in ("hash", "signature")}
            if entry.previous != previous or record_hash(content) != entry.hash:
                raise BadInput(
                    f"{self.path}, line {line}: was changed, or follows another line than was written before it; bring "
                    "the file back from a copy: without it this site cannot know what jobs trained on its images"
                )
            previous = entry.hash
            yield entry

    def history(self) -> JobHistory:
        """Return the jobs so far."""
        history = JobHistory()
        for entry in self.entries():
            if entry.work == JOB_ALLOWED:
                history.words[entry.plan] = history.words.get(entry.plan, 0) + entry.times
            elif entry.work == JOB_BEGAN:
                settings = json.loads(entry.settings)
                job = TrainedJob(entry.job, entry.plan, entry.study, entry.day, entry.family, settings)
                history.jobs.append(job)
                if history.words.get(entry.plan):
                    history.words[entry.plan] -= 1
            elif (begun := history.find(entry.job, entry.plan)) is not None:
                rounds = history.rounds.setdefault((entry.job, entry.plan, entry.received), [])
                rounds += [entry.round] * (entry.round not in rounds)
                if entry.noise:
                    key = (entry.job, entry.plan, entry.round, entry.received)
                    history.mechanisms[key] = Mechanism(entry.noise, entry.rate, entry.steps)
                place = history.jobs.index(begun)
                history.jobs[place] = TrainedJob(**vars(begun) | {"rounds": begun.rounds + 1})
        return history

    def allow(self, plan: str, times: int) -> None:
        """Record the data manager's word for jobs with this digest of their plan."""
        self._append(JOB_ALLOWED, plan=plan, times=times)

    def began(self, job: str, config: RunConfiguration) -> None:
        """Record that a job begins to train."""
        settings = json.dumps(job_settings(config), sort_keys=True)
        more = {"study": config.study, "family": job_family(config), "settings": settings}
        self._append(JOB_BEGAN, job=job, plan=config.digest, **more)

    def trained(
        self,
        job: str,
        config: RunConfiguration,
        round: int,
        received: str,
        images: int,
        folder: str,
        mechanism: Mechanism | None = None,
    ) -> None:
        """Record that a round of a job is trained, before anything of it leaves.

        Args:
            job: id.
            config: plan.
            round: number of the round.
            received: SHA-256 of the received model.
            images: training images.
            folder: digest of the prepared images.
            mechanism: of DP-SGD; None: the round is trained without.
        """
        used = {"received": received, "images": images, "folder": folder, **(vars(mechanism) if mechanism else {})}
        self._append(JOB_TRAINED, job=job, plan=config.digest, round=round, **used)

    def _append(self, work: str, **content: Any) -> None:
        entry = JobEntry.model_validate({"work": work, "day": str(datetime.now(UTC).date()), **content})
        self._chain.append(entry.content())


def job_family(config: RunConfiguration) -> str:
    """Return the digest of what related plans have in common."""
    plan = config.to_dict()
    if config.script:
        common: dict[str, Any] = {"tensors": plan["script"].get("tensors")}
    else:
        common = {name: plan["network"].get(name) for name in NETWORK}
        optimizer = config.training.optimizer
        common |= {"loss": config.training.loss, "optimizer": SAME_OPTIMIZERS.get(optimizer, optimizer)}
        common |= {"sizes": list_sizes(config.network)}
    return hashlib.sha256(json.dumps(common | {"task": config.task}, sort_keys=True).encode()).hexdigest()


def job_settings(config: RunConfiguration) -> dict[str, Any]:
    """Return the settings of a plan by which related jobs may differ, by name."""
    plan = config.to_dict()
    groups = [plan.pop(name, None) or {} for name in ("training", "network", "guard", "privacy", "parameters")]
    flat = {name: value for group in groups for name, value in group.items()}
    flat |= {name: value for name, value in plan.items() if not isinstance(value, dict)}
    return {name: flat[name] for name in sorted(flat)}


def list_differences(before: Mapping[str, Any], config: RunConfiguration) -> Sequence[str]:
    """Return the settings in which a plan differs from those of an earlier job, as "steps (312, 311)"."""
    now = json.loads(json.dumps(job_settings(config)))
    names = sorted({*before, *now})
    return [
        f"{name} ({before.get(name, 'none')}, {now.get(name, 'none')})"
        for name in names
        if before.get(name) != now.get(name)
    ]
