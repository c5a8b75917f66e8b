"""What commands load while they work."""

import subprocess
import sys

import pytest

CODE = """
import sys
from fedmerit_cli.main import app
code = app(sys.argv[1:], standalone_mode=False)
print(code or 0, *{name.split(".")[0] for name in sys.modules})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        ("--help", {"torch", "monai", "nvflare", "pandas", "numpy"}),
        ("methods", {"torch", "numpy", "monai", "nvflare", "pandas", "scipy", "matplotlib"}),
        ("methods fedce", {"torch", "numpy", "monai", "nvflare", "pandas", "scipy", "matplotlib"}),
        ("check SITES", {"torch", "monai", "nvflare", "matplotlib"}),
        ("report RUN --no-images --out REPORT", {"torch", "monai", "nvflare"}),
        ("report RUN --no-images --out REPORT --site site1", {"torch", "monai", "nvflare"}),
        ("verify RUN", {"monai", "nvflare", "matplotlib"}),  # the guard, replayed, takes scipy for groups
    ],
)
def test_a_command_loads_only_what_it_uses(arguments, left, trained, sites, tmp_path):
    places = {"RUN": trained(guard="on"), "SITES": sites, "REPORT": tmp_path / "report"}
    given = [str(places.get(text, text)) for text in arguments.split()]
    done = subprocess.run([sys.executable, "-c", CODE, *given], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout.splitlines()[-1].split()[1:]) & left
