"""What of a startup kit the coordinator sent, what this machine's operator decided, and who has shown either.

The coordinator's digest covers every file of a kit that arrives. Rules and policy are the hospital's: its own commands
write them, and seal them with a key of this machine, so no kit brings any.
"""

import hmac
import json
import os
import secrets
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fedmerit.engines.nvflare.start_scripts import PYTHON_FOLDER
from fedmerit.errors import BadInput, printable
from fedmerit.files import files_digest, read_bytes, write_atomically, write_json
from fedmerit.trust import state_folder
from fedmerit_deploy.kit_files import read_kind, read_name
from fedmerit_deploy.provisioning import VERSIONS_FILE
from fedmerit_deploy.revocation import REVOKED

SEAL, MACHINE_KEY = "seal.json", "machine.key"  # in local/ of a kit; in this user's state folder
KEY_BYTES = 32
MOST_BYTES = 1 << 20  # of a seal
SENT_ENDS = (".default", ".sample")  # of the names of files in local/ that come with a kit
SENT_NAMES = (VERSIONS_FILE, "signature.json")  # likewise
SENT_BESIDE = ("readme.txt", "signature.json")  # in the kit itself
UNSEALED = {SEAL, REVOKED, PYTHON_FOLDER}  # in local/: the seal, the authority's signed list, and where python3 lies
AGAIN = "`fedmerit deploy rules --kit KIT` shows the rules as they are, and seals them"


class Seal(BaseModel):
    """The decisions of an operator in a kit, sealed by a machine."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    participant: str
    policy: str  # SHA-256 of the files that the operator decides about
    accepted: tuple[str, ...] = ()  # what is looser than the defaults, in the words of the checks, and is meant
    mac: str = ""  # HMAC-SHA256 of the other fields, with the machine's key

    def signed(self, key: bytes) -> "Seal":
        """Return the seal with the code that only this machine's key gives."""
        content = json.dumps(self.model_dump(exclude={"mac"}), sort_keys=True).encode()
        return self.model_copy(update={"mac": hmac.new(key, content, sha256).hexdigest()})


def _machine_key(make: bool = False) -> bytes | None:
    """Return the key of this machine's user; None if there is none. ``make`` draws one then.

    Raises:
        BadInput: it cannot be written.
    """
    path = state_folder() / MACHINE_KEY
    with suppress(OSError, BadInput):
        if len(key := read_bytes(path, KEY_BYTES)) == KEY_BYTES:
            return key
    if not make:
        return None
    key = secrets.token_bytes(KEY_BYTES)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: file.write(key))
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    except OSError as error:
        raise BadInput(
            f"{path}: cannot be written ({error.strerror}); the key that seals this machine's rules lies there: set "
            "XDG_STATE_HOME to a folder of this user's that stays"
        ) from error
    return key


def read_seal(kit: Path) -> Seal | None:
    """Return the seal in a kit, if this machine made it for this participant; None otherwise."""
    key = _machine_key()
    try:
        seal = Seal.model_validate_json(read_bytes(kit / "local" / SEAL, MOST_BYTES))
    except (OSError, BadInput, ValidationError):
        return None
    is_ours = key is not None and hmac.compare_digest(seal.signed(key).mac, seal.mac)
    return seal if is_ours and seal.participant == read_name(kit) else None


def seal(kit: Path, accepted: Iterable[str] = ()) -> None:
    """Write the seal of the current rules and policy in a kit, with what is ``accepted`` though it is loose."""
    key = _machine_key(make=True)
    assert key is not None
    sealed = Seal(participant=read_name(kit), policy=_policy_digest(kit), accepted=tuple(sorted({*accepted})))
    write_json(kit / "local" / SEAL, sealed.signed(key).model_dump(mode="json"))


def is_as_sealed(kit: Path) -> bool:
    """Return whether rules and policy of a kit are as this machine sealed them."""
    sealed = read_seal(kit)
    return sealed is not None and sealed.policy == _policy_digest(kit)


