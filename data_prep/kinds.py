"""The raw layouts that `prepare` knows, by name."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from data_prep import synthetic_fundus, synthetic_prostate
from data_prep.frame import Normalise, normalise_mri, normalise_photo
from data_prep.photographs import disc_alone
from data_prep.raw import Decoded, RawCase, RawSite
from data_prep.readers import (
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
from fedmerit.errors import BadInput


@dataclass(frozen=True)
class Kind:
    """One raw layout: how to find its sites, decode a case and normalise it, and where its data come from.

    ``generate`` writes synthetic raw files in the layout; ``field_of_view`` is the default in mm, `None` for
    whole frames (of layouts without millimetres). ``crops`` are the crops to choose from, the default first:
    ``whole`` (or the field of view), and ``disc`` for photographs whose labels hold a disc.
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
    crops: tuple[str, ...] = ("whole",)

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
    crops=("whole", "disc"),
)
DRISHTI = replace(
    FUNDUS,
    description="Drishti-GS1: {Training,Test}/Images/*.png + {GT,Test_GT}/*/SoftMap; at least half of the experts",
    find_sites=drishti_gs1.find_sites,
    decode=drishti_gs1.decode,
    licence="research use",
    citation="Sivaswamy et al., Drishti-GS: retinal image dataset for optic nerve head (ONH) segmentation, IEEE ISBI "
    "2014",
    crops=("disc", "whole"),
)
REFUGE = replace(
    FUNDUS,
    description="REFUGE: Training400, Validation400 and Test400 + Disc_Cup_Masks, as one site",
    find_sites=refuge.find_sites,
    decode=refuge.decode,
    licence="research use",
    citation="Orlando et al., REFUGE challenge: a unified framework for evaluating automated methods for glaucoma "
    "assessment from fundus photographs, Medical Image Analysis 2020",
    crops=("disc", "whole"),
)
RIGA = replace(
    FUNDUS,
    description="RIGA, BinRushed: imageKprime.* and six experts' contours drawn on imageK-1.* to -6.*; majority",
    find_sites=riga.find_binrushed,
    decode=riga.decode,
    licence="the terms of the RIGA release hold",
    citation="Almazroa et al., Retinal fundus images for glaucoma analysis: the RIGA dataset, SPIE Medical Imaging "
    "2018",
    crops=("disc", "whole"),
)
DISC = Kind(
    description="DRIONS-DB, disc alone: {train,test}/{image,groundtruth}/image_NNN.jpg",
    task="fundus-disc",
    labels=("disc",),
    channels=3,
    find_sites=drions_db.find_sites,
    decode=drions_db.decode,
    normalise=normalise_photo,
    field_of_view=None,
    licence="research use",
    citation="Carmona et al., Identification of the optic nerve head with genetic algorithms, Artificial Intelligence "
    "in Medicine 2008",
    crops=("whole", "disc"),
)
GENERIC = "generic"
GENERATED = "generated, shows no patient; Apache-2.0 as FedMerit"


def generic_kind(labels: generic.LabelMap = generic.ANY, channels: int = 3, task: str = GENERIC) -> Kind:
    """The kind of anyone's own images, with a label map: name and mask values of each label.

    Photographs have 1 (grey) or 3 channels, volumes the numbers of each voxel.

    Raises:
        BadInput: the map, the number of channels or the name of the task is none that can be used.
    """
    generic.require_labels(labels)
    if not 1 <= channels <= 64:
        raise BadInput(f"channels {channels}: expected 1 (grey), 3 (colours) or the numbers of each voxel, up to 64")
    if not re.fullmatch(r"[A-Za-z][\w-]*", task):
        raise BadInput(f"task {task!r}: expected a letter, then letters, digits, _ or -")
    return Kind(
        description="your own images: <site>/{images,masks}, a Decathlon dataset.json, or pairs.csv",
        task=task,
        labels=tuple(name for name in labels if name != generic.IGNORE),
        channels=channels,
        find_sites=generic.find_sites,
        decode=partial(generic.decode, labels=labels, channels=channels),
        normalise=normalise_photo if channels == 3 else normalise_mri,
        field_of_view=None,
        licence="as the data's owner states",
        crops=("whole", "disc") if "disc" in labels else ("whole",),
    )


def _disc_alone(kind: Kind) -> Kind:
    """The same images for the disc alone."""
    return replace(
        kind,
        description=f"{kind.description}; disc alone",
        task=DISC.task,
        labels=DISC.labels,
        decode=partial(disc_alone, kind.decode),
        crops=DISC.crops,
    )


