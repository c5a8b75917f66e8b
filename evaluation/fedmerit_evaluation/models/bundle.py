"""A finished run's model as a MONAI bundle: network, weights, what goes in and comes out, and inference on raw images.

The network needs only MONAI; inference needs this package for the preprocessing.
"""

import logging
from collections.abc import Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import monai
import numpy
import torch
from monai.bundle import verify_net_in_out

from fedmerit.errors import printable
from fedmerit.files import write_atomically, write_json, write_text
from fedmerit.trainers.monai.networks import constructor
from fedmerit_data.folders import new_folder
from fedmerit_data.spatial.preprocessing import WINDOWS
from fedmerit_evaluation.models.export import input_size
from fedmerit_evaluation.models.predictor import Predictor, open_bundle, predict_files

SCHEMA = "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/meta_schema_20240725.json"
MODALITIES = {  # by normalisation: modality and format, as MONAI calls them
    "mri": ("MR", "magnitude"),
    "mri_by_channel": ("MR", "magnitude"),
    "xray": ("DX", "magnitude"),
    **dict.fromkeys(WINDOWS, ("CT", "hounsfield")),
    "photo": ("n/a", "RGB"),
}
INFERENCE, METADATA = Path("configs/inference.json"), Path("configs/metadata.json")
log = logging.getLogger(__name__)  # prints warnings on standard error by default


def write_bundle(predictor: Predictor, out: Path, run: str) -> None:
    """Write the bundle as the new folder ``out``; not if MONAI cannot apply its network to the input in metadata.json.

    Raises:
        BadInput: ``out`` holds something.
    """
    state = predictor.network.cpu().state_dict()
    with new_folder(out) as folder:
        write_json(folder / METADATA, _metadata(predictor, run))
        write_json(folder / INFERENCE, _inference(predictor))
        write_text(folder / "docs" / "README.md", _readme(predictor, run))
        write_atomically(folder / "models" / "model.pt", lambda file: torch.save(state, file))
        files = {"meta_file": str(folder / METADATA), "config_file": str(folder / INFERENCE)}
        verify_net_in_out(net_id="network_def", device="cpu", **files)


def predict_by_bundle(
    root: str, images: list[str] | str, out: str, box: str = "", device: torch.device | str = "auto"
) -> list[str]:
    """Write masks of raw images below ``out``, and log what is noted: ``run`` of configs/inference.json calls it."""
    paths = [Path(path) for path in ([images] if isinstance(images, str) else images)]
    predictor = open_bundle(Path(root), str(device))
    written = predict_files(predictor, paths, Path(out), box or None, note=lambda text: log.warning(printable(text)))
    return [str(path) for path in written]


def _inference(predictor: Predictor) -> dict[str, Any]:
    kind, arguments = constructor(predictor.description)
    return {
        "bundle_root": ".",
        "images": [],
        "output_dir": "$@bundle_root + '/eval'",
        "box": "",
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "imports": ["$import torch"],
        "network_def": {"_target_": f"{kind.__module__}.{kind.__qualname__}", **arguments},
        "description": {"network": _network(predictor), "preprocessing": predictor.preprocessing.to_dict()},
        "predict": {
            "_target_": f"{__name__}.{predict_by_bundle.__name__}",
            "_mode_": "callable",
            "root": "@bundle_root",
            "images": "@images",
            "out": "@output_dir",
            "box": "@box",
            "device": "@device",
        },
        "run": ["$@predict()"],
    }


def _network(predictor: Predictor) -> dict[str, Any]:
    values = dict(vars(predictor.description))
    return values | {"labels": list(predictor.description.labels), "arguments": dict(predictor.description.arguments)}


def _metadata(predictor: Predictor, run: str) -> Mapping[str, Any]:
    description, fed = predictor.description, predictor.preprocessing
    labels = dict(enumerate(description.labels))
    patches = bool(description.patch)
    shape = {"spatial_shape": list(input_size(predictor)), "dtype": "float32", "is_patch_data": patches}
    return {
        "schema": SCHEMA,
        "version": "0.1.0",
        "changelog": {"0.1.0": f"from run {run}, {date.today().isoformat()}"},
        "monai_version": monai.__version__,
        "pytorch_version": torch.__version__.partition("+")[0],
        "numpy_version": numpy.__version__,
        "required_packages_version": {"fedmerit": version("fedmerit")},
        "name": f"Segmentation of {', '.join(description.labels)}",
        "task": f"{'3D' if patches else '2D'} segmentation of {', '.join(description.labels)}",
        "description": "Trained by federated learning with FedMerit; for research, not a medical device",
        "authors": "those who trained it",
        "copyright": "those who trained it",
        "network_data_format": {
            "inputs": {
                "image": {
                    "type": "image",
                    "format": MODALITIES[fed.normalisation][1],
                    "modality": MODALITIES[fed.normalisation][0],
                    "num_channels": description.in_channels,
                    "value_range": [-10, 10],
                    "channel_def": {str(channel): f"channel {channel}" for channel in range(description.in_channels)},
                    **shape,
                }
            },
            "outputs": {
                "pred": {
                    "type": "image",
                    "format": "segmentation",
                    "num_channels": len(labels),
                    "value_range": [0, 1],
                    "channel_def": {str(place): name for place, name in labels.items()},
                    **shape,
                }
            },
        },
    }


def _readme(predictor: Predictor, run: str) -> str:
    fed = predictor.preprocessing
    patch = " x ".join(map(str, predictor.description.patch))
    seen = f"patches of {patch} of volumes of " if patch else ""
    mirror = " Of the mean logits of the image and of its mirror image." if predictor.description.mirrored else ""
    parts = " Of each label only the largest connected part is kept." if predictor.description.largest else ""
    field = "whole frames, made square" if fed.field_of_view is None else f"the central {fed.field_of_view:g} mm"
    return f"""# Segmentation of {", ".join(predictor.description.labels)}

From the run {run}. For research; not a medical device. The report of the run has its Dice at each site.

- Network: `{
        predictor.description.architecture
    }`, `configs/inference.json` holds its arguments, `models/model.pt` its weights.
- Input: {seen}axial slices or photographs of {fed.size[0]} x {fed.size[1]} pixels, {
        predictor.description.in_channels
    } channel(s), of {"squares about the disc" if fed.crop == "disc" else field}; intensities `{fed.normalisation}`.
- Output: logits, one channel each for {
        ", ".join(predictor.description.labels)
    }; a pixel belongs to a label where the sigmoid is above {fed.threshold:g}.{mirror}{parts}

On raw images (NIfTI, MetaImage, a DICOM series, photographs), with FedMerit
(its wheel or a checkout: no package index has it) and `pip install fire`:

```
python -m monai.bundle run --config_file configs/inference.json --images "['scan.nii.gz']" --output_dir masks
```
"""
