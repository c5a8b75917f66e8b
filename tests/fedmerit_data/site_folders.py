"""Site folders as `prepare` leaves them, made of balls and textures, and ways to spoil them."""

import json

import numpy as np
from scipy.ndimage import gaussian_filter

from fedmerit.files import sha256
from fedmerit.schema.scores import SERVER_SPLIT, SPLITS
from fedmerit_data.check import examine

CASES = {"training": 6, "validation": 3, "testing": 5}


SIZE = 48


TASKS = {
    "prostate": {"labels": ["prostate"], "channels": 1, "spacing": [2.5, 2.5], "slices": 6},
    "fundus": {"labels": ["disc", "cup"], "channels": 3, "spacing": None, "slices": 1},
}


SECRETS = ("Mustermann", "Secret", "hospital-share", ".npy")


def ball(rows, columns, radius):
    y, x = np.mgrid[:SIZE, :SIZE]
    return (y - rows) ** 2 + (x - columns) ** 2 <= radius**2


def draw_image(task, rng):
    """Texture of the patient's own upon light that falls off from the front and the first slice."""
    shape = (task["slices"], task["channels"], SIZE, SIZE)
    texture = gaussian_filter(rng.normal(size=(1, 1, SIZE, SIZE)), (0, 0, 1.5, 1.5))
    light = np.linspace(1, -1, SIZE)[:, None] + np.linspace(1, -1, task["slices"])[:, None, None, None]
    image = np.broadcast_to(light + 0.7 * texture / texture.std(), shape)
    return ((image - image.mean()) / image.std()).astype(np.float32)


def draw_label(task, rng):
    label = np.zeros((task["slices"], len(task["labels"]), SIZE, SIZE), np.uint8)
    rows, columns = rng.uniform(21, 27, 2)
    radius = rng.uniform(8, 10)
    for position in range(len(task["labels"])):
        inner = slice(1, -1) if task["slices"] > 1 else slice(None)
        label[inner, position] = ball(rows, columns, radius * 0.6**position)
    return label


def write_site(folder, name, seed):
    """One prepared site; its cases and patients carry names that must not leave the hospital."""
    task = TASKS[name]
    lists = {split: [] for split in (*SPLITS, SERVER_SPLIT)}
    checksums = {}
    (folder / "cases").mkdir(parents=True)
    for split, count in CASES.items():
        for number in range(count):
            rng = np.random.default_rng([seed, SPLITS.index(split), number])
            case = f"Secret{split}{number}"
            spacing = [3.0, *task["spacing"]] if task["spacing"] else None
            entry = {"case": case, "patient": f"Mustermann-{folder.name}-{split}{number}", "spacing": spacing}
            for key, array in (("image", draw_image(task, rng)), ("label", draw_label(task, rng))):
                entry[key] = f"cases/{case}_{key}.npy"
                np.save(folder / entry[key], array)
                checksums[entry[key]] = sha256(folder / entry[key])
            lists[split].append(entry)
    info = {
        "name": folder.name,
        "task": name,
        **{field: task[field] for field in ("labels", "channels", "spacing")},
        "image_size": [SIZE, SIZE],
        "counts": {split: {"cases": CASES.get(split, 0)} for split in lists},
        "checksums": checksums,
    }
    (folder / "datalist.json").write_text(json.dumps(lists))
    (folder / "site.json").write_text(json.dumps(info))


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def load(sites, site, case, key):
    return np.load(sites / site / "cases" / f"Secret{case}_{key}.npy")


def store(sites, site, case, key, array):
    """Store another array and its checksum, as if it had been prepared so."""
    name = f"cases/Secret{case}_{key}.npy"
    np.save(sites / site / name, array)
    edit(sites / site / "site.json", lambda info: info["checksums"].update({name: sha256(sites / site / name)}))


def change(sites, case, key, how, site="HK"):
    store(sites, site, case, key, how(load(sites, site, case, key)))


def found(sites, **options):
    return [(item.kind, item.site, item.split, item.position) for item in examine(sites, **options).findings]


def brighter(image):
    """The same image through another export: a little blur, another brightness and contrast, some noise."""
    noise = np.random.default_rng(5).normal(0, 0.02, image.shape)
    return (gaussian_filter(image, (0, 0, 0.4, 0.4)) * 1.3 + 0.2 + noise).astype(np.float32)


def painted(task, **discs):
    def paint(label):
        label = np.zeros_like(label)
        for name, where in discs.items():
            inner = slice(1, -1) if len(label) > 1 else slice(None)
            label[inner, TASKS[task]["labels"].index(name)] = ball(*where)
        return label

    return paint


LABELS = {
    "implausibly large": ("prostate", painted("prostate", prostate=(24, 24, 20)), "implausible size"),
    "implausibly small": (
        "prostate",
        painted("prostate", prostate=(24, 24, 2)),
        "implausible size",
        "implausible volume",
    ),
    "unusually large": ("prostate", painted("prostate", prostate=(24, 24, 18)), "unusual size"),
    "at the border": ("prostate", painted("prostate", prostate=(6, 24, 9)), "mask at border"),
    "in the last slice": ("prostate", lambda label: np.roll(label, 1, axis=0), "mask at end"),
    "disc at the border": ("fundus", painted("fundus", disc=(24, 41, 9), cup=(24, 41, 5)), "mask at border"),
    "cup beside the disc": ("fundus", painted("fundus", disc=(24, 15, 9), cup=(24, 32, 5)), "label order"),
    "swapped in one case": ("fundus", lambda label: label[:, ::-1], "label order"),
}


def space(sites, spacing, split="training", site="HK"):
    edit(sites / site / "datalist.json", lambda lists: lists[split][0].update(spacing=spacing))
