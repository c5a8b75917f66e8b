import csv
import io
import json
import shutil
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter
from typer.testing import CliRunner

from cli.main import app
from data_prep.check import check, examine
from data_prep.findings import Severity
from data_prep.kinds import KINDS
from fedmerit.files import sha256
from fedmerit.training.data import SERVER_SPLIT, SPLITS

CASES = {"training": 6, "validation": 3, "testing": 3}
SIZE = 48
TASKS = {
    "prostate": {"labels": ["prostate"], "channels": 1, "spacing": [2.5, 2.5], "slices": 6},
    "fundus": {"labels": ["disc", "cup"], "channels": 3, "spacing": None, "slices": 1},
}
SECRETS = ("Mustermann", "Secret", "hospital-share", ".npy")


def ball(rows, columns, radius):
    y, x = np.mgrid[:SIZE, :SIZE]
    return (y - rows) ** 2 + (x - columns) ** 2 <= radius**2


def image_of(task, rng):
    """Texture of the patient's own upon light that falls off from the front and the first slice."""
    shape = (task["slices"], task["channels"], SIZE, SIZE)
    texture = gaussian_filter(rng.normal(size=(1, 1, SIZE, SIZE)), (0, 0, 1.5, 1.5))
    light = np.linspace(1, -1, SIZE)[:, None] + np.linspace(1, -1, task["slices"])[:, None, None, None]
    image = np.broadcast_to(light + 0.7 * texture / texture.std(), shape)
    return ((image - image.mean()) / image.std()).astype(np.float32)


def label_of(task, rng):
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
            for key, array in (("image", image_of(task, rng)), ("label", label_of(task, rng))):
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


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    root = tmp_path_factory.mktemp("hospital-share")
    for task in TASKS:
        for seed, site in enumerate(("HK", "UCL")):
            write_site(root / task / site, task, seed)
    return root


@pytest.fixture
def sites(clean, tmp_path, request):
    task = getattr(request, "param", "prostate")
    return Path(shutil.copytree(clean / task, tmp_path / "hospital-share" / task))


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


@pytest.mark.parametrize("sites", TASKS, indirect=True)
def test_nothing_is_found_on_clean_sites(sites):
    assert found(sites) == []
    (sites / "overview").mkdir()  # the pictures of `prepare`
    assert found(sites) == []


def brighter(image):
    """The same image through another export: a little blur, another brightness and contrast, some noise."""
    noise = np.random.default_rng(5).normal(0, 0.02, image.shape)
    return (gaussian_filter(image, (0, 0, 0.4, 0.4)) * 1.3 + 0.2 + noise).astype(np.float32)


def cropped(image, top, bottom, left, right):
    """The same image without these shares of its sides, brought back to its size."""
    box = (left * SIZE, top * SIZE, (1 - right) * SIZE, (1 - bottom) * SIZE)
    planes = [Image.fromarray(plane).resize((SIZE, SIZE), box=box) for plane in image.reshape(-1, SIZE, SIZE)]
    return np.stack(planes).reshape(image.shape)


def reencoded(image):
    """The same image as JPEG files of quality 75."""

    def through_jpeg(plane):
        file = io.BytesIO()
        Image.fromarray(np.uint8(np.clip((plane + 3) * 40, 0, 255))).save(file, "JPEG", quality=75)
        return np.asarray(Image.open(file), dtype=np.float32)

    return np.stack([through_jpeg(plane) for plane in image.reshape(-1, SIZE, SIZE)]).reshape(image.shape)


@pytest.mark.parametrize(
    ("site", "case", "kind"),
    [
        ("HK", "training4", "near-duplicate"),
        ("HK", "testing0", "leak"),
        ("UCL", "training4", "leak"),
    ],
)
def test_nearly_the_same_image(sites, site, case, kind):
    store(sites, site, case, "image", brighter(load(sites, "HK", "training1", "image")))
    (finding,) = examine(sites).findings
    place = (finding.kind, finding.site, finding.split, finding.position)
    assert place == (kind, site, case[:-1], f"00{case[-1]}")
    assert "as HK training 001" in finding.detail
    assert "Secrettraining1" in finding.message
    assert bool(check(sites)) == (kind == "leak")


