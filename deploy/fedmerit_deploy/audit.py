"""The audit of a site's work: an auditor at the hospital repeats the drawn steps of a job from the site's images."""

import platform
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fedmerit.errors import BadInput
from fedmerit.evidence.closing_record import read_closing
from fedmerit.evidence.digests import digest
from fedmerit.evidence.repeated_work import draw_leaf, find_commitments
from fedmerit.evidence.signatures import Signer
from fedmerit.evidence.verification.chains import RunFiles, read_ledger, read_site_log
from fedmerit.evidence.verification.heads import require_acknowledged_ledger
from fedmerit.schema.configuration.run import read_plan
from fedmerit.schema.records import AuditStatement, CommitmentRecord, RepeatedRound
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.site.order_secret import secret_arguments
from fedmerit.site.site_log import SITE_LOG
from fedmerit.trainers.factory import build_trainer
from fedmerit.trainers.step_commitments import RoundStart, make_leaf
from fedmerit.trainers.trainer import RepeatingTrainer
from fedmerit_deploy.kit_files import CERTIFICATES, read_kind, read_name
from fedmerit_deploy.kits import read_manifest


def find_own_folder(kit: Path, job: str) -> Path:
    """Return the folder in which a site keeps its part of a job.

    Raises:
        BadInput: the kit is not prepared, or has no such job.
    """
    manifest, site = read_manifest(kit), read_name(kit)
    run = Path(manifest.run) if manifest.run else Path(manifest.runs) / job
    own = run / "sites" / site
    if not (own / SITE_LOG).exists():
        jobs = sorted(path.name for path in Path(manifest.runs).glob("*")) if manifest.runs else []
        raise BadInput(f"{own}: no log of {site}; expected one of the jobs {', '.join(jobs) or 'that ran here: none'}")
    return own


def kit_signer(kit: Path) -> Signer:
    """Return the signer with the key of a kit, a site's or an admin's."""
    name = CERTIFICATES[read_kind(kit)]
    return Signer(kit / "startup" / f"{name}.key", kit / "startup" / f"{name}.crt")


def audit_work(run: Path, own: Path, folder: SiteFolder, device: str = "auto") -> AuditStatement:
    """Repeat the drawn steps of every round of a site that it kept, from its images; return the unsigned statement.

    Args:
        run: the run folder, or a copy with at least run.json and ledger.jsonl, and closing.json for the last round.
        own: the site's folder of the run, with its log.
        folder: the site's images.
        device: to train on: the one that the site used, as others may round otherwise.

    Raises:
        BadInput: run, log and images do not belong together, or the log has no commitments.
    """
    ledger, closing = run / "ledger.jsonl", read_closing(run)
    records, log, plan = read_ledger(ledger), read_site_log(own / SITE_LOG), read_plan(run)
    require_acknowledged_ledger(RunFiles(run, records), log)
    if log.site != folder.name:
        raise BadInput(f"{folder.path}: images of {folder.name}, but {log.path} is the log of {log.site}")
    if not records or plan.digest != records[0].plan:
        raise BadInput(f"{run}: run.json has another plan than the first record of ledger.jsonl; fetch the run again")
    commitments = find_commitments(log.entries, records)
    if not commitments:
        raise BadInput(f"{log.path}: no commitment to steps that counted; nothing can be repeated")
    torch.set_num_threads(1)  # as the site trains: sums of several threads round otherwise
    rounds = {}
    with TemporaryDirectory(prefix="audit-") as scratch:
        trainer = build_trainer(plan, folder, Path(scratch), device, **secret_arguments(own, folder))
        assert trainer.work
        for round, commitment in commitments.items():
            leaf, start = draw_leaf(log.site, round, commitment, records, closing), trainer.work.read(round)
            if leaf is not None and start is not None:
                fault = find_fault(trainer, start, commitment, leaf)
                rounds[str(round)] = RepeatedRound(
                    root=commitment.root, leaf=leaf, leaves=commitment.leaves, fault=fault
                )
        machine = f"{_processor(trainer.device)}, PyTorch {torch.__version__}"
    content = {"site": log.site, "plan": plan.digest, "ledger": records[-1].hash, "machine": machine, "rounds": rounds}
    return AuditStatement.model_validate(content)


def find_fault(trainer: RepeatingTrainer, start: RoundStart, commitment: CommitmentRecord, leaf: int) -> str:
    """Repeat a round up to a drawn state, and return what does not agree with the commitment; "" if all does.

    The states before are repeated, too, from the received model on. If the trained model that the site kept does not
    connect the last state with the update, the round is repeated to its end.
    """
    assert trainer.work
    salt = trainer.work.salt
    received = start.task.parameters
    if trainer.holdings(start.task.round).samples != commitment.samples:
        return "images or masks are not those that the site enrolled"
    if start.root != commitment.root or len(start.leaves) != commitment.leaves:
        return "the states that the site kept are not those that it committed to"
    if digest(received) != commitment.received:
        return "the model that the site kept is not the one that it received"
    is_connected = (
        make_leaf(salt, start.end) == start.leaves[-1]
        and start.is_complete
        and start.end["model"] == digest(start.trained)
        and digest(start.trained - received) == commitment.update
    )
    repeated, learned = trainer.repeat(start, leaf if is_connected else None)
    expected = start.leaves[: leaf if is_connected else None]
    for number, (made, committed) in enumerate(zip(repeated.leaves, expected, strict=False), start=1):
        if made != committed:
            return f"state {number} of {commitment.leaves} is another: the steps before it do not lead to it"
    if len(repeated.leaves) != len(expected):
        return f"the training has {len(repeated.leaves)} states, the site committed to {len(expected)}"
    if learned is not None and digest(learned.update) != commitment.update:
        return "the update does not follow from the last state"
    return ""


def _processor(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
