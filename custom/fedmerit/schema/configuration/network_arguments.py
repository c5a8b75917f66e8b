"""What a description of a network may say: which of MONAI's networks, and which arguments of a network's class.

A description may be by others (model.json, a plan, a bundle), so it holds numbers, booleans and few texts: nothing that
names a file, an address or code.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, Strict, StringConstraints, TypeAdapter, ValidationError

from fedmerit.files import is_file_name

# Of `monai.networks.nets`, for segmentation, each built and applied. None downloads weights, and none has a layer that
# is connected to every pixel of an image.
MONAI_NETWORKS = (
    "BasicUNetPlusPlus", "FlexibleUNet", "HighResNet", "MedNeXt", "SegResNetDS", "SegResNetDS2", "UNETR", "VNet",
)  # fmt: skip

_ACTIVATIONS = {"celu", "elu", "gelu", "leakyrelu", "mish", "prelu", "relu", "relu6", "selu", "swish"}
_NORMS = {"batch", "group", "instance", "layer"}
_UPSAMPLING = {"deconv", "nontrainable", "pixelshuffle"}
TEXTS: Mapping[str, set[str]] = {  # by argument of a MONAI network, in lower case
    "act": _ACTIVATIONS,
    "act_name": _ACTIVATIONS,
    "acti_type": _ACTIVATIONS,
    "adn_ordering": {"a", "an", "na", "nad", "nda", "ndan"},
    "backbone": {f"efficientnet-b{size}" for size in range(9)} | {f"resnet{size}" for size in (10, 18, 34, 50, 101)},
    "channel_matching": {"pad", "project"},
    "downsample": {"merging", "mergingv2"},
    "interp_mode": {"nearest", "linear", "bilinear", "bicubic", "trilinear"},
    "norm": _NORMS,
    "norm_name": _NORMS,
    "norm_type": _NORMS,
    "pre_conv": {"default"},
    "proj_type": {"conv", "perceptron"},
    "upsample": _UPSAMPLING,
    "upsample_mode": _UPSAMPLING,
}

_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w{0,39}$")]
_Text = Annotated[str, Strict(), StringConstraints(pattern=r"^[A-Za-z][\w-]{0,39}$")]
_Count = Annotated[int, Strict(), Field(ge=-4096, le=4096)]
_Number = Annotated[float, Strict(), Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
_Value = Annotated[bool, Strict()] | _Count | _Number | _Text | None
_Options = Annotated[dict[_Name, _Value], Field(max_length=16)]
_List = Annotated[list[_Value | _Options | Annotated[list[_Value], Field(max_length=16)]], Field(max_length=32)]
_Arguments = TypeAdapter(Annotated[dict[_Name, _Value | _Options | _List], Field(max_length=64)])
MOST_LABELS = 64
EXPECTED = "expected numbers, true, false, short words, and lists of them"


def check_labels(labels: Sequence[str]) -> None:
    """`ValueError` if labels, which become parts of files' names, are none of these."""
    if not 0 < len(labels) <= MOST_LABELS or not all(map(is_file_name, labels)):
        raise ValueError(f"labels={labels!r:.80}: expected 1 to {MOST_LABELS} names of files without endings")


def check_arguments(architecture: str, arguments: Mapping[str, Any], own: bool) -> None:
    """`ValueError` naming an argument that a description may not have.

    Args:
        own: whether it is one of `fedmerit`'s architectures or of `MONAI_NETWORKS`, whose texts are known.
    """
    try:
        _Arguments.validate_python(arguments)
    except ValidationError as error:
        name = str((error.errors()[0]["loc"] or ("",))[0])
        raise ValueError(f"arguments: {name}={arguments.get(name)!r:.60}: {EXPECTED}") from None
    if arguments.get("pretrained"):
        raise ValueError("arguments: pretrained=true: no weights are downloaded; leave it out")
    for name, value in arguments.items() if own else ():
        if unknown := [text for text in _texts(value) if text.lower() not in TEXTS.get(name, ())]:
            known = f"one of {', '.join(sorted(TEXTS[name]))}" if name in TEXTS else "no text"
            raise ValueError(f"arguments: {name}={unknown[0]!r}: expected {known} for {architecture}")


def _texts(value: object) -> Iterator[str]:
    """All texts in an argument; names of options are none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | Mapping):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)
