"""Tiny photographs with discs and cups in the public fundus layouts, and slices in NVFlare's."""

import json
from pathlib import Path

import numpy as np
from layouts import save_png
from PIL import Image
from scipy.ndimage import binary_dilation, binary_erosion, gaussian_filter
from skimage.draw import ellipse

from fedmerit_data.kinds import KINDS

SHAPE = (90, 120)
SOFT = np.array([0, 64, 128, 191, 255], np.uint8)  # of none to all of four experts
BLACK, BLUE, GREEN, WHITE = (0, 0, 0), (0, 0, 255), (0, 255, 0), (255, 255, 255)


def photo(seed, shape=SHAPE):
    """Smooth, reddish and noisy, as a retina."""
    rng = np.random.default_rng(seed)
    smooth = gaussian_filter(rng.normal(size=(*shape, 3)), (6, 6, 0))
    smooth = (smooth - smooth.min()) / np.ptp(smooth)
    pixels = smooth * [120, 70, 40] + [90, 40, 20] + rng.normal(0, 4, (*shape, 3))
    return pixels.clip(0, 255).astype(np.uint8)


def oval(row, column, height, width, turn=0.0, shape=SHAPE):
    mask = np.zeros(shape, bool)
    mask[ellipse(row, column, height, width, shape, rotation=turn)] = True
    return mask


def disc_and_cup(shift=0, shape=SHAPE):
    """A leaning disc off the centre and a cup off the disc's: no flip or transposition maps them on themselves."""
    disc = oval(40, 50 + shift, 30, 24, 0.4, shape)
    return disc, oval(44, 45 + shift, 16, 12, 0.2, shape) & disc


def levels(disc, cup):
    """0 in the cup, 128 in the rim, 255 outside."""
    return np.where(cup, 0, np.where(disc, 128, 255)).astype(np.uint8)


