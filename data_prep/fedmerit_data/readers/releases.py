"""Public releases: one row of `Layout` each, of where files, sites and patients are, with licence and citation.

The releases that need more than patterns have modules of their own.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from fedmerit.errors import BadInput
from fedmerit_data.raw_cases import Decoded, RawCase
from fedmerit_data.readers.kind import Kind, disc_kind, fundus_kind, photo_kind, prostate_kind
from fedmerit_data.readers.label_map import LabelMap
from fedmerit_data.readers.labelled_images import decode as decode_labelled
from fedmerit_data.readers.prostate import decode
from fedmerit_data.readers.release_layout import ANY, Layout, Table, by_column
from fedmerit_data.spatial.geometry import slice_volume
from fedmerit_data.spatial.photographs import EYE, decode_binary, decode_disc_index, decode_rings, decode_stereo
from fedmerit_data.spatial.volumes import read_volume

BELOW = "(.*/)?"  # pattern of any folders
NIFTI = r"\.nii(\.gz)?"
PICTURE = r"\.(?i:png|jpe?g|tiff?|bmp)"

MULTISITE_NAMES = ("BIDMC", "BMC", "HK", "I2CVB", "RUNMC", "UCL")
# Case numbers start again at some sites, so a patient is a site and a number.
PROSTATE_MULTISITE = prostate_kind(
    description="multi-site prostate MRI release: <site>/CaseNN.nii.gz + CaseNN_segmentation.nii.gz",
    find_sites=Layout(
        expected="one folder per site with CaseNN.nii.gz and CaseNN_segmentation.nii.gz",
        image=rf"(?i:(?P<case>case\d+){NIFTI})",
        masks={"mask": rf"(?i:(?P<case>case\d+)[ _-]*segmentation{NIFTI})"},
        strays={ANY: "not named CaseNN.nii.gz or CaseNN_segmentation.nii.gz"},
        aliases={"ISBI": "RUNMC", "ISBI_1.5": "BMC", "HCRUDB": "I2CVB", **{name: name for name in MULTISITE_NAMES}},
        case=str.capitalize,
    ).find_sites,
    decode=decode,
    licence="research use; the terms of PROMISE12, NCI-ISBI 2013 and I2CVB hold for their cases",
    citation="Liu et al., MS-Net: multi-site network for improving prostate segmentation with heterogeneous MRI "
    "data, IEEE TMI 2020",
)

# As the multi-site release lists the cases; those it does not list, of 00 to 49, are RUNMC's.
HOSPITALS = {"BIDMC": {0, *range(2, 13)}, "UCL": {1, *range(26, 38)}, "HK": {*range(38, 50)}}
REST, CASES = "RUNMC", range(50)


def _hospital(case: str, path: str, table: Table) -> str:
    number = int(case.removeprefix("Case"))
    if number not in CASES:
        raise BadInput(f"{path}: training cases are numbered 00 to 49; move it out of the source")
    return next((name for name, numbers in HOSPITALS.items() if number in numbers), REST)


PROMISE12 = prostate_kind(
    description="PROMISE12, split into its hospitals: CaseNN.mhd/.raw + CaseNN_segmentation.mhd/.raw",
    find_sites=Layout(
        expected="CaseNN.mhd and CaseNN_segmentation.mhd with their .raw files",
        image=rf"{BELOW}(?i:(?P<case>case\d+)\.mhd)",
        masks={"mask": rf"{BELOW}(?i:(?P<case>case\d+)_segmentation\.mhd)"},
        strays={
            rf"{BELOW}(?i:case\d+(_segmentation)?\.z?raw)": "its .mhd header is missing",
            ANY: "not named CaseNN or CaseNN_segmentation .mhd, .raw",
        },
        site=_hospital,
        case=str.capitalize,
    ).find_sites,
    decode=decode,
    licence="research use; cite the challenge",
    citation="Litjens et al., Evaluation of prostate segmentation algorithms for MRI: the PROMISE12 challenge, "
    "Medical Image Analysis 2014",
)

MSD_PROSTATE = prostate_kind(  # images of two channels, T2 and ADC; masks of zones 1 and 2
    description="Medical Segmentation Decathlon Task05: {imagesTr,labelsTr}/prostate_NN.nii.gz",
    find_sites=Layout(
        expected="imagesTr and labelsTr",
        site="MSD",
        image=rf"(Task05_Prostate/)?imagesTr/(?P<case>prostate_\d+){NIFTI}",
        masks={"mask": rf"(Task05_Prostate/)?labelsTr/(?P<case>prostate_\d+){NIFTI}"},
        strays={
            "(Task05_Prostate/)?imagesTs/[^/]+": "a test image, whose labels are not published",
            ANY: "no prostate_NN.nii.gz of imagesTr or labelsTr",
        },
    ).find_sites,
    decode=partial(decode, zones=2, channel=0),
    licence="CC BY-SA 4.0",
    citation="Antonelli et al., The Medical Segmentation Decathlon, Nature Communications 2022",
)

# The set numbers its patients through its own train, valid and test folders, which are pooled.
PROSTATE158 = prostate_kind(
    description="Prostate158: {train,valid,test}/NNN/t2.nii.gz + t2_anatomy_reader1.nii.gz",
    find_sites=Layout(
        expected="{train,valid,test}/NNN/t2.nii.gz and t2_anatomy_reader1.nii.gz",
        site="Prostate158",
        image=rf"{BELOW}(?P<case>\d+)/t2{NIFTI}",
        masks={"mask": rf"{BELOW}(?P<case>\d+)/t2_anatomy_reader1{NIFTI}"},
        strays={ANY: "not the T2 image or the first reader's anatomy"},
    ).find_sites,
    decode=partial(decode, zones=2),
    licence="research use",
    citation="Adams et al., Prostate158: an expert-annotated 3T MRI dataset and algorithm for prostate cancer "
    "detection, Computers in Biology and Medicine 2022",
)

FUNDUS_ROIS = fundus_kind(  # the release's own train and test folders are pooled
    description="DoFE/FedDG fundus layout: <site>/{train,test}/ROIs/{image,mask}/*.png",
    find_sites=Layout(
        expected="one folder per site with {train,test}/ROIs/{image,mask}/*.png",
        image=r"(train|test)/ROIs/image/(?P<case>[^/]+)\.(?i:png)",
        masks={"mask": r"(train|test)/ROIs/mask/(?P<case>[^/]+)\.(?i:png)"},
        strays={"(train|test)/ROIs/(image|mask)/[^/]+": "not a .png", ANY: "not in {train,test}/ROIs/{image,mask}"},
        patient=partial(EYE.sub, ""),
    ).find_sites,
    decode=decode_rings,
    crops=("whole", "disc"),
    licence="research use; the terms of the data set that each site's images come from hold",
    citation="Wang et al., DoFE: domain-oriented feature embedding for generalizable fundus image segmentation on "
    "unseen datasets, IEEE TMI 2020",
)

DRISHTI_GS1 = fundus_kind(
    description="Drishti-GS1: {Training,Test}/Images/*.png + {GT,Test_GT}/*/SoftMap; at least half of the experts",
    find_sites=Layout(
        expected="{Training,Test}/Images/drishtiGS_NNN.png and "
        "{Training/GT,Test/Test_GT}/drishtiGS_NNN/SoftMap/drishtiGS_NNN_{ODsegSoftmap,cupsegSoftmap}.png",
        site="Drishti-GS1",
        image=rf"{BELOW}(?P<case>drishtiGS_\d+)\.png",
        masks={
            "disc": rf"{BELOW}(?P<case>drishtiGS_\d+)_ODsegSoftmap\.png",
            "cup": rf"{BELOW}(?P<case>drishtiGS_\d+)_cupsegSoftmap\.png",
        },
        strays={ANY: "neither an image nor a soft map"},
    ).find_sites,
    decode=decode_binary,
    licence="research use",
    citation="Sivaswamy et al., Drishti-GS: retinal image dataset for optic nerve head (ONH) segmentation, IEEE ISBI "
    "2014",
)

REFUGE = fundus_kind(
    description="REFUGE: Training400, Validation400 and Test400 + Disc_Cup_Masks, as one site",
    find_sites=Layout(
        expected="Training400/{Glaucoma,Non-Glaucoma}/*.jpg, REFUGE-Validation400/*.jpg or Test400/*.jpg, and their "
        "masks in {Annotation-Training400,REFUGE-Validation400-GT,REFUGE-Test-GT}/Disc_Cup_Masks",
        site="REFUGE",
        image=rf"(?!{BELOW}Disc_Cup_Masks/){BELOW}(?P<case>[^/]+)\.(?i:jpg)",
        masks={"mask": rf"{BELOW}Disc_Cup_Masks/{BELOW}(?P<case>[^/]+)\.(?i:bmp|png)"},
        strays={
            f"{BELOW}Disc_Cup_Masks/.*": "not a .bmp or .png mask",
            ANY: "neither a .jpg image nor below Disc_Cup_Masks",
        },
    ).find_sites,
    decode=decode_rings,
    licence="research use",
    citation="Orlando et al., REFUGE challenge: a unified framework for evaluating automated methods for glaucoma "
    "assessment from fundus photographs, Medical Image Analysis 2020",
)

RIM_ONE_R3 = fundus_kind(  # stereo pairs of which the left half is annotated, and the average of two experts' masks
    description="RIM-ONE r3: {Healthy,Glaucoma and suspects}/Stereo Images + Average_masks; left halves",
    find_sites=Layout(
        expected="{Healthy,Glaucoma and suspects}/Stereo Images/{N,G,S}-k-{L,R}.jpg and "
        "Average_masks/N-1-L-{Disc,Cup}-Avg.png",
        site="RIM-ONE-r3",
        image=rf"{BELOW}(?i:(?P<case>[NGS]-\d+-[LR])\.jpg)",
        masks={
            "disc": rf"{BELOW}(?i:(?P<case>[NGS]-\d+-[LR])-Disc-Avg\.png)",
            "cup": rf"{BELOW}(?i:(?P<case>[NGS]-\d+-[LR])-Cup-Avg\.png)",
        },
        strays={ANY: "neither a stereo pair nor an average mask"},
        case=str.upper,
        patient=partial(EYE.sub, ""),
    ).find_sites,
    decode=decode_stereo,
    licence="the terms of the RIM-ONE r3 release hold",
    citation="Fumero et al., Interactive tool and database for optic disc and cup segmentation of stereo and "
    "monocular retinal fundus images, WSCG 2015",
)

DRIONS_DB = disc_kind(
    description="DRIONS-DB, only the disc: {train,test}/{image,groundtruth}/image_NNN.jpg",
    find_sites=Layout(
        expected="{train,test}/{image,groundtruth}/image_NNN.jpg",
        site="DRIONS-DB",
        image=rf"{BELOW}image/(?P<case>[^/]+)\.(?i:jpg)",
        masks={"mask": rf"{BELOW}groundtruth/(?P<case>[^/]+)\.(?i:jpg)"},
        strays={ANY: "not a .jpg in a folder image or groundtruth"},
    ).find_sites,
    decode=decode_binary,
    licence="research use",
    citation="Carmona et al., Identification of the optic nerve head with genetic algorithms, Artificial Intelligence "
    "in Medicine 2008",
)

ICHALLENGE = disc_kind(
    description="iChallenge, only the disc: JPEGImages/*.jpg + Annotations/*.png",
    find_sites=Layout(
        expected="JPEGImages/*.jpg and Annotations/*.png",
        site="iChallenge",
        image=rf"{BELOW}JPEGImages/(?P<case>[^/]+)\.(?i:jpg)",
        masks={"mask": rf"{BELOW}Annotations/(?P<case>[^/]+)\.(?i:png)"},
        strays={ANY: "neither JPEGImages/*.jpg nor Annotations/*.png"},
    ).find_sites,
    decode=decode_disc_index,
    licence="research use",
)


def _pranet_site(case: str, path: str, table: Table) -> str:
    """Return the collection of a polyp image; of the training images those whose names begin with c are Kvasir's."""
    folder = path.split("/")
    if "TestDataset" in folder:
        return folder[folder.index("TestDataset") + 1]
    return "Kvasir" if case.startswith("c") else "CVC-ClinicDB"