KINDS: Mapping[str, Kind] = {
    "prostate-multisite": PROSTATE,
    "promise12": replace(
        PROSTATE,
        description="PROMISE12, split into its hospitals: CaseNN.mhd/.raw + CaseNN_segmentation.mhd/.raw",
        find_sites=promise12.find_sites,
        decode=promise12.decode,
        licence="research use; cite the challenge",
        citation="Litjens et al., Evaluation of prostate segmentation algorithms for MRI: the PROMISE12 challenge, "
        "Medical Image Analysis 2014",
    ),
    "nci-isbi-2013": replace(
        PROSTATE,
        description="NCI-ISBI 2013: DICOM {Prostate-3T,PROSTATE-DIAGNOSIS}/<ID>/*/* + <ID>.nrrd",
        find_sites=nci_isbi.find_sites,
        decode=nci_isbi.decode,
        licence="research use; the terms of The Cancer Imaging Archive hold",
        citation="Bloch et al., NCI-ISBI 2013 challenge: automated segmentation of prostate structures, The Cancer "
        "Imaging Archive 2015, doi:10.7937/K9/TCIA.2015.zF0vlOPv",
    ),
    "i2cvb": replace(
        PROSTATE,
        description="I2CVB as published: DICOM {GE,Siemens}/<patient>/{T2W,GT/prostate}",
        find_sites=i2cvb.find_sites,
        decode=i2cvb.decode,
        licence="research use; the terms of I2CVB hold",
        citation="Lemaitre et al., Computer-aided detection and diagnosis for prostate cancer based on mono and "
        "multi-parametric MRI: a review, Computers in Biology and Medicine 2015",
    ),
    "msd-prostate": replace(
        PROSTATE,
        description="Medical Segmentation Decathlon Task05: {imagesTr,labelsTr}/prostate_NN.nii.gz",
        find_sites=msd_prostate.find_sites,
        decode=msd_prostate.decode,
        licence="CC BY-SA 4.0",
        citation="Antonelli et al., The Medical Segmentation Decathlon, Nature Communications 2022",
    ),
    "prostatex": replace(
        PROSTATE,
        description="PROSTATEx: DICOM Image/<ID>/<series> + zones Mask/<ID>.nrrd or DICOM-SEG",
        find_sites=prostatex.find_sites,
        decode=prostatex.decode,
        licence="research use; the terms of The Cancer Imaging Archive hold",
        citation="Litjens et al., Computer-aided detection of prostate cancer in MRI, IEEE TMI 2014; zones: Meyer et "
        "al., Towards patient-individual PI-RADS v2 sector map, IEEE ISBI 2019",
    ),
    "prostate158": replace(
        PROSTATE,
        description="Prostate158: {train,valid,test}/NNN/t2.nii.gz + t2_anatomy_reader1.nii.gz",
        find_sites=prostate158.find_sites,
        decode=prostate158.decode,
        licence="research use",
        citation="Adams et al., Prostate158: an expert-annotated 3T MRI dataset and algorithm for prostate cancer "
        "detection, Computers in Biology and Medicine 2022",
    ),
    "nvflare-prostate": replace(
        PROSTATE,
        description="NVFlare's prostate example: dataset_2D/<site>/{Image,Mask}/<case>/*.png + datalist_2D",
        find_sites=nvflare_prostate.find_sites,
        decode=nvflare_prostate.decode,
        field_of_view=None,
        licence="the terms of the data set that each site's images come from hold",
        citation=None,
    ),
    "fundus-rois": FUNDUS,
    "fundus-rois-disc": _disc_alone(FUNDUS),
    "drishti-gs1": DRISHTI,
    "drishti-gs1-disc": _disc_alone(DRISHTI),
    "refuge": REFUGE,
    "refuge-disc": _disc_alone(REFUGE),
    "riga-binrushed": RIGA,
    "riga-magrabia": replace(
        RIGA, description=RIGA.description.replace("BinRushed", "Magrabia"), find_sites=riga.find_magrabia
    ),
    "riga-messidor": replace(
        RIGA, description=RIGA.description.replace("BinRushed", "MESSIDOR"), find_sites=riga.find_messidor
    ),
    "rim-one-r3": replace(
        FUNDUS,
        description="RIM-ONE r3: {Healthy,Glaucoma and suspects}/Stereo Images + Average_masks; left halves",
        find_sites=rim_one_r3.find_sites,
        decode=rim_one_r3.decode,
        licence="the terms of the RIM-ONE r3 release hold",
        citation="Fumero et al., Interactive tool and database for optic disc and cup segmentation of stereo and "
        "monocular retinal fundus images, WSCG 2015",
        crops=("disc", "whole"),
    ),
    "drions-db": DISC,
    "ichallenge": replace(
        DISC,
        description="iChallenge, disc alone: JPEGImages/*.jpg + Annotations/*.png",
        find_sites=ichallenge.find_sites,
        decode=ichallenge.decode,
        citation=None,
    ),
    GENERIC: generic_kind(),
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
