"""Which sites train on the same images: as they enrolled, or as their prepared folders on this machine say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput
from fedmerit.files import sha256
from fedmerit.records.ledger import Ledger, digest_of_texts
from fedmerit.training.data import SiteFolder, open_sites


def fingerprints(run: Path, info: Mapping[str, Any]) -> dict[str, str]:
    """By site, a text that only sites with the same training images share; of whom nothing is known, none.

    Args:
        run: a run folder.
        info: its run.json.

    Raises:
        BadInput: the run's ledger is none.
    """
    if enrolled := _enrolled(run / "ledger.jsonl"):
        return enrolled
    root = Path(str(info.get("sites_folder")))
    if not root.is_dir():
        return {}
    return {site.name: _prepared(site) for site in open_sites(root, info["sites"])}


def _enrolled(path: Path) -> dict[str, str]:
    """The digest of the digests of each site's cases, of those that enrolled."""
    if not path.exists():
        return {}
    try:
        records = Ledger(path).records
        told = [record.get("guard", {}).get("enrolled", {}) for record in records]
        return {str(site): str(one["fingerprint"]) for of_round in told for site, one in of_round.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path}: not a ledger of rounds ({error}); check it with `fedmerit verify`") from error


def _prepared(site: SiteFolder) -> str:
    checksums: Mapping[str, str] = site.info.get("checksums", {})
    files = [case.image_file for case in site.cases("training")]
    return digest_of_texts(sorted(checksums.get(str(file.relative_to(site.path))) or sha256(file) for file in files))
