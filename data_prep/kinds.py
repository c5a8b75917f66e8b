"""The raw layouts that `prepare` knows, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from data_prep import synthetic_fundus, synthetic_prostate
from data_prep.frame import Normalise, normalise_mri, normalise_photo
from data_prep.raw import Decoded, RawCase, RawSite
from data_prep.readers import fundus_rois, prostate_multisite


@dataclass(frozen=True)
class Kind:
    """One raw layout: how to find its sites, decode a case and normalise it, and where its data come from.

    ``generate`` writes synthetic raw files in the layout; ``field_of_view`` is the default in mm, `None` for
    whole frames (of layouts without millimetres).
    """

    description: str
    task: str
    labels: tuple[str, ...]
    channels: int
    find_sites: Callable[[Path], list[RawSite]]
    decode: Callable[[RawCase], Decoded]
    normalise: Normalise
    field_of_view: float | None
    licence: str
    citation: str | None = None
    generate: Callable[[Path, int, int | None], None] | None = None

    @property
    def needs_source(self) -> bool:
        """Whether raw files have to be there before; generated kinds write their own."""
        return self.generate is None


PROSTATE = Kind(
    description="multi-site prostate MRI release: <site>/CaseNN.nii.gz + CaseNN_segmentation.nii.gz",
    task="prostate",
    labels=("prostate",),
    channels=1,
    find_sites=prostate_multisite.find_sites,
    decode=prostate_multisite.decode,
    normalise=normalise_mri,
    field_of_view=120.0,
    licence="research use; the terms of PROMISE12, NCI-ISBI 2013 and I2CVB hold for their cases",
    citation="Liu et al., MS-Net: multi-site network for improving prostate segmentation with heterogeneous MRI "
    "data, IEEE TMI 2020",
)
FUNDUS = Kind(
    description="DoFE/FedDG fundus layout: <site>/{train,test}/ROIs/{image,mask}/*.png",
    task="fundus",
    labels=("disc", "cup"),
    channels=3,
    find_sites=fundus_rois.find_sites,
    decode=fundus_rois.decode,
    normalise=normalise_photo,
    field_of_view=None,
    licence="research use; the terms of the data set that each site's images come from hold",
    citation="Wang et al., DoFE: domain-oriented feature embedding for generalizable fundus image segmentation on "
    "unseen datasets, IEEE TMI 2020",
)
GENERATED = "generated, shows no patient; Apache-2.0 as FedMerit"

KINDS: Mapping[str, Kind] = {
    "prostate-multisite": PROSTATE,
    "fundus-rois": FUNDUS,
    "synthetic-prostate": replace(
        PROSTATE,
        description="six generated prostate MRI sites, site5 with an endorectal coil; no source needed",
        generate=synthetic_prostate.generate,
        licence=GENERATED,
        citation=None,
    ),
    "synthetic-fundus": replace(
        FUNDUS,
        description="six generated fundus sites, site5 dark and hazy; no source needed",
        generate=synthetic_fundus.generate,
        licence=GENERATED,
        citation=None,
    ),
}