def save(path: Path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def drishti(folder: Path, training=(2, 4), test=(1,), experts=4):
    """Soft maps of experts who differ by two pixels each; returns their disc and cup masks (experts, h, w)."""
    opinions = [disc_and_cup(2 * expert) for expert in range(experts)]
    parts = (("Training", "GT", training), ("Test", "Test_GT", test))
    for part, reference, cases in parts:
        for number in cases:
            case = f"drishtiGS_{number:03d}"
            save_png(folder / part / "Images" / f"{case}.png", photo(number))
            place = folder / part / reference / case
            for position, name in enumerate(("ODsegSoftmap", "cupsegSoftmap")):
                votes = np.sum([masks[position] for masks in opinions], axis=0)
                save_png(place / "SoftMap" / f"{case}_{name}.png", SOFT[votes])
            (place / "AvgBoundary").mkdir()
            (place / "AvgBoundary" / f"{case}_ODAvgBoundary.txt").write_text("1 2\n")
            (place / f"{case}_cdrValues.txt").write_text("0.5")
    return [np.array(masks) for masks in zip(*opinions, strict=True)]


def refuge(folder: Path):
    """One case of each part; masks are bitmaps, of the validation part in PNG as newer copies have it."""
    masks = {"train": "Annotation-Training400", "V": "REFUGE-Validation400-GT", "T": "REFUGE-Test-GT"}
    places = [
        ("Training400/Glaucoma/g0001", f"{masks['train']}/Disc_Cup_Masks/Glaucoma/g0001.bmp"),
        ("Training400/Non-Glaucoma/n0001", f"{masks['train']}/Disc_Cup_Masks/Non-Glaucoma/n0001.bmp"),
        ("REFUGE-Validation400/V0001", f"{masks['V']}/Disc_Cup_Masks/V0001.png"),
        ("Test400/T0001", f"{masks['T']}/Disc_Cup_Masks/G/T0001.bmp"),
    ]
    for shift, (image, mask) in enumerate(places):
        save(folder / f"{image}.jpg", photo(shift), quality=95)
        save(folder / mask, levels(*disc_and_cup(shift)))
    (folder / masks["train"] / "Fovea_location.xlsx").write_text("")


def rim_one(folder: Path, eyes=("N-1-L", "N-1-R", "N-2-L", "G-1-R", "S-3-L")):
    """Stereo pairs twice as wide as high; the right half holds another disc that must not be read."""
    height, width = SHAPE
    for number, eye in enumerate(eyes):
        group = folder / ("Healthy" if eye[0] == "N" else "Glaucoma and suspects")
        save(group / "Stereo Images" / f"{eye}.jpg", photo(number, (height, 2 * width)), quality=95)
        for name, mask in zip(("Disc", "Cup"), disc_and_cup(number), strict=True):
            pair = np.concatenate([mask, np.flipud(mask)], axis=1)
            save_png(group / "Average_masks" / f"{eye}-{name}-Avg.png", (pair * 255).astype(np.uint8))
            save_png(group / "Expert1_masks" / f"{eye}-{name}-exp1.png", (pair * 255).astype(np.uint8))


def drions(folder: Path, train=(1, 2), test=(91,)):
    for part, cases in (("train", train), ("test", test)):
        for number in cases:
            mask = (disc_and_cup(number % 7)[0] * 255).astype(np.uint8)
            save(folder / part / "image" / f"image_{number:03d}.jpg", photo(number), quality=95)
            save(folder / part / "groundtruth" / f"image_{number:03d}.jpg", mask, quality=95)


def ichallenge(folder: Path, cases=("H0002", "P0195")):
    """Palette masks, whose colour of index 1 is dark red."""
    for number, case in enumerate(cases):
        save(folder / "JPEGImages" / f"{case}.jpg", photo(number), quality=95)
        mask = Image.fromarray(disc_and_cup(number)[0].astype(np.uint8), mode="P")
        mask.putpalette([0, 0, 0, 128, 0, 0])
        (folder / "Annotations").mkdir(exist_ok=True)
        mask.save(folder / "Annotations" / f"{case}.png")


def contour(mask, thickness=1):
    """The outermost pixels of a mask, thickened to both sides alike."""
    line = mask & ~binary_erosion(mask)
    return binary_dilation(line, iterations=thickness // 2) if thickness > 1 else line


def draw(prime, masks, thickness=1, colour=BLUE):
    copy = prime.copy()
    for mask in masks:
        copy[contour(mask, thickness)] = colour
    return copy


def riga(folder: Path, number, *, suffix=".tif", experts=range(1, 7), prime=True, name="image", opinions=None):
    """A prime image and a copy per expert, each drawing disc and cup shifted by two pixels a time."""
    clean = photo(number)
    options = {"quality": 95} if suffix == ".jpg" else {}
    if prime:
        save(folder / f"image{number}prime{suffix}", clean, **options)
    for expert in experts:
        masks = opinions[expert - 1] if opinions else disc_and_cup(2 * expert)
        save(folder / f"{name}{number}-{expert}{suffix}", draw(clean, masks), **options)


def nvflare(folder: Path, site="MSD", cases=("prostate_00", "prostate_01", "prostate_02"), numbers=(8, 9, 10, 11)):
    """Slices of the gland only, numbered as in the volume, and the data list, sorted as text sorts numbers."""
    entries = []
    for case in cases:
        for number in numbers:
            names = [f"{site}/{part}/{case}/{number}.png" for part in ("Image", "Mask")]
            rows = photo(number)[..., 0], (disc_and_cup(number)[0] * 255).astype(np.uint8)
            for name, pixels in zip(names, rows, strict=True):
                save_png(folder / "dataset_2D" / name, pixels)
            entries.append({"image": names[0], "label": names[1]})
    entries.sort(key=lambda entry: entry["image"])
    write_datalist(folder, site, entries)
    return entries


def write_datalist(folder, site, entries):
    splits = {"training": entries[::3], "validation": entries[1::3], "testing": entries[2::3]}
    (folder / "datalist_2D").mkdir(exist_ok=True)
    (folder / "datalist_2D" / f"client_{site}.json").write_text(json.dumps(splits))


WRITE = {"drishti-gs1": drishti, "refuge": refuge, "rim-one-r3": rim_one, "drions-db": drions, "ichallenge": ichallenge}


def only(kind, source):
    (site,) = KINDS[kind].find_sites(source)
    return site


def decoded(kind, source):
    return {case.name: KINDS[kind].decode(case) for case in only(kind, source).cases}