def _first_words(case: str, count: int) -> str:
    return "_".join(case.split("_")[:count])


POLYPGEN = photo_kind(
    description="PolypGen 2021: data_C1 to data_C6, {images,masks}_CN, as six sites",
    task="polyp",
    labels=("polyp",),
    find_sites=Layout(
        expected="data_C1 to data_C6 with images_CN/*.jpg and masks_CN/*_mask.jpg",
        image=rf"{BELOW}data_(?P<site>C\d)/images_C\d/(?P<case>[^/]+){PICTURE}",
        masks={"mask": rf"{BELOW}data_C\d/masks_C\d/(?P<case>[^/]+?)_mask{PICTURE}"},
    ).find_sites,
    decode=decode_binary,
    licence="CC BY 4.0",
    citation="Ali et al., A multi-centre polyp detection and segmentation dataset for generalisability assessment, "
    "Scientific Data 2023",
)

POLYP_FIVE = photo_kind(
    description="PraNet's polyp folders: TrainDataset and TestDataset/COLLECTION, {images,masks}, as five sites",
    task="polyp",
    labels=("polyp",),
    find_sites=Layout(
        expected="TrainDataset/{images,masks} and TestDataset/COLLECTION/{images,masks}",
        image=rf"{BELOW}(?P<within>(TrainDataset|TestDataset/[^/]+)/)images/(?P<case>[^/]+){PICTURE}",
        masks={"mask": rf"{BELOW}(?P<within>(TrainDataset|TestDataset/[^/]+)/)masks/(?P<case>[^/]+){PICTURE}"},
        site=_pranet_site,
    ).find_sites,
    decode=decode_binary,
    licence="research use; the terms of each collection hold",
    notes={
        "CVC-ClinicDB": "its 612 frames are of 29 sequences: name these with --patient-table, or frames of one "
        "sequence are trained on and tested"
    },
    citation="Fan et al., PraNet: parallel reverse attention network for polyp segmentation, MICCAI 2020",
)

