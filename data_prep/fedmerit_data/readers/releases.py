"""Public releases whose files lie in a plain layout: one row of `Layout` each, with licence and citation.

The releases that need more than patterns have modules of their own.
"""

from functools import partial

from fedmerit_data.readers.kind import Layout, disc_kind, fundus_kind, prostate_kind
from fedmerit_data.readers.prostate import decode
from fedmerit_data.spatial.photographs import EYE, decode_binary, decode_disc_index, decode_rings, decode_stereo

ANY = ".*"  # pattern of every file
BELOW = "(.*/)?"  # pattern of any folders
NIFTI = r"\.nii(\.gz)?"

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
