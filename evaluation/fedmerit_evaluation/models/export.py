"""The network of a finished run for other programs: TorchScript and ONNX, each compared with the network itself."""

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn

from fedmerit.errors import BadInput, RunFailed
from fedmerit.files import write_atomically, write_json
from fedmerit.version import install_advice
from fedmerit_evaluation.models.predictor import Predictor

TOLERANCE = 1e-4  # of logits
INPUT, OUTPUT = "image", "logits"
ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def write_torchscript(predictor: Predictor, out: Path) -> float:
    """Write the traced network, from (batch, channels, ...) to logits, and its input description to ``out``.json.

    Returns:
        The largest difference between its logits and the network's on a batch of another size.

    Raises:
        RunFailed: it makes other logits.
    """
    network = predictor.network.cpu().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch: TorchScript is deprecated; traced conditions
        traced = torch.jit.trace(network, example_batch(predictor, 1), check_trace=False)  # type: ignore[no-untyped-call]
        made = BytesIO()
        torch.jit.save(traced, made)
        made.seek(0)
        loaded = torch.jit.load(made)  # type: ignore[no-untyped-call]
    difference = largest_difference(network, loaded, predictor)
    _write_same(predictor, out, made.getvalue(), difference)
    return difference


def write_onnx(predictor: Predictor, out: Path) -> float:
    """Write the network as an ONNX file, for batches of any size, and its input description to ``out``.json.

    Returns:
        The largest difference between onnxruntime's logits and the network's on a batch of another size.

    Raises:
        BadInput: the packages of the extra "onnx" are missing.
        RunFailed: it makes other logits.
    """
    if missing := [name for name in ONNX_PACKAGES if find_spec(name) is None]:
        raise BadInput(f"--onnx: needs {', '.join(missing)}; {install_advice('onnx')}")
    import onnxruntime

    network = predictor.network.cpu().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network,
            (example_batch(predictor, 2),),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    made = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])

    difference = largest_difference(network, run, predictor)
    _write_same(predictor, out, made, difference)
    return difference


def example_batch(predictor: Predictor, batch: int) -> Tensor:
    """Return (batch, channels, ...) of noise, as normalised images are: mean 0, deviation 1."""
    random = torch.Generator().manual_seed(0)
    return torch.randn(batch, predictor.description.in_channels, *input_size(predictor), generator=random)


def input_size(predictor: Predictor) -> tuple[int, ...]:
    """Return the spatial size of the input: (h, w) of a slice, or (slices, h, w) of a patch."""
    return predictor.description.patch or predictor.preprocessing.size


@torch.inference_mode()
def largest_difference(network: nn.Module, other: Callable[[Tensor], Tensor], predictor: Predictor) -> float:
    """Return the largest absolute difference of the logits of both, on three images."""
    images = example_batch(predictor, 3)
    return float((network(images) - other(images)).abs().max())


def write_description(predictor: Predictor, out: Path) -> None:
    """Write the input and the meaning of the output channels beside a network file."""
    write_json(
        out.with_name(f"{out.name}.json"),
        {
            "input": {"name": INPUT, "shape": ["batch", predictor.description.in_channels, *input_size(predictor)]},
            "output": {"name": OUTPUT, "channels": list(predictor.description.labels), "activation": "sigmoid"},
            "preprocessing": predictor.preprocessing.to_dict(),
            "masks": {"mirrored": predictor.description.mirrored, "largest": predictor.description.largest},
        },
    )


def _write_same(predictor: Predictor, out: Path, made: bytes, difference: float) -> None:
    """Write a network file and its description if it gives the same logits; else `RunFailed`."""
    if not difference <= TOLERANCE:
        raise RunFailed(f"{out}: its logits differ by {difference:.2g} from the network's, more than {TOLERANCE:g}")
    write_atomically(out, lambda file: file.write(made))
    write_description(predictor, out)
