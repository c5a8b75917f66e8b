"""Which sites train on the same images: as they enrolled, or as their prepared folders on this machine say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.results.ledger_rounds import of_rounds
from fedmerit.files import sha256
from fedmerit.guard.earners import sharing_cases
from fedmerit.training.data import SiteFolder, open_sites


def sharing(run: Path, info: Mapping[str, Any]) -> dict[str, set[str]]:
    """By site, the sites of which each has half of the other's training cases or more; of whom nothing is known, none.

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
    sites = open_sites(root, info["sites"])
    shared = sharing_cases([_cases(site) for site in sites]).tolist()
    return {
        site.name: {other.name for other, both in zip(sites, row, strict=True) if both}
        for site, row in zip(sites, shared, strict=True)
    }


def _enrolled(run: Path) -> dict[str, set[str]]:
    """Of those that enrolled; in ledgers of before, those of which all cases were the same."""
    told = of_rounds(
        run,
        lambda record: [
            (str(site), (str(one["fingerprint"]), {*one.get("shares_with", ())}))
            for site, one in record.get("guard", {}).get("enrolled", {}).items()
        ],
    )
    return {
        site: {
            other
            for other, (its, with_it) in told.items()
            if other != site and (its == own or other in shared or site in with_it)
        }
        for site, (own, shared) in told.items()
    }


def _cases(site: SiteFolder) -> frozenset[str]:
    """Digests of its training cases' images."""
    checksums: Mapping[str, str] = site.info.get("checksums", {})
    files = [case.image_file for case in site.cases("training")]
    return frozenset(checksums.get(str(file.relative_to(site.path))) or sha256(file) for file in files)
