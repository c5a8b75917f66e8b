"""The records of a run's evidence: what a ledger, a site's log and the closing record hold, field by field.

The recorder, the sites' logs, verification and the tables of docs/files.md all read these declarations. The owner of a
chain can write anything into it that hashes correctly, so every record is validated when it is read. A record may hold
further fields; verification ignores them. Mappings are by site name unless a field says otherwise.
"""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat

# The work of an entry of a site's log: a task of the server's, by NVFlare's name, or an exchange of models with another
# site.
TRAIN, EVALUATE = "train", "evaluate"
ENROLLED, CLOSED, REFUSED = "enrol", "close", "refused"
GAVE, GOT = "gave", "got"
# The work of an entry of a machine's ledger of jobs.
JOB_ALLOWED, JOB_BEGAN, JOB_TRAINED = "allow", "begin", "train"

LARGEST_NUMBER = 2**63  # JSON has numbers that no float holds


def _require_representable(value: Any) -> Any:
    if type(value) is int and abs(value) >= LARGEST_NUMBER:
        raise ValueError(f"expected a number below {LARGEST_NUMBER:g}")
    return value


Whole = Annotated[int, Field(ge=0, lt=LARGEST_NUMBER)]
Number = Annotated[float, BeforeValidator(_require_representable)]
Count = Annotated[float, Field(ge=0, lt=2**53)]
BySite = dict[str, FiniteFloat]
Matrix = dict[str, BySite]


class Record(BaseModel):
    """A record, or an object within one. Its types are strict: no text passes for a number."""

    model_config = ConfigDict(strict=True, frozen=True)

    def content(self) -> dict[str, Any]:
        """Return the fields that were set, as JSON values."""
        return self.model_dump(exclude_unset=True)


class ClosedRecord(Record):
    """A record without further fields."""

    model_config = ConfigDict(extra="forbid")


class RatingRecord(ClosedRecord):
    """A rater's evaluation of k models."""

    dice: list[Annotated[float, Field(ge=0, le=1)] | None] = Field(
        description="Mean Dice of each model, 0 to 1; null: of no case."
    )
    cases: list[Annotated[int, Field(ge=0, lt=2**53)]] = Field(description="Cases behind each mean.")
    losses: list[list[FiniteFloat]] = Field([], description="Histogram of the images' losses of each model.")
    soft: list[list[Annotated[float, Field(ge=0, le=1)]]] = Field(
        [], description="Soft Dice of each case, mean over labels, by model; dice is their mean then."
    )
    patients: list[Whole] = Field([], description="Number of each of these cases' patient.")


class InputsRecord(ClosedRecord):
    """The inputs from which weights, contributions and verdicts of a round follow.

    Numbers that a site has not reported are left out.
    """

    size: Annotated[int, Field(ge=0, lt=2**40, description="Entries of an update; 0 if the server does not see them.")]
    counts: dict[str, Count] = Field(description="Training images that each participant reported.")
    products: Matrix = Field({}, description="Inner products of the updates, upper triangle.")
    parts: list[Matrix] = Field([], description="Inner products of parts of the updates, upper triangles.")
    values: dict[str, BySite] = Field({}, description="Reported values, by quantity and site.")
    pairs: dict[str, Matrix] = Field({}, description="Reports about other sites, by quantity, reporter and site.")
    scores: Matrix = Field({}, description="The guard's scores of pairs of updates, upper triangle.")
    rests: Matrix = Field({}, description="Inner products of the updates without their forecasts, upper triangle.")
    ratings: dict[str, dict[str, RatingRecord]] = Field({}, description="Ratings, by what was rated and by rater.")
    importance: list[FiniteFloat] = Field([], description="Importance of each neuron, measured before the round.")


class DepartureRecord(Record):
    """A site's contribution until it left."""

    rounds: Whole = Field(0, description="Rounds in which the site took part.")
    weight: Number = Field(0, description="Mean aggregation weight over these rounds.")
    contribution: Number = Field(0, description="Mean contribution over these rounds.")


class EnrolmentRecord(Record):
    """A site's commitment before its first round."""

    cases: dict[str, Whole] = Field({}, description="Cases by split.")
    slices: dict[str, Whole] = Field({}, description="Slices by split; of training, those that are trained on.")
    fingerprint: str = Field("", description="SHA-256 over the sealed digests of the training cases.")
    certificate: str = Field("", description="The site's certificate (PEM), if the run has certificates.")
    shares_with: list[str] = Field(description="Sites that hold three quarters of its training cases, and it theirs.")
    organisation: str = Field(description="Organisation in the certificate, else the site.")
    images: Annotated[FiniteFloat, Field(ge=0)] = Field(
        description="Training images; of cases that k sites enrolled, one k-th at each."
    )
    filters: list[str] = Field([], description="Privacy filters that the site declares.")


