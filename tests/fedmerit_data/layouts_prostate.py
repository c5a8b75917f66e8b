"""Tiny prostate volumes in the layouts of the public sets, quirks included."""

from pathlib import Path

import highdicom
import numpy as np
import pydicom
import SimpleITK
from layouts import SHAPE, box, save_nifti, volume
from pydicom.sr.codedict import codes
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid

from fedmerit_data.kinds import KINDS

TILT = np.deg2rad(14)
# Towards left, back and head as scanners store slices, tilted about the left-right axis, 0.5 x 0.75 x 4 mm.
OBLIQUE = np.array(
    [
        [-0.5, 0, 0, 60],
        [0, -0.75 * np.cos(TILT), 4 * np.sin(TILT), 45],
        [0, 0.75 * np.sin(TILT), 4 * np.cos(TILT), -20],
        [0, 0, 0, 1],
    ]
)


LPS = np.diag([-1.0, -1, 1, 1])


def zones(shape=SHAPE):
    """`box` in four zones, each of which marks something."""
    labels = box(shape)
    labels[labels > 0] += np.arange(np.count_nonzero(labels), dtype=np.uint8) % 4
    return labels


def flipped(voxels, affine, *axes):
    """The same volume stored with the given axes reversed: (voxels, affine)."""
    affine = affine.copy()
    for axis in axes:
        affine[:3, 3] += affine[:3, axis] * (voxels.shape[axis] - 1)
        affine[:3, axis] *= -1
    return np.flip(voxels, axes), affine


def save_itk(path: Path, voxels, affine=OBLIQUE):
    """As .mhd + .raw or as .nrrd, by what the path ends in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = SimpleITK.GetImageFromArray(np.ascontiguousarray(voxels.T))
    placed = LPS @ affine
    spacing = np.linalg.norm(placed[:3, :3], axis=0)
    image.SetSpacing(spacing.tolist())
    image.SetDirection((placed[:3, :3] / spacing).ravel().tolist())
    image.SetOrigin(placed[:3, 3].tolist())
    SimpleITK.WriteImage(image, str(path))


def save_series(folder: Path, voxels, affine=OBLIQUE, uid=None, suffix=".dcm", seed=0):
    """One slice per file, the names in no order of place; returns the data sets from foot to head."""
    folder.mkdir(parents=True, exist_ok=True)
    placed = LPS @ affine
    spacing = np.linalg.norm(placed[:3, :3], axis=0).round(12)
    common = {"SeriesInstanceUID": uid or generate_uid(), "StudyInstanceUID": generate_uid()}
    common["FrameOfReferenceUID"] = generate_uid()
    names = np.random.default_rng(seed).permutation(voxels.shape[2])
    saved = []
    for z, name in enumerate(names):
        slice_ = pydicom.Dataset()
        slice_.file_meta = pydicom.dataset.FileMetaDataset()
        slice_.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        slice_.SOPClassUID = slice_.file_meta.MediaStorageSOPClassUID = MRImageStorage
        slice_.SOPInstanceUID = slice_.file_meta.MediaStorageSOPInstanceUID = generate_uid()
        for key, value in common.items():
            setattr(slice_, key, value)
        for key in ("PatientID", "PatientName", "PatientBirthDate", "PatientSex", "StudyID", "StudyDate", "StudyTime"):
            setattr(slice_, key, "")
        slice_.AccessionNumber = slice_.ReferringPhysicianName = ""
        slice_.Modality, slice_.SeriesNumber, slice_.InstanceNumber = "MR", 1, int(name) + 1
        slice_.ImageOrientationPatient = (placed[:3, :2] / spacing[:2]).T.ravel().round(12).tolist()
        slice_.ImagePositionPatient = (placed[:3, 3] + z * placed[:3, 2]).round(8).tolist()
        slice_.PixelSpacing, slice_.SliceThickness = [float(spacing[1]), float(spacing[0])], float(spacing[2])
        slice_.Columns, slice_.Rows = voxels.shape[:2]
        slice_.SamplesPerPixel, slice_.PhotometricInterpretation = 1, "MONOCHROME2"
        slice_.BitsAllocated = slice_.BitsStored = 16
        slice_.HighBit, slice_.PixelRepresentation = 15, 0
        slice_.PixelData = np.ascontiguousarray(voxels[:, :, z].T, dtype="<u2").tobytes()
        slice_.save_as(folder / f"1-{name + 1:02d}{suffix}", enforce_file_format=True)
        saved.append(slice_)
    return saved


def save_segmentation(path: Path, slices, labels):
    """``labels`` 1 to 4 as the segments of a DICOM-SEG on ``slices``; frames without any are left out of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    manual = highdicom.seg.SegmentAlgorithmTypeValues.MANUAL
    describe = [
        highdicom.seg.SegmentDescription(number, f"zone {number}", codes.SCT.Organ, codes.SCT.Prostate, manual)
        for number in (1, 2, 3, 4)
    ]
    highdicom.seg.Segmentation(
        source_images=slices,
        pixel_array=np.stack([labels.transpose(2, 1, 0) == number for number in (1, 2, 3, 4)], -1).astype(np.uint8),
        segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
        segment_descriptions=describe,
        series_instance_uid=generate_uid(),
        series_number=300,
        sop_instance_uid=generate_uid(),
        instance_number=1,
        manufacturer="test",
        manufacturer_model_name="test",
        software_versions="1",
        device_serial_number="1",
    ).save_as(path)


