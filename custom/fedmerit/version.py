"""Which FedMerit this is: its version, and the commit of the code that runs."""

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

UNKNOWN = "unknown"
NOT_INSTALLED = "not installed"
PACKAGES = ("fedmerit", "nvflare", "monai", "torch", "numpy")  # that results depend on


@cache
def package_version(package: str = "fedmerit") -> str:
    """Return the version of an installed package; `NOT_INSTALLED` if there is none, as when a job brings its code."""
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of `PACKAGES` by name; "not installed" if there is none."""
    return {name: package_version(name) for name in PACKAGES} | {"python": platform.python_version()}


def install_advice(extra: str = "") -> str:
    """Return the words that say how to install FedMerit, with one of its extras. No package index has the name."""
    part = f"[{extra}]" if extra else ""
    return (
        f"install it with `pip install -e '.{part}'` in a checkout, or `pip install \"$(echo fedmerit-*.whl){part}\"`"
    )


@cache
def code_commit() -> str:
    """Commit of the code that runs: of the checkout that it lies in, ``-dirty`` if files differ from it.

    Of an installed package it is the commit that its version names, and "unknown" if that names none.
    """
    folder = Path(__file__).parent
    asked = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        tracked = subprocess.run([*asked[:3], "ls-files", "--error-unmatch", __file__], capture_output=True)
        if tracked.returncode == 0:
            return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        pass  # no git, or no checkout
    local = package_version().partition("+")[2]
    return next((part[1:] for part in local.split(".") if part.startswith("g")), UNKNOWN)
