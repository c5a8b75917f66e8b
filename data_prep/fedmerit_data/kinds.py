"""The kinds of raw data that `prepare` reads, by name."""

from collections.abc import Mapping

from fedmerit.plugins import Catalogue
from fedmerit_data.readers import (
    drions_db,
    drishti_gs1,
    fundus_rois,
    generic,
    i2cvb,
    ichallenge,
    msd_prostate,
    nci_isbi,
    nvflare_prostate,
    promise12,
    prostate158,
    prostate_multisite,
    prostatex,
    refuge,
    riga,
    rim_one_r3,
)
from fedmerit_data.readers.kind import Kind, disc_only
from fedmerit_data.synthetic import fundus, prostate

GENERIC = "generic"
_OWN: Mapping[str, Kind] = {
    "prostate-multisite": prostate_multisite.KIND,
    "promise12": promise12.KIND,
    "nci-isbi-2013": nci_isbi.KIND,
    "i2cvb": i2cvb.KIND,
    "msd-prostate": msd_prostate.KIND,
    "prostatex": prostatex.KIND,
    "prostate158": prostate158.KIND,
    "nvflare-prostate": nvflare_prostate.KIND,
    "fundus-rois": fundus_rois.KIND,
    "fundus-rois-disc": disc_only(fundus_rois.KIND),
    "drishti-gs1": drishti_gs1.KIND,
    "drishti-gs1-disc": disc_only(drishti_gs1.KIND),
    "refuge": refuge.KIND,
    "refuge-disc": disc_only(refuge.KIND),
    "riga-binrushed": riga.BINRUSHED,
    "riga-magrabia": riga.MAGRABIA,
    "riga-messidor": riga.MESSIDOR,
    "rim-one-r3": rim_one_r3.KIND,
    "drions-db": drions_db.KIND,
    "ichallenge": ichallenge.KIND,
    GENERIC: generic.generic_kind(),
    "synthetic-prostate": prostate.KIND,
    "synthetic-fundus": fundus.KIND,
}
KINDS: Catalogue[Kind] = Catalogue(
    "readers", _OWN, lambda part: isinstance(part, Kind), "a fedmerit_data.readers.kind.Kind"
)
