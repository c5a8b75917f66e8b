"""Refuses private words in code, help texts, report and docs; docs/glossary.md has the terms to use instead.

Run by `make check`; arguments are files or folders to look at instead of all. Identifiers count by their parts:
``told_heads`` has the word "told".
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOOKED_AT = (
    "README.md",
    "CONTRIBUTING.md",
    "docs",
    "custom",
    "data_prep",
    "evaluation",
    "cli",
    "jobs",
    "deploy",
    "notebooks",
    "tests",
)
ENDINGS = (".py", ".pyi", ".md", ".j2", ".toml", ".json", ".yaml", ".yml", ".ipynb", ".sh", ".csv")

INSTEAD = {  # a pattern, matched between letters, whatever their case: what to write
    "in the place of": "instead of",
    "anew": "again",
    "whoever": "the site, the admin, the file: name it",
    "alone": "only X, locally, local-only",
    "told": "reports, prints; significantly different; a head that a site acknowledged",
    "it is said|is said": "reports, prints",
    "(?:goes?|going|went) on(?! [a-z]+ing)": "continues, resumes",
    "parted by": "separated by",
    "dealt|deal the": "split, partitioned",
    "by hand": "explicitly, manually",
    "takes? home|taken home|takes_home|taken_home": "receives (the final model)",
    "as it is": "unchanged",
    "stands? in": "is in",
    "so that it holds": "so it holds",
    "but for": "except",
    "(?<!noise )(?<!noise_)ceilings?": "noise ceiling",
    "stepped up": "Spearman-Brown corrected",
    "redrawn": "bootstrap resampled",
    "worlds?": "scenario",
    "planted": "known-answer (scenario), simulated (attack)",
    "(?<!ground )(?<!ground-)(?<!ground_)truths?": "ground truth, reference values",
    "evenest": "lowest dispersion",
    "kindest": "best worst-case",
    "astray": "misallocated",
    "made[- _]up": "synthetic",
    "hindrances?": "insufficient data",
    "ride[sn]? for free": "free rider",
    "(?<!free )(?<!free-)(?<!free_)(?<!free)riders?": "free rider",
    "accused|accusations?": "flagged, false positive",
    "earners?": "reward group",
    "patience": "timeout",
    "last words": "closing timeout",
    "bells?": "wake-up",
    "deaf": "signals blocked",
    "carried along": "one-round reconstruction",
    "in[-_]run": "multi-round reconstruction",
    "others[_ ]lose": "leave-one-out loss",
    "own[_ ]part": "own update",
    "finishers?": "final model selection",
    "talking": "logging",
    "handed on": "exported",
}
EXCEPTIONS: dict[tuple[str, str], str] = {  # (file, text of the match): why it may be there
    ("data_prep/fedmerit_data/readers/prostate_dicom.py", "truth"): "in file names of the release",
    ("tests/fedmerit_data/layouts_prostate.py", "truth"): "likewise",
    ("custom/fedmerit/engines/nvflare/script_recipe.py", "patience"): "an argument of NVFlare's",
    ("docs/from_fedavg_recipe.md", "patience"): "likewise",
    ("tests/fedmerit_cli/test_runs.py", "patience"): "an option that does not exist",
    ("tests/fedmerit/engines/nvflare/test_script_recipe.py", "world"): "torch.distributed's",
    ("tests/support/oracles_values.py", "in_run"): "a key of published numbers",
    ("tests/support/oracles_values.py", "others_lose"): "likewise",
}
WORD = re.compile(
    "|".join(f"(?P<w{i}>(?<![A-Za-z])(?:{pattern})(?![A-Za-z]))" for i, pattern in enumerate(INSTEAD)), re.I
)


def findings(file: Path) -> list[str]:
    """A line for every private word of a file."""
    name = file.relative_to(ROOT).as_posix()
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        for match in WORD.finditer(line):
            if (name, match.group().lower()) not in EXCEPTIONS:
                instead = list(INSTEAD.values())[int((match.lastgroup or "w0")[1:])]
                found.append(f"{name}:{number}: {match.group()!r}; write: {instead}")
    return found


def main(asked: list[str]) -> int:
    """Print what is found in the tracked files below ``asked``; 1 if there is any."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *(asked or LOOKED_AT)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    files = [ROOT / name for name in listed if name.endswith(ENDINGS) and (ROOT / name).is_file()]
    files = [file for file in files if file != Path(__file__)]
    found = [line for file in files for line in findings(file)]
    print("\n".join(found), end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