TCGA_LGG = photo_kind(
    description="TCGA-LGG by Buda: TCGA_SITE_PATIENT_DATE/*_N.tif + *_N_mask.tif, a site per TCGA code",
    task="glioma",
    labels=("tumour",),
    find_sites=Layout(
        expected="folders TCGA_SITE_PATIENT_DATE with TCGA_SITE_PATIENT_DATE_N.tif and ..._N_mask.tif",
        image=rf"{BELOW}(?P<case>TCGA_(?P<site>[^/_]+)_[^/_]+_\d+_\d+){PICTURE}",
        masks={"mask": rf"{BELOW}(?P<case>TCGA_[^/_]+_[^/_]+_\d+_\d+)_mask{PICTURE}"},
        patient=partial(_first_words, count=3),
    ).find_sites,
    decode=decode_binary,
    licence="CC BY-NC-SA 4.0",
    citation="Buda et al., Association of genomic subtypes of lower-grade gliomas with shape features automatically "
    "extracted by a deep learning algorithm, Computers in Biology and Medicine 2019",
)

TUMOUR: LabelMap = {"whole_tumour": (1, 2, 4), "core": (1, 4), "enhancing": (4,)}
FETS = Kind(
    description="FeTS 2022: FeTS2022_NNNNN/*_{flair,t1,t1ce,t2,seg}.nii.gz, a site per partition of partitioning_1.csv",
    task="brain-tumour",
    labels=tuple(TUMOUR),
    channels=4,
    find_sites=Layout(
        expected="folders FeTS2022_NNNNN and partitioning_1.csv",
        image=rf"{BELOW}(?P<case>FeTS2022_\d+)_(?P<channel>flair|t1|t1ce|t2){NIFTI}",
        masks={"mask": rf"{BELOW}(?P<case>FeTS2022_\d+)_seg{NIFTI}"},
        channels=("t1", "t1ce", "t2", "flair"),
        table=("partitioning_1.csv",),
        columns=("subject_id",),
        site=by_column("partition_id", prefix="institution-"),
    ).find_sites,
    decode=partial(decode_labelled, labels=TUMOUR, channels=4),
    normalisation="mri_by_channel",
    field_of_view=None,
    licence="CC BY 4.0; terms of the challenge",
    citation="Pati et al., The federated tumor segmentation (FeTS) challenge, 2021",
)

