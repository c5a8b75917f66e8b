"""A finished run's model on raw images: masks in the images' own geometry, with the preprocessing of the run."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate

from fedmerit.errors import BadInput
from fedmerit.files import read_object, require_inside, sha256, write_json
from fedmerit.machine import pick_device
from fedmerit.schema.configuration.data import Preprocessing, common
from fedmerit.schema.configuration.settings import Network
from fedmerit.schema.run_info import read_run
from fedmerit.schema.site_folder import open_sites
from fedmerit.trainers.factory import load_network, load_weights
from fedmerit.trainers.monai.networks import keeps_largest_component
from fedmerit.trainers.monai.prediction import keep_largest_components, predict_case_logits
from fedmerit.trainers.saved_networks import read_description
from fedmerit.trust import allowed_place
from fedmerit_data.raw_cases import Decoded, blank_remarks
from fedmerit_data.readers.image_files import OneImage, read_image
from fedmerit_data.readers.unlabelled import find_images
from fedmerit_data.spatial.preprocessing import (
    Box,
    central_box,
    count_slices,
    make_normaliser,
    preprocess,
    resample_slices,
    window_remarks,
)
from fedmerit_evaluation.results.evaluation import final_model

SUMMARY = "prediction.json"


@dataclass(frozen=True)
class Predictor:
    """A trained network and its preprocessing."""

    file: Path
    network: nn.Module
    description: Network
    preprocessing: Preprocessing

    def preprocess(self, image: Decoded, box: Box | None = None) -> tuple[NDArray[np.float32], Box]:
        """Return (slices, channels, h, w) as the network was trained on, and the window of the image that this is.

        Raises:
            BadInput: the window is not known, or outside the image.
        """
        wanted = self.preprocessing
        if box is None and wanted.crop == "disc":
            raise BadInput(
                "the model was trained on squares around the disc, whose place is not known; "
                "give --box TOP,LEFT,HEIGHT,WIDTH in pixels, or --box whole for images that are such squares"
            )
        if box is None and wanted.field_of_view is not None and image.spacing is None:
            raise BadInput(
                f"the model was trained on squares of {wanted.field_of_view:g} mm, and the image has no spacing; "
                "give a volume with spacing, or --box TOP,LEFT,HEIGHT,WIDTH in pixels"
            )
        box = box or central_box(image, wanted.field_of_view)
        height, width = image.image.shape[2:]
        if not (-box.height < box.top < height and -box.width < box.left < width):
            raise BadInput(
                f"--box {box.top},{box.left},{box.height},{box.width}: is outside the image of {height} x {width} "
                "pixels; expected a part of it"
            )
        normalise = make_normaliser(wanted.normalisation, image.image.shape[1])
        slices = count_slices(image, wanted.slice_distance)
        return preprocess(image, wanted.size[0], box, normalise, slices)[0], box

    def masks(self, image: Decoded, box: Box | None = None) -> NDArray[np.bool_]:
        """Return (slices, labels, height, width) on the pixels of the image; False outside the input of the network.

        The logits are resampled to these pixels (linear), then thresholded; by its description, the network may keep
        only the largest component of each label.
        """
        prepared, box = self.preprocess(image, box)
        slices, _, height, width = image.image.shape
        seen = torch.from_numpy(resample_slices(predict_case_logits(self.network, prepared).numpy(), slices))
        logits = interpolate(seen, (box.height, box.width), mode="bilinear")
        masks = np.zeros((slices, logits.shape[1], height, width), np.bool_)
        top, left = max(box.top, 0), max(box.left, 0)
        bottom, right = min(box.top + box.height, height), min(box.left + box.width, width)
        within = (logits > self._threshold)[..., top - box.top : bottom - box.top, left - box.left : right - box.left]
        masks[..., top:bottom, left:right] = within.numpy()
        return keep_largest_components(masks) if keeps_largest_component(self.network) else masks

    @property
    def _threshold(self) -> Tensor:
        """The logit of the threshold."""
        return torch.logit(torch.tensor(self.preprocessing.threshold, dtype=torch.float64)).float()


def open_predictor(run: Path, site: str | None = None, sites: Path | None = None, device: str = "auto") -> Predictor:
    """Open the final model of a run.

    Args:
        site: its model, if each has its own.
        sites: site folders that record how images were prepared, if the run does not.

    Raises:
        BadInput: there is no such model, or its preprocessing is not known.
    """
    file = final_model(run, site)
    description, recorded = read_description(file.parent)
    network = load_network(file.parent, file.stem).to(pick_device(device, "here"))
    return Predictor(file, network, description, recorded or read_preprocessing(run, sites))


def open_bundle(root: Path, device: str = "auto") -> Predictor:
    """Open the model of a MONAI bundle that `fedmerit_evaluation.models.bundle` wrote; `BadInput` if it is none."""
    require_inside(root)
    content, file = read_object(root / "configs" / "inference.json"), root / "models" / "model.pt"
    try:
        recorded = content["description"]
        description, fed = Network.from_dict(recorded["network"]), Preprocessing.from_dict(recorded["preprocessing"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{root}: no bundle that `fedmerit model export` wrote ({error})") from None
    return Predictor(file, load_weights(file, description).to(pick_device(device, "here")), description, fed)


def read_preprocessing(run: Path, sites: Path | None) -> Preprocessing:
    """Read the preprocessing from the named site folders, or those of the run; `BadInput` if they do not record it."""
    root = sites or allowed_place(read_run(run).get("sites_folder"))
    if root is None:
        raise BadInput(f"{run}: its preprocessing is not recorded; name its site folders with --sites")
    found = common({folder.name: folder.info for folder in open_sites(root)})
    if found is None:
        raise BadInput(
            f"{root}: its sites were prepared in different ways (field of view, crop), or do not record it; "
            "name a folder with --sites whose sites were all prepared in the same way"
        )
    return found


def parse_box(text: str | None) -> Callable[[Decoded], Box | None]:
    """Return the window of an image for ``TOP,LEFT,HEIGHT,WIDTH`` or ``whole``; None: as the model says."""
    if text is None:
        return lambda image: None
    if text == "whole":
        return lambda image: central_box(image, None)
    try:
        top, left, height, width = (int(part) for part in text.split(","))
        if min(height, width) < 1:
            raise ValueError
    except ValueError:
        raise BadInput(f"--box {text}: expected TOP,LEFT,HEIGHT,WIDTH in pixels, or whole") from None
    return lambda image: Box(top, left, height, width)


def predict_files(
    predictor: Predictor,
    images: Sequence[Path],
    out: Path,
    box: str | None = None,
    channel: int | None = None,
    series: str | None = None,
    fill: float | None = None,
    note: Callable[[str], object] = lambda text: None,
) -> list[Path]:
    """Write a mask of every label for every image below ``out``, and the model and settings to ``out``/prediction.json.

    ``images`` are files and folders as of `find_images`, with the ``series`` to take of folders; ``channel`` is that of
    files of four axes, from 0, ``fill`` the value for voxels that have none. Masks of the same model and image are
    replaced, also after an interruption; those of other images stay. ``note`` is called with every remark on an image,
    with its path.

    Raises:
        BadInput: two images have one name, one is unreadable, the model does not fit it, or its mask would replace
            another image's or another file; nothing of that one is written. Or ``out`` has masks of another model.
    """
    window = parse_box(box)
    found = find_images(images, predictor.description.in_channels, series, predictor.preprocessing.channel_names)
    names = Counter(image.name for image in found)
    if twice := [name for name, count in names.items() if count > 1]:
        raise BadInput(f"{twice[0]}: the name of {names[twice[0]]} images; predict them into folders of their own")
    model = {"file": str(predictor.file), "sha256": sha256(predictor.file)}
    summary = {"model": model, "preprocessing": predictor.preprocessing.to_dict()}
    before = previous_predictions(out, summary)
    written, entries = list[Path](), list[dict[str, Any]]()
    for unread in found:
        path = unread.path
        image = read_image(unread.parts, predictor.description.in_channels, channel, unread.name, fill)
        labels = predictor.description.labels
        files = image.mask_files(out, labels)
        digest = image.digest
        _require_free(files, {mask for one in before if one.get("voxels") == digest for mask in one["masks"]})
        masks = _predicted(predictor, image, window)
        masked, asked = [file.name for file in files], {"box": box, "channel": channel, "fill": fill}
        odd = window_remarks(predictor.preprocessing.normalisation, image.decoded)
        remarks = [*image.decoded.remarks, *blank_remarks(image.decoded), *odd]
        for remark in remarks:
            note(f"{path}: {remark}")
        shown = [str(part.path) for part in unread.parts]
        entries.append(
            {
                "image": shown[0] if len(shown) == 1 else shown,
                "voxels": digest,
                "masks": masked,
                **asked,
                "remarks": remarks,
            }
        )
        new = {mask for one in entries for mask in one["masks"]}
        kept = [one for one in before if new.isdisjoint(one["masks"])]
        write_json(out / SUMMARY, summary | {"images": kept + entries})  # first, so interrupted masks are its own
        written += image.write_masks(out, labels, masks, model["sha256"])
    return written


def previous_predictions(out: Path, summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the images in ``out``/prediction.json, if it is there; `BadInput` if there are masks of another model."""
    file = out / SUMMARY
    if not file.exists():
        return []
    entries = read_object(file)
    try:
        images = [{**one, "masks": [str(name) for name in one["masks"]]} for one in entries["images"]]
        by, fed = entries["model"], entries["preprocessing"]
        same = (by["sha256"], fed) == (summary["model"]["sha256"], summary["preprocessing"])
        if not same:
            raise BadInput(
                f"{out}: holds masks of another model, {by['file']}, or with other preprocessing; name another --out"
            )
    except (KeyError, TypeError):
        raise BadInput(f"{file}: is not what `fedmerit predict` writes; name another --out") from None
    return images


def _require_free(files: Sequence[Path], replaceable: Collection[str]) -> None:
    if there := [file for file in files if file.exists() and file.name not in replaceable]:
        raise BadInput(
            f"{there[0]}: exists, and {SUMMARY} beside it does not say that this model made it from this "
            "image; name another --out, or move the file"
        )


def _predicted(predictor: Predictor, image: OneImage, window: Callable[[Decoded], Box | None]) -> NDArray[np.bool_]:
    try:
        return predictor.masks(image.decoded, window(image.decoded))
    except BadInput as error:
        raise BadInput(f"{image.path}: {error}") from None