COPIES = {
    "brighter": (brighter, ""),
    "saved as JPEG": (reencoded, ""),
    "3 % off each side": (lambda image: cropped(image, 0.03, 0.03, 0.03, 0.03), ""),
    "3 % off a corner": (lambda image: cropped(image, 0.03, 0, 0, 0.03), ""),
    "5 % off each side": (lambda image: cropped(image, 0.05, 0.05, 0.05, 0.05), ""),
    "mirrored": (lambda image: image[..., ::-1], "mirrored"),
    "upside down": (lambda image: image[..., ::-1, :], "upside down"),
    "turned": (lambda image: image[..., ::-1, ::-1], "turned by half"),
    "mirrored and cropped": (lambda image: cropped(image[..., ::-1].copy(), 0.03, 0.03, 0.03, 0.03), "mirrored"),
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("sites", TASKS, indirect=True)
def test_copies_are_found(sites, copy):
    change, how = COPIES[copy]
    store(sites, "UCL", "validation1", "image", change(load(sites, "HK", "training1", "image")))
    leaks = [finding for finding in examine(sites).findings if finding.kind == "leak"]
    (finding,) = leaks
    assert (finding.site, finding.split, finding.position) == ("UCL", "validation", "001")
    assert finding.detail.startswith(f"as HK training 001; {how + ', ' if how else ''}agreement ")


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


@pytest.mark.parametrize("defect", LABELS)
def test_masks(clean, tmp_path, defect):
    task, how, *kinds = LABELS[defect]
    sites = shutil.copytree(clean / task, tmp_path / "sites")
    change(sites, "validation2", "label", how)
    assert found(sites) == [(kind, "HK", "validation", "002") for kind in kinds]
    assert check(sites) == []


IMAGES = {
    "upside down": (lambda image: image[:, :, ::-1], "flipped"),
    "slices reversed": (lambda image: image[::-1], "flipped"),
    "saturated": (lambda image: np.where(image > np.percentile(image, 90), 3, -0.3).astype(np.float32),
                  "unusual intensities"),
    "flat": (np.zeros_like, "flat image"),
}  # fmt: skip


@pytest.mark.parametrize("defect", IMAGES)
def test_images(sites, defect):
    how, kind = IMAGES[defect]
    change(sites, "testing1", "image", how)
    assert found(sites) == [(kind, "HK", "testing", "001")]


@pytest.mark.parametrize("sites", ["fundus"], indirect=True)
def test_a_site_whose_labels_are_swapped(sites):
    for split, count in CASES.items():
        for number in range(count):
            change(sites, f"{split}{number}", "label", lambda label: label[:, ::-1])
    assert found(sites) == [("label convention", "HK", "", "")]
    (finding,) = check(sites)
    assert finding.detail == "cup not within disc in 12 of 12 cases"


def test_a_site_whose_masks_are_inverted(sites):
    for split, count in CASES.items():
        for number in range(count):
            change(sites, f"{split}{number}", "label", lambda label: 1 - label)
    errors = check(sites)
    assert [(finding.kind, finding.site) for finding in errors] == [
        ("label convention", "HK"),
        ("label convention", "UCL"),
    ]
    assert "what is not its prostate read as prostate" in errors[0].detail
    assert "either may be the wrong one" in errors[0].message


@pytest.mark.parametrize("sites", ["fundus"], indirect=True)
def test_sites_of_other_labels_are_not_compared(sites):
    edit(sites / "HK" / "site.json", lambda info: info.update(labels=["disc"]))
    for split, count in CASES.items():
        for number in range(count):
            change(sites, f"{split}{number}", "label", lambda label: 1 - label[:, :1])
    kinds = {finding.kind for finding in check(sites)}
    assert kinds == {"unlike sites"}


def space(sites, spacing, split="training", site="HK"):
    edit(sites / site / "datalist.json", lambda lists: lists[split][0].update(spacing=spacing))


@pytest.mark.parametrize("distance", [0.3, 90.0])
def test_volumes_in_millilitres(sites, distance):
    space(sites, [distance, 2.5, 2.5])
    (finding,) = examine(sites).findings
    assert (finding.kind, finding.split, finding.position) == ("implausible volume", "training", "000")
    millilitres = load(sites, "HK", "training0", "label").sum() * distance * 2.5 * 2.5 / 1000
    assert finding.detail == f"prostate of {millilitres:.3g} ml, expected 5 to 500"
    assert check(sites) == []


@pytest.mark.parametrize(
    "spacing", [None, [2.5, 2.5], [0, 2.5, 2.5], ["3", 2.5, 2.5], [float("nan"), 2.5, 2.5], "none"]
)
def test_volumes_are_not_judged_where_the_spacing_is_not_known(sites, spacing):
    space(sites, spacing)
    (finding,) = examine(sites).findings
    assert (finding.kind, finding.severity, finding.site) == ("unknown volume", Severity.note, "HK")
    assert finding.detail == "1 of 12 cases"


def test_site_folders_from_before_spacings_were_noted(sites):
    def before(lists):
        for entry in chain.from_iterable(lists.values()):
            entry.pop("spacing")

    for site in ("HK", "UCL"):
        edit(sites / site / "datalist.json", before)
    assert [(item.kind, item.detail) for item in examine(sites).findings] == [("unknown volume", "12 of 12 cases")] * 2


def test_few_patients(sites):
    def same(lists):
        for entry in lists["testing"]:
            entry["patient"] = "Mustermann"

    edit(sites / "HK" / "datalist.json", same)
    assert found(sites) == [("few patients", "HK", "testing", "")]
    assert check(sites) == []


def test_a_digest_tells_whether_anything_changed(sites, tmp_path):
    before = {site.name: site for site in examine(sites).sites}
    assert before["HK"].unchanged
    assert before["HK"].digest != before["UCL"].digest
    assert before["HK"].spoken == " ".join(before["HK"].digest[at : at + 4] for at in (0, 4, 8, 12))
    moved = shutil.copytree(sites, tmp_path / "elsewhere")
    assert {site.name: site for site in examine(moved).sites} == before
    np.save(sites / "HK" / "cases" / "Secrettraining0_image.npy", load(sites, "HK", "training0", "image") * 1.0001)
    after = {site.name: site for site in examine(sites).sites}
    assert not after["HK"].unchanged
    assert after["HK"].digest != before["HK"].digest
    assert after["UCL"] == before["UCL"]
    edit(moved / "UCL" / "datalist.json", lambda lists: lists["training"].reverse())
    assert examine(moved).sites[1].digest != before["UCL"].digest


@pytest.fixture
def spoiled(sites):
    """Sites with findings of every severity, among them those whose messages name patients and cases."""
    change(sites, "validation2", "label", LABELS["in the last slice"][1])
    change(sites, "training1", "label", LABELS["at the border"][1])
    store(sites, "UCL", "training4", "image", brighter(load(sites, "HK", "training1", "image")))
    store(sites, "UCL", "testing0", "image", load(sites, "HK", "training2", "image"))
    change(sites, "training3", "label", lambda label: label * 2)
    edit(sites / "HK" / "datalist.json", lambda lists: lists["testing"].append(lists["training"][0]))
    (sites / "UCL" / "cases" / "Secrettraining5_image.npy").write_bytes(b"")
    (sites / "UCL" / "cases" / "Secretvalidation0_label.npy").unlink()
    (sites / "UCL" / "cases" / "SecretExtra.npy").write_bytes(b"")
    (sites / "BMC").mkdir()
    return sites


def test_what_is_shared_names_no_file_case_or_patient(spoiled, tmp_path):
    out, private = tmp_path / "share", tmp_path / "private.csv"
    result = CliRunner().invoke(app, ["check", str(spoiled), "--out", str(out), "--private", str(private)])
    assert result.exit_code == 1, result.output
    assert {path.name for path in out.iterdir()} == {"quality.json", "quality.html", "quality.csv"}
    for path in out.iterdir():
        text = path.read_text()
        assert len(text) > 500
        for secret in (*SECRETS, str(tmp_path)):
            assert secret not in text
    report = json.loads((out / "quality.json").read_text())
    findings = examine(spoiled).findings
    assert len(report["findings"]) == len(findings) >= 10
    assert {row["severity"] for row in report["findings"]} == set(Severity)
    assert [site["name"] for site in report["sites"]] == ["HK", "UCL"]
    with (out / "quality.csv").open() as file:
        assert list(csv.DictReader(file)) == report["findings"]
    with private.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["kind"], row["file"], row["message"]) for row in rows] == [
        (finding.kind, str(finding.file), finding.message) for finding in findings
    ]
    for secret in SECRETS:
        assert secret in private.read_text()