PICAI = prostate_kind(
    description="PI-CAI: PATIENT/PATIENT_STUDY_t2w.mha + an AI's gland masks, a site per center of marksheet.csv",
    find_sites=Layout(
        expected="PATIENT/PATIENT_STUDY_t2w.mha, whole_gland/AI/Bosma22b/PATIENT_STUDY.nii.gz and marksheet.csv",
        image=rf"{BELOW}(?P<case>\d+_\d+)_t2w\.mha",
        masks={"mask": rf"{BELOW}whole_gland/AI/Bosma22b/(?P<case>\d+_\d+){NIFTI}"},
        patient=partial(_first_words, count=1),
        table=("marksheet.csv",),
        columns=("patient_id", "study_id"),
        site=by_column("center"),
    ).find_sites,
    decode=partial(decode_labelled, labels={"prostate": ()}, channels=1),
    licence="CC BY-NC 4.0; its masks of the gland are an AI's, not experts'",
    notes={"": "masks of the gland are an AI's, not experts'; 328 of the cases of the release are PROSTATEx's"},
    citation="Saha et al., Artificial intelligence and radiologists in prostate cancer detection on MRI (PI-CAI), "
    "Lancet Oncology 2024",
)

MAMA_MIA = Kind(
    description="MAMA-MIA: images/ID/ID_000N.nii.gz + segmentations/expert/ID.nii.gz, a site per collection",
    task="breast-tumour",
    labels=("tumour",),
    channels=1,
    find_sites=Layout(
        expected="images/ID/ID_0001.nii.gz, the first phase after contrast, and segmentations/expert/ID.nii.gz",
        image=rf"{BELOW}(?i:images/[^/]+/(?P<case>(?P<site>[a-z]+[12]?)[^/]*)_0001{NIFTI})",
        masks={"mask": rf"{BELOW}(?i:segmentations/expert/(?P<case>[^/]+){NIFTI})"},
    ).find_sites,
    decode=partial(decode_labelled, labels={"tumour": ()}, channels=1),
    normalisation="mri",
    field_of_view=None,
    licence="CC BY-NC 4.0",
    citation="Garrucho et al., A large-scale multicenter breast cancer DCE-MRI benchmark dataset with expert "
    "segmentations, Scientific Data 2025",
)

