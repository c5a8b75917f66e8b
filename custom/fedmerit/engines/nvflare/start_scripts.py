"""Startup kits whose start scripts import nothing from the folder in which they are started.

NVFlare's scripts run ``python3 -m``, and end ``PYTHONPATH`` with an empty entry if it was empty: both put the working
folder, which is the kit under a service manager or in a container, on ``sys.path``.
"""

import os
import shutil
import subprocess
from pathlib import Path

from nvflare.lighter.spec import Builder, Project, ProvisionContext

from fedmerit.child_processes import SAFE_PATH
from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import read_text

PYTHON_FOLDER = "python_folder"  # file in a kit's local/ folder: the folder of the python3 that starts the kit
OPEN_PATH = "PYTHONPATH=/local/custom:$PYTHONPATH"  # with an empty entry if the variable is empty
SCRIPTS = {"start.sh": "$DIR/sub_start.sh &", "sub_start.sh": "while true", "stop_fl.sh": "esac"}  # parts near the ends
CLOSED_PATH = "PYTHONPATH=/local/custom${PYTHONPATH:+:$PYTHONPATH}"
HEAD = f"""
# FedMerit: no module comes from the working folder; python3 is that which prepared this kit
export {SAFE_PATH}=1
CHOSEN="$( cd "$( dirname "${{BASH_SOURCE[0]}}" )/../local" && pwd )/{PYTHON_FOLDER}"
if [[ -r "$CHOSEN" ]]; then export PATH="$( cat "$CHOSEN" ):$PATH"; fi
"""
NO_SPACES = "NVFlare starts nothing in a folder whose path has spaces; move the kit"
REFUSAL = f"""
case "$( cd "$( dirname "${{BASH_SOURCE[0]}}" )" && pwd )" in
  *[[:space:]]*) echo "FedMerit: {NO_SPACES}" >&2; exit 1 ;;
esac
"""


class SafeStartBuilder(Builder):
    """A step of NVFlare's provisioning that closes the start scripts of all kits; it goes before the signatures."""

    def build(self, project: Project, ctx: ProvisionContext) -> None:
        """Change the scripts in startup/ that start Python, and what starts them."""
        for participant in project.get_all_participants():
            for script in sorted(Path(ctx.get_kit_dir(participant)).glob("*.sh")):
                text = script.read_text()
                if "python3 " in text:
                    script.write_text(closed(text, script))
                elif script.name == "start.sh":
                    first, newline, rest = text.partition("\n")
                    script.write_text(f"{first}{newline}{REFUSAL.lstrip()}{rest}")


def closed(text: str, script: Path) -> str:
    """Return a start script of NVFlare's that imports from no working folder.

    Raises:
        RunFailed: it changes ``PYTHONPATH`` in another way than NVFlare 2.9's, so another version wrote it.
    """
    first, newline, rest = text.partition("\n")
    rest = rest.replace(OPEN_PATH, CLOSED_PATH)
    if ":$PYTHONPATH" in rest.replace(CLOSED_PATH, ""):
        raise RunFailed(f"{script}: extends PYTHONPATH otherwise than NVFlare 2.9's; use the pinned version of NVFlare")
    return f"{first}{newline}{HEAD.lstrip()}{rest}"


def is_closed(kit: Path) -> bool:
    """Return whether the start script of a kit imports from no working folder.

    Raises:
        BadInput: it cannot be read.
    """
    text = read_text(kit / "startup" / "sub_start.sh")
    return HEAD.strip() in text and OPEN_PATH not in text


def require_scripts(kit: Path) -> None:
    """Raise `BadInput` naming a script in startup/ that would not run, such as one that was copied badly."""
    shell = shutil.which("bash") or shutil.which("bash", path=os.defpath)
    for name, part in SCRIPTS.items():
        path = kit / "startup" / name
        text = read_text(path)
        if "\r" in text:
            raise BadInput(f"{path}: has line ends of Windows, which no shell reads")
        is_whole = text.startswith("#!") and part in text
        if not is_whole or (shell and subprocess.run([shell, "-n", path], capture_output=True, check=False).returncode):
            raise BadInput(f"{path}: is not NVFlare's script, or only a part of it")
        if not os.access(path, os.X_OK):
            raise BadInput(f"{path}: may not be executed (chmod u+x {path})")