def promise12(folder: Path, numbers):
    for number in numbers:
        save_itk(folder / f"Case{number:02d}.mhd", volume(number))
        save_itk(folder / f"Case{number:02d}_segmentation.mhd", box())


def nci_isbi(folder: Path):
    """Two patients per collection, a mask of each naming, the rows of one stored upwards, one patient beyond."""
    for collection, patient, mask in (
        ("Prostate-3T", "Prostate3T-01-0001", "Training/Prostate3T-01-0001"),
        ("Prostate-3T", "Prostate3T-03-0002", "Test/Prostate3T-03-0002_truth"),
        ("PROSTATE-DIAGNOSIS", "ProstateDx-01-0006", "Training/ProstateDx-01-0006_correctedLabels"),
        ("PROSTATE-DIAGNOSIS", "ProstateDx-01-0055", "Training/ProstateDx-01-0055"),
        ("PROSTATE-DIAGNOSIS", "ProstateDx-02-0003", "Leaderboard/ProstateDx-02-0003"),
        ("PROSTATE-DIAGNOSIS", "ProstateDx-01-0099", None),
    ):
        save_series(folder / "manifest-1" / collection / patient / "study" / "5-T2 AX", volume(len(patient)))
        if mask:
            labels, affine = flipped(np.minimum(zones(), 2), OBLIQUE, *((1,) if "_ground_truth" in mask else ()))
            save_itk(folder / "Mask" / f"{mask}.nrrd", labels, affine)
    (folder / "manifest-1" / "LICENSE").write_text("")


def i2cvb(folder: Path):
    """Files without a suffix, a blank in a patient's name, ground truth of 255, other series beside."""
    for site, patient in (
        ("GE", "Patient 1"),
        ("GE", "Patient_428260"),
        ("Siemens", "Patient_2"),
        ("Siemens", "Patient_387"),
    ):
        save_series(folder / site / patient / "T2W", volume(len(patient)), suffix="", seed=1)
        save_series(folder / site / patient / "GT" / "prostate", box() * np.uint16(255), suffix="", seed=2)
        save_series(folder / site / patient / "GT" / "cap", box(), suffix="")


def msd_prostate(folder: Path):
    root = folder / "Task05_Prostate"
    for case in ("prostate_00", "prostate_01", "prostate_10"):
        image = np.stack([volume(len(case)), volume(99)], -1)
        save_nifti(root / "imagesTr" / f"{case}.nii.gz", image, OBLIQUE)
        save_nifti(root / "labelsTr" / f"{case}.nii.gz", np.minimum(zones(), 2), OBLIQUE)
    save_nifti(root / "imagesTs" / "prostate_03.nii.gz", image, OBLIQUE)
    (root / "imagesTr" / "._prostate_00.nii.gz").write_text("")
    (root / "dataset.json").write_text("{}")


def prostate158(folder: Path):
    for case in ("train/024", "valid/022", "test/005"):
        place = folder / case
        save_nifti(place / "t2.nii.gz", volume(int(case[-3:])), OBLIQUE)
        save_nifti(place / "t2_anatomy_reader1.nii.gz", np.minimum(zones(), 2).astype(np.uint16), OBLIQUE)
        save_nifti(place / "t2_anatomy_reader2.nii.gz", box() * 0, OBLIQUE)


def found(kind, source):
    return {site.name: site for site in KINDS[kind].find_sites(source)}


def require_drawn(kind, case, image, label):
    """The decoded case is what was drawn: slices from foot to head, rows to the back, columns to the left."""
    decoded = KINDS[kind].decode(case)
    np.testing.assert_array_equal(decoded.label[:, 0], label.transpose(2, 1, 0))
    np.testing.assert_array_equal(decoded.image[:, 0], image.transpose(2, 1, 0))
    np.testing.assert_allclose(decoded.spacing, (0.75, 0.5), atol=1e-6)
    return decoded.remarks
