"""Alerts about a federation: a message to a webhook, or a mail by the system's sendmail.

An alert is sent once, when something changes: a site falls silent or is back, a job ends, the server is out of reach.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

from fedmerit.errors import BadInput, printable

if TYPE_CHECKING:
    from fedmerit_deploy.status import FederationState

TIMEOUT = 10.0  # seconds that a webhook, or sendmail, may take
SENDMAIL = ("sendmail", "/usr/sbin/sendmail", "/usr/lib/sendmail")
OUT_OF_REACH = 120.0  # seconds without an answer of the server, before an alert says so


@dataclass(frozen=True)
class Receivers:
    """A list of who is to be alerted.

    Raises:
        BadInput: a webhook is no http or https address, an address is no mail address, or there is no sendmail here.
    """

    webhook: str = ""  # address to which {"text": ...} is posted, as Slack, Mattermost and Teams take it
    mail: str = ""  # address

    def __post_init__(self) -> None:
        if self.webhook and not self.webhook.startswith(("https://", "http://")):
            raise BadInput(f"--webhook {self.webhook}: expected an address that begins with https:// or http://")
        if self.mail and ("@" not in self.mail or any(letter.isspace() for letter in self.mail)):
            raise BadInput(f"--mail {self.mail}: expected one mail address, such as it@hospital.example")
        if self.mail and _sendmail() is None:
            raise BadInput("--mail: this machine has no sendmail; install one (Debian, Ubuntu: apt install msmtp-mta)")

    def __bool__(self) -> bool:
        return bool(self.webhook or self.mail)

    def send(self, text: str) -> list[str]:
        """Send one line of text to all receivers; return what failed, in words."""
        text, failed = printable(text), []
        if self.webhook:
            try:
                head = {"Content-Type": "application/json"}
                with urlopen(Request(self.webhook, json.dumps({"text": text}).encode(), head), timeout=TIMEOUT):
                    pass
            except (OSError, ValueError) as error:
                failed.append(f"webhook: {type(error).__name__}: no alert was sent")  # the address is a secret
        if self.mail:
            message = EmailMessage()
            message["Subject"], message["To"] = f"FedMerit: {text[:120]}", self.mail
            message.set_content(text + "\n")
            try:
                command = [str(_sendmail()), "-t", "-i"]
                subprocess.run(command, input=message.as_bytes(), check=True, capture_output=True, timeout=TIMEOUT)
            except (OSError, subprocess.SubprocessError) as error:
                failed.append(f"sendmail: {type(error).__name__}: no mail was sent to {self.mail}")
        return failed


def _sendmail() -> str | None:
    return next(filter(None, map(shutil.which, SENDMAIL)), None)


@dataclass
class Changes:
    """A memory of a federation between two looks, from which follows what is new."""

    silent: dict[str, str] = field(default_factory=dict)  # by site that is silent or gone: in what words
    running: dict[str, str] = field(default_factory=dict)  # by job that has not ended: its name
    last_answer: float | None = None  # of the server, in seconds since 1970
    is_out_of_reach: bool = False  # whether that was reported

    def of(self, state: "FederationState") -> list[str]:
        """Return what changed since the last look, a line each; nothing at the first look."""
        is_first = self.last_answer is None
        silent = {name: site.connection for name, site in state.sites.items() if site.connection != "connected"}
        ended = {str(job["job_id"]): str(job["status"]) for job in state.jobs if _has_ended(str(job["status"]))}
        running = {str(job["job_id"]): str(job.get("name", job.get("job_name", ""))) for job in state.jobs
                   if str(job["job_id"]) not in ended}  # fmt: skip
        lines = [*self._sites(silent, state), *self._jobs(ended)]
        if self.is_out_of_reach:
            lines.append("the server answers again")
        self.silent, self.running = silent, running
        self.last_answer, self.is_out_of_reach = state.when, False
        return [] if is_first else lines

    def without_answer(self, problem: str, now: float) -> list[str]:
        """Return a line if the server has not answered for `OUT_OF_REACH`, once."""
        if self.is_out_of_reach or self.last_answer is None or now - self.last_answer < OUT_OF_REACH:
            return []
        self.is_out_of_reach = True
        return [f"the server does not answer: {problem}"]

    def _sites(self, silent: dict[str, str], state: "FederationState") -> Iterator[str]:
        for name, words in silent.items():
            if name not in self.silent:
                yield f"{name}: {words}"
        for name in self.silent:
            if name not in silent and name in state.sites:
                yield f"{name}: connected again"

    def _jobs(self, ended: dict[str, str]) -> Iterator[str]:
        for job, name in self.running.items():
            if job in ended:
                yield f"job {name or job} ({job}) ended: {ended[job]}"


def _has_ended(status: str) -> bool:
    from fedmerit_deploy.session import ENDED  # it takes a second to import NVFlare

    return status.startswith(ENDED)
