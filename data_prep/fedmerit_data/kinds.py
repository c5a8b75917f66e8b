"""The kinds of raw data that ``fedmerit prepare`` reads, by name."""

from collections.abc import Mapping

from fedmerit.plugins import Catalogue
from fedmerit_data.readers import generic, prostate, prostate_dicom, releases, riga
from fedmerit_data.readers.kind import Kind, disc_only
from fedmerit_data.synthetic import fundus as synthetic_fundus
from fedmerit_data.synthetic import prostate as synthetic_prostate

GENERIC = "generic"
_OWN: Mapping[str, Kind] = {
    "prostate-multisite": releases.PROSTATE_MULTISITE,
    "promise12": releases.PROMISE12,
    "nci-isbi-2013": prostate_dicom.NCI_ISBI,
    "i2cvb": prostate_dicom.I2CVB,
    "msd-prostate": releases.MSD_PROSTATE,
    "prostatex": prostate_dicom.PROSTATEX,
    "prostate158": releases.PROSTATE158,
    "nvflare-prostate": prostate.NVFLARE_PROSTATE,
    "fundus-rois": releases.FUNDUS_ROIS,
    "fundus-rois-disc": disc_only(releases.FUNDUS_ROIS),
    "drishti-gs1": releases.DRISHTI_GS1,
    "drishti-gs1-disc": disc_only(releases.DRISHTI_GS1),
    "refuge": releases.REFUGE,
    "refuge-disc": disc_only(releases.REFUGE),
    "riga-binrushed": riga.BINRUSHED,
    "riga-magrabia": riga.MAGRABIA,
    "riga-messidor": riga.MESSIDOR,
    "rim-one-r3": releases.RIM_ONE_R3,
    "drions-db": releases.DRIONS_DB,
    "ichallenge": releases.ICHALLENGE,
    "polypgen": releases.POLYPGEN,
    "polyp-pranet": releases.POLYP_FIVE,
    "tcga-lgg": releases.TCGA_LGG,
    "fets-2022": releases.FETS,
    "pi-cai": releases.PICAI,
    "mama-mia": releases.MAMA_MIA,
    "mnms": releases.MNMS,
    GENERIC: generic.generic_kind(),
    "synthetic-prostate": synthetic_prostate.KIND,
    "synthetic-fundus": synthetic_fundus.KIND,
}
KINDS: Catalogue[Kind] = Catalogue(
    "readers", _OWN, lambda part: isinstance(part, Kind), "a fedmerit_data.readers.kind.Kind"
)