HEART: LabelMap = {"left_ventricle": (1,), "myocardium": (2,), "right_ventricle": (3,)}
MNMS_TABLES = ("211230_M&Ms_Dataset_information_diagnosis_opendataset.csv", "mnms_dataset_info.csv")


def decode_mnms(case: RawCase) -> Decoded:
    """Decode one time of a patient, with its mask of the same time."""
    index = case.parts[0].index
    image, mask = read_volume(case.image, index), read_volume(case.label, index)
    parts = [
        slice_volume(case, image, replace(mask, voxels=(mask.voxels == value).astype(np.float32)))
        for (value,) in HEART.values()
    ]
    return replace(parts[0], label=np.concatenate([part.label for part in parts], axis=1))


MNMS = Kind(
    description="M&Ms: ID/ID_sa.nii.gz + ID_sa_gt.nii.gz of two times each, a site per centre of its table",
    task="heart",
    labels=tuple(HEART),
    channels=1,
    find_sites=Layout(
        expected="ID/ID_sa.nii.gz and ID_sa_gt.nii.gz, and the table of the data set as CSV",
        image=rf"{BELOW}(?P<case>[^/]+)_sa{NIFTI}",
        masks={"mask": rf"{BELOW}(?P<case>[^/]+)_sa_gt{NIFTI}"},
        table=MNMS_TABLES,
        columns=("external code",),
        site=by_column("centre", "center", prefix="centre-"),
        times=("ed", "es"),  # the two times of a heartbeat that have masks
    ).find_sites,
    decode=decode_mnms,
    normalisation="mri",
    field_of_view=None,
    licence="CC BY-SA 4.0",
    citation="Campello et al., Multi-centre, multi-vendor and multi-disease cardiac segmentation: the M&Ms challenge, "
    "IEEE TMI 2021",
)
