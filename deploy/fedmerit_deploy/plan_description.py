"""What a job would do at a site, in plain words for its data officer, from the plan: nothing of it is carried out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedmerit.contract.capabilities import capabilities
from fedmerit.errors import printable
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.schema.configuration.specs import HE
from fedmerit.trainers.monai.manifest import EVALUATED
from fedmerit_deploy.job_rules import images_per_round, most_evaluations

LONGEST = 400  # characters of a text whose words the plan chose
NO_STATISTICS = ("dynunet", "segresnet", "basicunet", "swinunetr")  # have no BatchNorm, unless norm=batch


@dataclass(frozen=True)
class Job:
    """What somebody asks of the sites."""

    name: str
    plan: Mapping[str, object]  # `RunConfiguration.to_dict`, unchecked
    filters: Sequence[str] = ()  # at the site, as specs or class names
    code: Sequence[str] = ()  # that is not FedMerit's: classes, or the folder of code that the job brings
    sites: int = 2  # that take part at least
    named: Sequence[str] = ()  # of them, if they are known

    @property
    def encrypted(self) -> bool:
        """Whether updates leave as ciphertexts."""
        return HE in self.filters


def describe_job(job: Job, config: RunConfiguration, images: int | None = None) -> list[tuple[str, str]]:
    """Title and text of each point of the page.

    Args:
        job: whose plan ``config`` is.
        images: the site's training images, or patches; None: not known.
    """
    page = [
        ("job", job.name),
        ("trains", _training(config)),
        ("images", _images(config, images)),
        *(
            [("fold", f"{config.fold}: its patients test, those of the next validate")]
            if config.fold is not None
            else []
        ),
        ("leaves, before", _parts(parts_before(config))),
        ("leaves, each round", _parts(parts_each_round(job, config))),
        ("leaves, at the end", _parts(parts_at_the_end(config))),
        ("never leaves", "images, masks, file names, patients, paths"),
        ("other sites get", "; ".join(_received(config))),
        ("evaluations", "; ".join(_evaluations(config, job.sites))),
        ("updates kept", "yes: the server stores every update of every round" if config.keep_updates else "no"),
        ("filters", ", ".join([*job.filters, "the egress filter"])),
        ("code of others", ", ".join(job.code) or "none in the job"),
        ("asked", _asked(job)),
    ]
    return [(title, printable(text)[: LONGEST * 4]) for title, text in page]


def _asked(job: Job) -> str:
    least = f"at least {job.sites} sites, the server waits for them"
    return f"{', '.join(job.named)[:LONGEST]}" if job.named else f"every connected site; {least}"


def _training(config: RunConfiguration) -> str:
    network, training = config.network, config.training
    kind = f"3D patches of {'x'.join(map(str, network.patch))}" if network.patch else "2D slices"
    return (
        f"method {config.method}, {config.rounds} rounds; {network.architecture[:LONGEST]} of width {network.width} "
        f"and depth {network.depth} on {kind} of {network.in_channels} channels; labels "
        f"{', '.join(network.labels)[:LONGEST]}; task {config.task[:LONGEST]}; optimiser "
        f"{training.optimizer[:LONGEST]}, learning rate {training.lr:g}"
    )


def _images(config: RunConfiguration, images: int | None) -> str:
    training, there = config.training, images_per_round(config, images)
    work = f"{training.steps} steps" if training.steps else f"{training.epochs} pass(es) over all training images"
    behind = "all training images of the site" if there is None else f"{there} different training images"
    return f"{work} of {training.batch_size} images a round: an update is of {behind}"


def _parts(parts: Iterator[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({text})" if text else name for name, text in parts) or "nothing"


def parts_before(config: RunConfiguration) -> Iterator[tuple[str, str]]:
    """Parts of the egress list (`wire.egress_list.LISTED`) that leave before round 0, each in a few words."""
    if config.is_guarded(config.build_method()) and config.can_enrol:
        yield "enrolment", "counts of cases and slices, salted digests of training images, certificate"


def parts_each_round(job: Job, config: RunConfiguration) -> Iterator[tuple[str, str]]:
    """Likewise in each round."""
    method, training = config.build_guarded_method(), config.training
    can, network = capabilities(method), config.network
    own = network.norm == "own" and network.architecture not in NO_STATISTICS
    if can.exchanges_directly:
        yield "model", "the whole model, to each peer"
    elif job.encrypted:
        yield "ciphertexts", "the update, encrypted"
    else:
        yield "update", "what training changed, every parameter"
        if own or network.norm == "batch":
            yield "buffers", "BatchNorm statistics"
    if can.vectors:
        yield "vectors", f"{', '.join(can.vectors)}, as long as the update"
    yield "num_samples", "training images"
    yield "overlaps", "voxel counts by case"
    if training.validate_trained:
        yield "trained_overlaps", ""
    if method.asks:
        yield "values", ", ".join(method.asks)
    if can.peers:
        yield "pairs", "numbers about each peer"
    if can.neurons:
        yield "increases", "loss without each neuron"
        yield "images", ""
    if can.loss_bins:
        yield "losses", "histogram"
    yield from ((name, "") for name in ("train_loss", "seconds", "log"))
    yield "failure", "instead, if there is an error"


def parts_at_the_end(config: RunConfiguration) -> Iterator[tuple[str, str]]:
    """Likewise after the last round."""
    yield "overlaps", "voxel counts and surface distances by test case"
    if config.training.final_model == "selected":
        yield "choice", "which model the site selects"
    yield "countersigned", "that the site logged the end"


def _received(config: RunConfiguration) -> Iterator[str]:
    method = config.build_method()
    if config.share_models:
        yield "models of single sites, from which updates can be computed"
    if config.values:
        yield f"models of parts of the sites, to evaluate ({', '.join(config.values)[:LONGEST]})"
    yield "a model for each, made of all updates" if method.has_site_models else "the model made of all updates"


def _evaluations(config: RunConfiguration, sites: int) -> Iterator[str]:
    for split in EVALUATED:
        most = most_evaluations(config, split, sites)
        when = "after the last round" if split == "testing" else "a round"
        yield f"{split}: {f'at most {most} models {when}' if most else 'none'}"
