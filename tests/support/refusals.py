"""What refused commands have in common: exit code 2, a message, and files that stay."""

from pathlib import Path

from fedmerit.files import LOCK


def refused(result, *words):
    """Exit code 2, and a message with these words."""
    assert result.exit_code == 2, result.output
    assert [word for word in words if word not in " ".join(result.stderr.split())] == [], result.stderr
    assert "Traceback" not in result.output


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``, except what says which process had it last."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def broken_rules(*arguments):
    """Return a sentence for each rule of a site's manifest that a plan breaks, by the arguments of `check_rules`."""
    from fedmerit_deploy.site_policy import check_rules

    return [check.sentence for check in check_rules(*arguments) if not check.passes]