class OpeningRecord(ClosedRecord):
    """An opening of a site's enrolment, with which its cases can be compared with those of others."""

    seal: str = Field(description="Seal of the digests.")
    cases: list[str] = Field(description="Digests of the training cases, as the server got them.")


class GuardRecord(Record):
    """The guard's bounds and decisions in a round."""

    bounds: dict[str, dict[str, Number]] = Field({}, description="Bounds that applied, by kind and site.")
    evidence: dict[str, Number] = Field({}, description="Log odds that a site does not work, if positive.")
    verdicts: list[str] = Field([], description="Sites found to be free riders.")
    enrolled: dict[str, EnrolmentRecord] = Field({}, description="Enrolments of this round.")


class ChainedRecord(Record):
    """A record of a hash chain."""

    previous: str = Field("", description="Hash of the record before.")
    hash: str = Field("", description="SHA-256 of all other fields except the signature.")
    signature: str = Field("", description="Chain and signature by the chain's owner, if it has a key.")


class RoundRecord(ChainedRecord):
    """A round in the server's ledger."""

    round: Whole = Field(description="Number of the round, from 0.")
    of: Whole = Field(description="Rounds of the run.")
    participants: list[str] = Field(description="Sites whose update counted.")
    rejected: dict[str, str] = Field(description="Why nothing of a site counted.")
    failed: list[str] = Field([], description="Of the rejected: sites that sent no answer, as something failed there.")
    flagged: list[str] = Field(description="Participants that the method itself flagged.")
    began: dict[str, str] = Field(description="SHA-256 of the model that each participant received.")
    updates: dict[str, str] = Field(description="SHA-256 of each update.")
    model: str = Field(description="SHA-256 of the models after the round.")
    ended: dict[str, str] = Field({}, description="SHA-256 of each site's own model after the round.")
    weights: dict[str, Number] = Field(description="Aggregation weights, 0 to 1.")
    contributions: dict[str, Number | None] = Field(description="Estimated contributions of this round.")
    reputations: dict[str, Number] = Field(description="Contributions remembered over rounds.")
    quotas: dict[str, Number] = Field({}, description="Share of the reward that each site earned.")
    validation_dice: dict[str, Number | None] = Field(
        description="Mean Dice of the received model on the site's cases; null: not known."
    )
    inputs: InputsRecord = Field(description="What the outcome follows from.")
    guard: GuardRecord = Field(GuardRecord.model_validate({}), description="What the guard bounded and decided.")
    rows: str = Field(description="SHA-256 of the round's rows in results.csv.")
    evaluated: dict[str, list[str]] = Field(description="SHA-256 of each evaluation of other models.")
    logs: dict[str, str] = Field(description="How each site's log ended, signed by the site.")
    plan: str = Field("", description="SHA-256 of the plan; in the first record.")
    metric: str = Field("", description="Metric that the sites took, if the plan names none; in its first record.")
    saved: dict[str, str] = Field({}, description="SHA-256 of each saved model by file; in the last record.")
    joined: list[str] = Field([], description="Sites that joined with this round.")
    left: dict[str, DepartureRecord] = Field({}, description="Sites that left, with what they had contributed.")
    notes: list[str] = Field([], description="Notes by the operator, such as why the run was resumed.")


class CommitmentRecord(ClosedRecord):
    """A site's commitment to the steps of a round's training."""

    root: str = Field(description="Merkle root over the states after every k-th step and the last.")
    leaves: Annotated[int, Field(ge=1, lt=2**31, description="Number of these states.")]
    steps: Annotated[int, Field(ge=1, lt=2**40, description="Steps of the round.")]
    samples: str = Field(description="Merkle root over the salted digests of the training images and masks.")
    received: str = Field(description="SHA-256 of the model that the training started from.")
    update: str = Field(description="SHA-256 of the update, before filters and encryption.")


class PrivacyRecord(ClosedRecord):
    """The privacy of a site's patients after a round of training by DP-SGD."""

    noise: FiniteFloat = Field(description="Standard deviation of the noise, as a multiple of the clipping length.")
    rate: Annotated[FiniteFloat, Field(gt=0, le=1, description="Probability that a patient is drawn in a step.")]
    steps: Annotated[int, Field(ge=1, lt=2**40, description="Steps of the round.")]
    delta: Annotated[FiniteFloat, Field(gt=0, lt=1, description="δ.")]
    epsilon: Annotated[FiniteFloat, Field(ge=0, description="ε that the run has spent so far.")]