def test_the_terminal_names_files_unless_told_not_to(spoiled):
    named = CliRunner().invoke(app, ["check", str(spoiled)])
    assert "Secrettraining3_label.npy: holds the label 2" in named.output
    unnamed = CliRunner().invoke(app, ["check", str(spoiled), "--no-names"])
    assert unnamed.exit_code == named.exit_code == 1
    assert "error: HK training 003: label value: value 2" in unnamed.output
    for secret in (*SECRETS, str(spoiled)):
        assert secret not in unnamed.output


def test_warnings_do_not_fail(sites):
    change(sites, "training1", "label", LABELS["at the border"][1])
    result = CliRunner().invoke(app, ["check", str(sites)])
    assert result.exit_code == 0, result.output
    assert "warning: " in result.output
    assert "nothing wrong beyond 1 warnings and 0 notes" in result.output


def test_every_kind_but_the_generated_has_a_card():
    """A card is named as its kind, or as what the names of several kinds of one set begin with."""
    cards = {path.stem: path for path in (Path(__file__).parents[2] / "docs" / "data").glob("*.md")}
    index = cards.pop("README").read_text()
    kinds = [name for name, kind in KINDS.items() if kind.generate is None]
    for kind in kinds:
        own = [card for card in cards if f"{kind}-".startswith(f"{card}-")]
        assert own, f"no card for {kind}"
        for title in ("Licence", "Where to get it", "How to cite", "Patients and images", "Shapes", "Known quirks"):
            assert f"## {title}" in cards[max(own, key=len)].read_text()
    for card in cards:
        assert f"({card}.md)" in index
        assert any(f"{kind}-".startswith(f"{card}-") for kind in kinds)
