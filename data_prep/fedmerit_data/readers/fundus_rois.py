"""Reader of the DoFE/FedDG fundus layout: ``<site>/{train,test}/ROIs/{image,mask}/*.png``."""

from pathlib import Path

from fedmerit_data.raw_cases import (
    RawCase,
    RawSite,
    add_left_out,
    find_site_folders,
    list_files,
    list_visible,
    note_file,
    pair_files,
)
from fedmerit_data.readers.kind import fundus_kind
from fedmerit_data.spatial.photographs import EYE, decode_rings


def find_sites(source: Path) -> list[RawSite]:
    """Every site below ``source`` sorted by name; the release's own train and test folders are pooled."""
    folders, strays = find_site_folders(source, "one folder per site with {train,test}/ROIs/{image,mask}/*.png")
    return add_left_out([_read_site(folder) for folder in folders], strays)


def _read_site(folder: Path) -> RawSite:
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    left_out = []
    places = {
        folder / part / "ROIs" / kind: found
        for part in ("train", "test")
        for kind, found in (("image", images), ("mask", masks))
    }
    for place, found in places.items():
        for path in list_visible(place) if place.is_dir() else ():
            if path.suffix.lower() == ".png":
                note_file(found, path.stem, path)
            else:
                left_out.append((path.relative_to(folder).as_posix(), "not a .png"))
    for path in list_files(folder):
        if path.parent not in places and not any(place.is_dir() and place.is_relative_to(path) for place in places):
            left_out.append((path.relative_to(folder).as_posix(), "not in {train,test}/ROIs/{image,mask}"))
    cases = (
        # Both eyes of a patient, NAME-L and NAME-R, are one patient.
        RawCase(case, f"{folder.name}-{EYE.sub('', case)}", image, mask)
        for case, image, mask in pair_files(images, masks, folder)
    )
    return RawSite(folder.name, tuple(cases), tuple(left_out))


KIND = fundus_kind(
    description="DoFE/FedDG fundus layout: <site>/{train,test}/ROIs/{image,mask}/*.png",
    find_sites=find_sites,
    decode=decode_rings,
    crops=("whole", "disc"),
    licence="research use; the terms of the data set that each site's images come from hold",
    citation="Wang et al., DoFE: domain-oriented feature embedding for generalizable fundus image segmentation on "
    "unseen datasets, IEEE TMI 2020",
)
