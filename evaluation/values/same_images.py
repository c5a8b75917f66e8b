"""Which sites train on the same images: as they enrolled, or as their prepared folders on this machine say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.results.ledger_rounds import of_rounds
from fedmerit.files import sha256
from fedmerit.records.ledger import digest_of_texts
from fedmerit.training.data import SiteFolder, open_sites


def fingerprints(run: Path, info: Mapping[str, Any]) -> dict[str, str]:
    """By site, a text that only sites with the same training images share; of whom nothing is known, none.

    Args:
        run: a run folder.
        info: its run.json.

    Raises:
        BadInput: the run's ledger is none.
    """
    if enrolled := _enrolled(run):
        return enrolled
    root = Path(str(info.get("sites_folder")))
    if not root.is_dir():
        return {}
    return {site.name: _prepared(site) for site in open_sites(root, info["sites"])}


def _enrolled(run: Path) -> dict[str, str]:
    """The digest of the digests of each site's cases, of those that enrolled."""
    return of_rounds(
        run,
        lambda record: [
            (str(site), str(one["fingerprint"])) for site, one in record.get("guard", {}).get("enrolled", {}).items()
        ],
    )


def _prepared(site: SiteFolder) -> str:
    checksums: Mapping[str, str] = site.info.get("checksums", {})
    files = [case.image_file for case in site.cases("training")]
    return digest_of_texts(sorted(checksums.get(str(file.relative_to(site.path))) or sha256(file) for file in files))