class LogEntry(ChainedRecord):
    """A task in a site's own log."""

    site: str = Field(description="Name of the site.")
    round: Whole = Field(description="Round of the task.")
    work: str = Field(description="Kind of work.")
    ledger: str = Field("", description="Hash of the server's last record, which came with the task.")
    vouched: str = Field("", description="The server's signature of that hash.")
    received: str = Field("", description="SHA-256 of the received model.")
    update: str = Field("", description="SHA-256 of the update that left.")
    split: str = Field("", description="Split that was evaluated.")
    peer: str = Field("", description="The other site of an exchange of models.")
    plan: str = Field("", description="SHA-256 of the plan that the site trained by.")
    closing: str = Field("", description="SHA-256 of the closing record.")
    sealed: str = Field("", description="The server's signature of the closing record.")
    model: str | None = Field(None, description="SHA-256 of a peer's model; null if none arrived.")
    overlaps: list[str] | None = Field(None, description="SHA-256 of the reported overlaps of each model.")
    scores: list[str] = Field([], description="SHA-256 of the Dice of each model by case and label, as in values.csv.")
    rating: RatingRecord | None = Field(None, description="Reported results of the models, as a ledger has ratings.")
    images: Whole | None = Field(None, description="Training images that the site reported.")
    values: dict[str, Number] = Field({}, description="Reported values, by quantity.")
    pairs: dict[str, dict[str, Number]] = Field({}, description="Reports about other sites, by quantity.")
    step: dict[str, Number] = Field({}, description="Norms and inner products of the model's last step.")
    projections: list[list[FiniteFloat]] = Field(
        [], description="The last update and the model's step since, along directions that the ledger head gives."
    )
    commitment: CommitmentRecord | None = Field(None, description="Commitment to the steps of the training.")
    privacy: PrivacyRecord | None = Field(None, description="Privacy of a training by DP-SGD.")
    samples: str = Field("", description="Merkle root over the salted digests of the enrolled images and masks.")
    cases: dict[str, Whole] = Field({}, description="Enrolled cases by split.")
    slices: dict[str, Whole] = Field({}, description="Enrolled slices by split.")
    fingerprint: str = Field("", description="SHA-256 over the sealed digests of the enrolled cases.")
    filters: list[str] = Field([], description="Privacy filters that the site declares.")
    models: Whole = Field(0, description="Models that were evaluated.")
    order: str = Field("", description="Order to which the importance of neurons was measured.")
    question: str = Field("", description="SHA-256 of the task.")
    reason: str = Field("", description="Why the site refused the task.")


class ClosingRecord(ClosedRecord):
    """The content of closing.json: how a run ended."""

    ledger: str = Field(description="Hash of the ledger's last record.")
    files: dict[str, str] = Field(description="SHA-256 of each file of the run, by path.")
    site_logs: dict[str, str] = Field(description="How each site's log ended when the site last answered.")
    signature: str | None = Field(None, description="The server's signature of the other fields.")


class JobEntry(ChainedRecord):
    """An entry of a site's ledger across jobs, which stays at the site."""

    work: str = Field(description="allow: the data manager's word; begin: a job's first training; train: a round.")
    day: str = Field(description="Date, UTC.")
    plan: str = Field(description="SHA-256 of the plan.")
    times: Whole = Field(0, description="Jobs that the word is for.")
    job: str = Field("", description="Id of the job, the first one if it was resumed.")
    study: str = Field("", description="Study that the plan names.")
    family: str = Field("", description="SHA-256 of what related plans have in common: network, loss, optimizer, task.")
    settings: str = Field("", description="Further settings of the plan, as JSON.")
    round: Whole = Field(0, description="Number of the round.")
    received: str = Field("", description="SHA-256 of the received model.")
    images: Whole = Field(0, description="Training images used.")
    folder: str = Field("", description="SHA-256 of the prepared images.")
    noise: Number = Field(0.0, description="DP-SGD: standard deviation of the noise, as a multiple; 0: without.")
    rate: Number = Field(0.0, description="DP-SGD: probability that a patient is drawn in a step.")
    steps: Whole = Field(0, description="DP-SGD: steps of the round.")


class RepeatedRound(ClosedRecord):
    """An auditor's result of a round."""

    root: str = Field(description="Merkle root that the site committed to.")
    leaf: Annotated[int, Field(ge=1, lt=2**31, description="Drawn state, from 1.")]
    leaves: Annotated[int, Field(ge=1, lt=2**31, description="Number of states.")]
    fault: str = Field("", description="What did not agree; empty: the drawn steps gave the committed states.")


class AuditStatement(ClosedRecord):
    """The content of audits/SITE.json: which drawn steps of a site were repeated from its images."""

    site: str = Field(description="Name of the site.")
    plan: str = Field(description="SHA-256 of the plan.")
    ledger: str = Field(description="Hash of the ledger's last record, which the auditor had.")
    machine: str = Field(description="Processor or GPU, and version of PyTorch, of the repetition.")
    rounds: dict[Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,8})$")], RepeatedRound] = Field(
        description="Repeated rounds, by number."
    )
    certificate: str = Field("", description="Certificate of who repeated them (PEM), if there is one.")
    signature: str = Field("", description="Signature of all other fields.")


def describe_fields(kind: type[Record]) -> Iterator[tuple[str, str]]:
    """Yield the name and the description of every field of a record, for the documentation."""
    for name, field in kind.model_fields.items():
        yield name, field.description or ""