def require_no_brought_policy(kit: Path) -> None:
    """Raise `BadInput` naming a file in a kit, not sealed by this machine, that no coordinator's kit has.

    What the coordinator sent has to be regular files, sealed or not.
    """
    _sent_files(kit)
    if read_seal(kit) is not None:
        return
    if brought := sorted(path.relative_to(kit).as_posix() for path in _files(kit) if not _is_sent(kit, path)):
        names = ", ".join(brought[:5]) + (", ..." if len(brought) > 5 else "")
        raise BadInput(
            f"{kit}: holds {names}, which neither the coordinator's `deploy init` nor a command of this user on this "
            "machine wrote; a kit brings no rules and no code. If it came so, do not start it: ask the coordinator for "
            "the kit again. If it was prepared before, by another user or a machine that is gone, move these files away"
        )


def kit_digest(kit: Path) -> str:
    """Return the SHA-256 of what the coordinator sent: every file of the kit except keys.

    Of a kit that this machine sealed, the files that its operator and its runs wrote do not count. Keys have to be
    those of the certificates. A shell gives the same in a new kit: ``find . -type f ! -name '*.key' | sed 's/^..//' |
    LC_ALL=C sort | xargs sha256sum | sha256sum``. NVFlare signs no kit that has no keys for encryption, and then some
    files, by a certificate in the same kit: only a digest that comes another way shows that a kit was changed.

    Raises:
        BadInput: a file is a link, is no regular file, or has a name with which a line of the digest is not its own.
    """
    read_kind(kit)
    return files_digest(kit, [path for path in _sent_files(kit) if path.suffix != ".key"])


def require_digest(kit: Path, digest: str) -> None:
    """Raise `BadInput` naming both if a kit does not have this `kit_digest`."""
    wanted = "".join(digest.split()).lower()
    if (actual := kit_digest(kit)) != wanted:
        further = sorted(path.relative_to(kit).as_posix() for path in _files(kit) if not _is_sent(kit, path))
        names = "" if read_seal(kit) else ", ".join(further[:3])
        beside = f", among them {names}, which no new kit has," if names else ""
        raise BadInput(
            f"{kit}: its files{beside} have SHA-256 {actual}, the coordinator names {digest:.100}; do not start it: "
            "ask the coordinator for the kit, and for its SHA-256, again"
        )


def grouped(digest: str) -> str:
    """Return a digest in groups of four digits, to be read out."""
    return " ".join(digest[place : place + 4] for place in range(0, len(digest), 4))


def _files(kit: Path) -> Collection[Path]:
    """Return all files of a kit, links included; what it holds may lie in folders that no command made."""
    return [
        Path(place, name)
        for place, folders, names in os.walk(kit)
        for name in (*names, *(folder for folder in folders if os.path.islink(os.path.join(place, folder))))
    ]


def _sent_files(kit: Path) -> list[Path]:
    """Return the files of a kit that the coordinator sent: of one that this machine did not seal, all.

    Raises:
        BadInput: one is a link, whose target can be exchanged, is no regular file, or has control characters or a
            backslash in its name.
    """
    sealed = read_seal(kit) is not None
    files = [path for path in _files(kit) if not sealed or _is_sent(kit, path)]
    for path in files:
        name = path.relative_to(kit).as_posix()
        if path.is_symlink() or not path.is_file() or not name.isprintable() or "\\" in name:
            raise BadInput(
                f"{kit}: {printable(name)}: expected a regular file with a plain name, as `deploy init` writes; do not "
                "start it: ask the coordinator for the kit again"
            )
    return files


def _is_sent(kit: Path, path: Path) -> bool:
    """Return whether a new kit has a file of this name."""
    folder, *rest = path.relative_to(kit).parts
    if folder == "local" and len(rest) == 1:
        return rest[0].endswith(SENT_ENDS) or rest[0] in SENT_NAMES
    return folder == "startup" or (not rest and folder in SENT_BESIDE)


def _policy_digest(kit: Path) -> str:
    """Return the SHA-256 of the files in local/ that the operator decides about."""
    local = [path for path in _files(kit) if (kit / "local") in path.parents]
    return files_digest(kit, [path for path in local if not _is_sent(kit, path) and path.name not in UNSEALED])
