"""Alerts about a federation: a message to a webhook, or a mail by the system's sendmail."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from email.message import EmailMessage
from urllib.request import Request, urlopen

from fedmerit.errors import BadInput, printable

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
