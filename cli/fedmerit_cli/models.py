"""Commands that use a finished run's model: predict, model export."""

from pathlib import Path
from typing import Annotated

import typer

from fedmerit.errors import BadInput, printable
from fedmerit_cli.terminal import Commands, console

commands = Commands()
group = Commands()

RunFolder = Annotated[Path, typer.Argument(help="Run folder of a finished run.")]
Site = Annotated[str | None, typer.Option(help="Which site's model, if sites have their own.")]
PreparedSites = Annotated[
    Path | None, typer.Option("--sites", help="Site folders that record the preparation, if the model does not.")
]


@commands.add("predict runs/fedce scan.nii.gz --out masks", reads_records=True)
def predict(
    run: RunFolder,
    images: Annotated[
        list[Path],
        typer.Argument(
            help="Volumes, DICOM files, photographs, folders of them; of a model of several channels the files of each."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the masks: a file per image and label, or a DICOM SEG.")],
    site: Site = None,
    sites: PreparedSites = None,
    box: Annotated[
        str | None,
        typer.Option(metavar="TOP,LEFT,HEIGHT,WIDTH|whole", help="Pixels to crop to.", show_default="the model's"),
    ] = None,
    channel: Annotated[
        int | None, typer.Option(min=0, help="NIfTI files with four axes: the channel, counted from 0.")
    ] = None,
    series: Annotated[
        str | None, typer.Option(help="DICOM folders of several series: which, by number, description or UID.")
    ] = None,
    fill: Annotated[
        float | None,
        typer.Option(help="Value for voxels that have none (NaN).", show_default="such images are refused"),
    ] = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="cuda:0, cpu, ...")] = "auto",
) -> None:
    """Predict the masks of raw images: masks in the images' own geometry, prepared as in the run. Only for research."""
    from fedmerit_evaluation.models.predictor import open_predictor, predict_files

    predictor = open_predictor(run, site, sites, device)

    def note(text: str) -> None:
        typer.echo(printable(f"noted: {text}"), err=True)

    for path in predict_files(predictor, images, out, box, channel, series, fill, note):
        console.print(str(path), soft_wrap=True)


@group.add("model export runs/fedce --bundle bundle --onnx model.onnx", reads_records=True)
def export(
    run: RunFolder,
    bundle: Annotated[Path | None, typer.Option(help="Folder for a MONAI bundle.")] = None,
    onnx: Annotated[Path | None, typer.Option(help="ONNX file; needs FedMerit's extra onnx.")] = None,
    torchscript: Annotated[Path | None, typer.Option(help="TorchScript file.")] = None,
    site: Site = None,
    sites: PreparedSites = None,
) -> None:
    """Export the model for other programs; each file is compared with the network itself."""
    from fedmerit_evaluation.models.bundle import write_bundle
    from fedmerit_evaluation.models.export import write_onnx, write_torchscript
    from fedmerit_evaluation.models.predictor import open_predictor

    if bundle is None and onnx is None and torchscript is None:
        raise BadInput("--bundle, --onnx or --torchscript: expected at least one of them")
    predictor = open_predictor(run, site, sites, "cpu")
    if bundle is not None:
        write_bundle(predictor, bundle, run.resolve().name)
        console.print(f"bundle: {bundle}; MONAI applied its network", soft_wrap=True)
    for what, write, path in (("TorchScript", write_torchscript, torchscript), ("ONNX", write_onnx, onnx)):
        if path is not None:
            difference = write(predictor, path)
            console.print(f"{what}: {path}; logits differ by {difference:.1g} at most", soft_wrap=True)
