"""Whatever reads a file does so in one of the few places that bound it."""

import ast
import re
from pathlib import Path

import pytest
from readers import READERS

from fedmerit.errors import BadInput

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = [
    file
    for root in ("custom", "deploy", "data_prep", "evaluation", "cli")
    for file in sorted((ROOT / root).rglob("*.py"))
    if "fedmerit_lab" not in file.parts
]
READING = re.compile(
    r"(json\.loads?|tomllib\.loads?|yaml\.\w*load\w*|torch\.load|torch\.jit\.load|torch\.from_file|pd\.read_\w+|np\.load\w*|"
    r"np\.memmap|np\.from\w+|nib\.load|Image\.open|dcmread|ReadImage\w*|ImageFileReader|csv\.reader|csv\.DictReader|ZipFile|"
    r"tokenize\.open|pickle\.\w+|\.read_text|\.read_bytes|safetensors\.\w+|shelve\.\w+|marshal\.\w+)$"
)
BOUNDARY = {  # the places that look at sizes first
    "custom/fedmerit/files.py",
    "custom/fedmerit/tensor_files.py",
    "custom/fedmerit/schema/results.py",
    "custom/fedmerit/schema/site_folder.py",
}
ELSEWHERE = {  # by file: why it may read by itself
    "custom/fedmerit/schema/configuration/settings.py": "a table of this package",
    "custom/fedmerit/schema/declarations.py": "the text of an option",
    "cli/fedmerit_cli/options.py": "a table of this package",
    "custom/fedmerit/schema/configuration/options.py": "TOML of `read_text`",
    "custom/fedmerit/engines/resumption.py": "what it wrote itself",
    "custom/fedmerit/engines/script_sites.py": "the pipe to a process of its own",
    "custom/fedmerit/plugins.py": "a variable of the operator",
    "custom/fedmerit/plugin_references.py": "installed packages, and scripts that a person names",
    "custom/fedmerit/machine.py": "/proc and /sys",
    "custom/fedmerit/trust.py": "folders that this machine's user named",
    "custom/fedmerit/evidence/verification/results.py": "a table that `read_table` has read before",
    "custom/fedmerit/engines/nvflare/client_script.py": "the job's own script, which then runs; a pipe to its process",
    "custom/fedmerit/trainers/script/description.py": "the script of the job's author",
    "deploy/fedmerit_deploy/provisioning.py": "the operator's own project; requests by `read_bytes`",
    "deploy/fedmerit_deploy/revocation.py": "the kit of this machine; the list by `read_bytes`",
    "deploy/fedmerit_deploy/facts.py": "the kit of this machine",
    "deploy/fedmerit_deploy/membership.py": "the kit of this machine; the server's answer, of a few fields",
    "custom/fedmerit/trainers/monai/private_training.py": "random bytes of its own",
    "custom/fedmerit/trainers/monai/generators.py": "bytes of a hash of its own",
    "custom/fedmerit/site/step_evidence.py": "bytes of a hash of its own",
    "custom/fedmerit/trainers/script/model_forms.py": "arrays that the job's author names, no pickle",
    "custom/fedmerit/engines/nvflare/encryption.py": "keys that this machine wrote",
    "custom/fedmerit/engines/nvflare/executor.py": "the kit of this machine",
    "custom/fedmerit/engines/nvflare/poc.py": "logs that this machine wrote, and an example of NVFlare's",
    "custom/fedmerit/engines/nvflare/program.py": "a log that this machine wrote",
    "deploy/fedmerit_deploy/kits.py": "a copy of a mapping",
    "deploy/fedmerit_deploy/checks.py": "the kit of this machine",
    "deploy/fedmerit_deploy/processes.py": "a process number in the kit of this machine",
    "data_prep/fedmerit_data/readers/image_files.py": "the shape in the header of a volume, and what it wrote itself",
    "data_prep/fedmerit_data/spatial/dicom.py": "raw images, `require_sane` first",
    "data_prep/fedmerit_data/spatial/photographs.py": "raw images, pixels counted first",
    "data_prep/fedmerit_data/spatial/segmentations.py": "raw masks, `require_sane` first",
    "data_prep/fedmerit_data/spatial/structures.py": "raw contours, of at most `MOST_BYTES`",
    "data_prep/fedmerit_data/spatial/stacks.py": "raw images, `require_sane` first",
    "data_prep/fedmerit_data/spatial/unread_forms.py": "heads of raw files, without pixels",
    "data_prep/fedmerit_data/spatial/volumes.py": "raw images, `require_sane` first",
    "data_prep/fedmerit_data/tables.py": "the text of `read_bytes`",
    "evaluation/fedmerit_dossier/dossier.py": "a table of this package",
    "evaluation/fedmerit_evaluation/models/export.py": "what it wrote itself",
    "custom/fedmerit/engines/nvflare/start_scripts.py": "what NVFlare just wrote, and a script that its owner starts",
    "cli/fedmerit_cli/api.py": "the script that runs",
    "custom/fedmerit/engines/nvflare/controller.py": "results that this process writes",
    "custom/fedmerit/engines/site_errors.py": "logs of this machine's own sites",
    "custom/fedmerit/site/job_ledger.py": "the ledger that this site wrote",
    "data_prep/fedmerit_data/readers/inventory.py": "the index that it wrote itself",
    "data_prep/fedmerit_data/spatial/heads.py": "heads of raw files, without pixels; the pipe from its own process",
}


def reads(file):
    """The calls in a file that read another one."""
    text = file.read_text()
    if not re.search(READING.pattern.removesuffix("$"), text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and READING.search(ast.unparse(node.func)):
            yield f"{node.lineno}: {ast.unparse(node.func)}"


def test_every_reader_is_in_a_bounded_place():
    found = {file.relative_to(ROOT).as_posix(): list(reads(file)) for file in PRODUCT}
    other = {name: calls for name, calls in found.items() if calls and name not in BOUNDARY | ELSEWHERE.keys()}
    assert other == {}, "read by fedmerit.files or fedmerit.tensor_files, or say here why not"
    assert [name for name in ELSEWHERE if not found.get(name)] == [], "these read nothing any more"


@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 500, b"[" * 5000, b"{}", b"PK\x05\x06" + bytes(18)])
@pytest.mark.parametrize("name", READERS)
def test_every_reader_refuses_in_one_line(name, content, tmp_path):
    place, read = READERS[name]
    path = tmp_path / "folder" / place
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    refused = ""
    try:
        read(path)
    except BadInput as error:
        refused = str(error)
    assert "\n" not in refused
