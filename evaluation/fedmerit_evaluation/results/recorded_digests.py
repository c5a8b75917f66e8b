"""The digests of site folders that run.json and a study's JSON file hold."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedmerit.errors import BadInput
from fedmerit.files import read_object

DIGESTS, SERVER_DIGESTS = "site_digests", "server_digests"


def read_recorded_digests(record: Path, part: str = DIGESTS) -> dict[str, str]:
    """What `study_folders.recorded_digests` gave when a study's JSON file was written, by site; {} if there is no file.

    Raises:
        BadInput: the file's part is something else.
    """
    found = read_object(record).get(part, {}) if record.exists() else {}
    try:
        return TypeAdapter(dict[str, str]).validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{record}: {part} is {first['input']!r:.60}: {first['msg']}") from None
