"""What verification finds, as data, and the one place that words it.

A finding names its kind, where it is, the site and round, what was found and what was expected. Findings are of two
sorts: a contradiction, which `Contradiction` carries as an error, and an open question, which a verification lists.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmerit.errors import BadInput, Tampered

CHANGED = "one of them was changed, or the server computed it otherwise"
REPLACED = "it was swapped or changed: take the model from a site, or from the owner of the run"
ADDED = "it was put in: take the file from somebody who got it when the run ended"
WHOLE = 1.0  # the largest change of a weight, if nothing bounds it
TAKE = "take the file from somebody who got it when the run ended"

# Contradictions by whose signatures show whom to be wrong, as `Signatures` has it.
# Of the server: within what it signs, its ledger, and the outcome that follows from the inputs in it.
OF_SERVER: Mapping[str, str] = {
    "round number": "{where}: is of round {found}, expected {expected}",
    "number of rounds": "{where}: is of round {round} of {found}, expected more rounds than that",
    "malformed record": (
        "{where}: not the record of a round: {found}; get the file again from whom it belongs to, or verify with the "
        "FedMerit of the run"
    ),
    "stranger": "{where}: {quantity} names {site}; expected no other sites than {expected}, who took part",
    "model swapped": (
        "{where}: {site} began round {round} with model {found}, expected {expected}, {because}: a model was swapped"
    ),
    "departures": "{where}: says of sites that left another history than the records: " + CHANGED,
    "outcome": (
        "{where}: {quantity} of {site} in round {round}: {found}, expected {expected}, which follows from the inputs "
        "of the rounds; " + CHANGED
    ),
    "organisation": "{where}: says that {site} is of {found}; its certificate in the same record says {expected}",
    "impossible count": (
        "{where}: counts {found} training images of {site}; it enrolled {expected}, and no more can be distinct"
    ),
    "impossible products": (
        "{where}: the inner products of {quantity} are of no vectors: the least eigenvalue of their matrix is "
        "{found:.3g}"
    ),
    "planned rounds": (
        "{where}: is of a run of {found} rounds; the plan, whose digest every site's log has, has {expected}"
    ),
    "impossible sharing": (
        "{where}: says that {site} share three quarters of their cases; the record has {found} training cases of them"
    ),
    "server images": (
        "{where}: has ratings by the server on images of its own; the plan, whose digest every site's log has, names "
        "none: the server invented them"
    ),
    "cases": (
        "{where}: {quantity} of {site}: {found}, expected {expected}, which follows from the cases that sites enrolled"
    ),
    "measured otherwise": (
        "{where}: {quantity} of {site} in round {round}: {found}, expected {expected}, which follows from the updates "
        "that the record has digests of"
    ),
    "model of weights": (
        "{where}: the model after round {round} is not that which the updates give by the recorded weights: it differs "
        "by {found:.3g} of its length"
    ),
}
OF_LOG: Mapping[str, str] = {  # a site's log against the server's files
    "not encrypted": (
        "{where}: has no updates, as if they had been encrypted; by {log}, {site} sent its update in the clear"
    ),
    "other models rated": (
        "{where}: {site} rated other models ({quantity}) in round {round} than follow from the updates: {log} has the "
        "digest of its task"
    ),
    "answer left out": (
        "{where}: has nothing of {site} in round {round} ({found}); {log}, signed by the site, has {quantity}: the "
        "server left it out, or it came too late or unusable"
    ),
    "enrolment left out": "{where}: has no enrolment of {site}, which took part; {log} has one",
    "update not in log": "{where}: holds an update of {site}, but {log} has none in round {round}",
    "other update": "{where}: the {quantity} of {site} is {found}, {log} says {expected}",
    "enrolment": "{where}: {site} enrolled other cases, or another number of them, than {log} has in round {round}",
    "rating not in log": "{where}: holds what {site} said of models, but {log} has no such answer in round {round}",
    "reported": "{where}: {quantity} of {site} in round {round}: {found}, expected {expected}, as {log}, has it",
    "rating details": (
        "{where}: {quantity} behind the ratings of {what} by {site} in round {round} are not those that {log} has"
    ),
    "rated models": (
        "{where}: {site} rated other models in round {round} than {log}, has: the server sends all raters the same"
    ),
    "values left out": (
        "{where}: {site} rated {quantity} in round {round}, by {log}, and the ledger has that this counted; neither "
        "this file nor the ratings in the ledger have it"
    ),
    "values": ("{where}: values of {quantity} by {site} in round {round}: Dice {found}; {log} has no such answer"),
    "projected step": (
        "{where}: in round {round} the model was moved otherwise than by the recorded weights: by the logs, {site} "
        "received a step that differs by {found:.3g} of its length from the sum of the updates"
    ),
    "rating": "{where}: ratings of {quantity} by {site} in round {round}: {found}, expected what {log} has: {expected}",
    "unworked verdict": (
        "{where}: verdict against {site} from round {round} on: by its scores it did not work in {rounds}; {log} "
        "shows work there (chance without work: {found:.0e}): one is untrue"
    ),
    "no head": "{where}: not a record of a site's log; it lacks ledger, the server's head",
    "other ledger": "{where}: the server said its ledger ended with {found}; {expected}{because}",
    "head signature": "{where}: what it has for the server's signature is none of the server's for that",
    "unsigned other closing": (
        "{where}: says that the run was closed otherwise than {closing}, and has no signature of the server's for "
        "that: the log was changed, or the server did not sign what it sent"
    ),
    "closed again": "{where}: {found}; by {log}, {site} noted another when the run ended{because}",
    "measurements lacking": (
        "{where}: lacks {split} measurements of {site} in round {round}; {log} has what it answered"
    ),
    "measurements": "{where}: {split} measurements of {site} in round {round} are not what it answered, by {log}",
    "other plan": "{where}: {site} trained by another plan than {run} holds",
}
# Kinds of `OF_LOG` in which a log contradicts a file that only the closing record covers.
CLOSED_AGAINST_LOG = ("measurements", "measurements lacking", "values", "values left out", "closed again")
OF_RESULTS: Mapping[str, str] = {  # files of the run folder that the closing record covers
    "unreadable file": "{found}",
    "no outcome": "{where}: no outcome follows ({found}); " + CHANGED,
    "mixed runs": "{where}: holds rows of {quantity} {found} and {expected}, expected those of one run",
    "other run": "{where}: is of {quantity} {found}, {run} of {expected}",
    "result": "{where}: {quantity} of {site} in round {round} is {found}, the ledger has {expected}",
    "played result": (
        "{where}: {quantity} of {site} in round {round} is {found}; the rounds, computed again, give {expected}"
    ),
    "extra result": "{where}: has a {quantity} of {site} in round {round}, which the ledger has not",
    "enrolled cases": (
        "{where}: has {found} {split} cases of {site} in round {round}; it enrolled {expected}, as the ledger has it"
    ),
    "rows": (
        "{where}: rows of round {round} are not those that the ledger has a digest of; some were changed, put in or "
        "taken out: " + TAKE
    ),
    "counts lacking": (
        "{where}: {site} in round {round}, {cell}: lacks {found}; expected dice and the voxels that it is of"
    ),
    "no counts": "{where}: {site} in round {round}, {cell}: {found}; expected whole numbers",
    "dice": "{where}: dice of {site} in round {round}, {cell}, is {found}; its voxels give {expected}",
    "unknown site": "{where}: has {quantity} of {site} in round {round}{cell}; the run has no such site: " + ADDED,
    "unknown row": (
        "{where}: has {quantity} of {site} in round {round}{cell}, which no run of {expected} rounds writes; " + ADDED
    ),
    "no matrix": "{where}: no matrix of Dice by site and model; " + TAKE,
    "matrix sites": "{where}: {site} is in it, or in the tests of {table}, and not in both; " + TAKE,
    "matrix": "{where}: Dice of {model} at {site} is {found}, {table} gives {expected}; " + TAKE,
    "plan": "{where}: its plan is not that which {ledger}, line 1, names; " + TAKE,
    "no network": "{where}: its plan has no network; " + TAKE,
    "not of the plan": "{where}: {quantity} is not what the run's plan has; " + TAKE,
    "beyond the plan": "{where}: holds something else than the run's plan; " + TAKE,
    "model": "{where}: is not the model that {ledger} has a digest of; " + REPLACED,
    "missing model": "{where}: is missing; {ledger} has a digest of it",
    "model of the round": "{where}: is not {expected} of {ledger}, whose digest is another; " + REPLACED,
}
CHANGED_AFTER: Mapping[str, str] = {  # what anybody with the run folder could have changed since, or cut off
    "missing records": (
        "{where}: holds {found} records, but {checkpoint} stands at {expected} complete rounds; records were removed "
        "or put in at its end"
    ),
    "emptied ledger": "{where}: holds no record, and {found} is of a run that ended; its records were removed",
    "closed early": "{where}: holds {found} of {expected} rounds, and {closing} ends the run",
    "closing of another ledger": "{where}: is of a ledger that ended with {found}, this one ends with {expected}",
    "missing closing": "{where}: file not found; {because}",
    "missing results": "{where}: file not found; every run that came to its end has one",
    "missing run.json": "{where}: file not found; {ledger}, line 1, names its plan",
    "kept": (
        "{where}: {quantity} of {site} in round {round} is {found}, expected {expected}, by {ledger}: the file was "
        "changed, or is of another run"
    ),
    "missing file": "{where}: is missing; {closing} lists it",
    "changed file": "{where}: was changed after the run; {closing} has another SHA-256",
    "added file": "{where}: was put there after the run; {closing} does not list it",
}
OTHERS: Mapping[str, str] = {  # of which the signatures say more, or nothing
    "unsigned ledger": "{where}: it is not signed{because}",
    "chain": "{found}",
    "second log": "{where}: is a second log of {site}; give one of each site",
    "malformed entry": "{where}: not a record of a site's log: {found}; get the file again from whom it belongs to",
    "unreadable": "{found}",
    "payout": "{where}: {found}",
    "several sites": "{where}: holds the log of {found} sites, expected that of one",
    "peer model": "{where}: {who} {verb} model {found}{of} in round {round}, but {log}{expected}",
    "audit signature": "{where}: its signature is not that of its certificate; it was changed, or invented",
    "audit of another run": "{where}: is of site {found} or of another plan or ledger, expected {site} and this run",
    "audit of other steps": (
        "{where}: round {round}: other steps than those that {log} and the ledger give for {site}; have them repeated "
        "again with this run folder"
    ),
    "two ledgers": (
        "two ledger heads for round {round}: {where}, says that the ledger ended with {expected}; {other}, with "
        "{found}; {because}"
    ),
    "invented log end": (
        "{where}: has for the end of the log of {site} {found}, which {site} did not sign in that round of this run: "
        "{because}; this does not accuse {site}"
    ),
    "cut log": (
        "{where}: {site} signed that its log ended with {expected} ({ledger}){because}, and its log lacks that "
        "record: it was cut, lost or rewritten at the site"
    ),
    "closing signature": "{where}: {found}; it was written or changed by somebody else",
    "signatures removed": "{where}: is signed, and the ledger is not; its signatures were removed",
    "unreadable results": "{where}: not readable as results ({found}); {expected}",
    "reported number": "{where}: {quantity} of {site} in round {round} is {found:g}, {log} has {expected:g}",
}
CONTRADICTIONS: Mapping[str, str] = {**OF_SERVER, **OF_LOG, **OF_RESULTS, **CHANGED_AFTER, **OTHERS}

QUESTIONS: Mapping[str, str] = {
    "sharing unproven": (
        "which sites hold the same cases: not all sites open what they enrolled (enrolled_cases.json beside their "
        "logs); the server says: {found}"
    ),
    "duplicates unproven": (
        "that cases of {site} were enrolled twice, there or elsewhere, so that fewer images count: not all "
        "sites open what they enrolled (enrolled_cases.json beside their logs)"
    ),
    "server ratings": (
        "the ratings by the server on images of its own: of these the plan has a digest, and nobody else has seen them"
    ),
    "rated models unproven": (
        "that the models which sites rated are those of the updates: each site signed its ratings and which models it "
        "had; the server made these, and no kept updates show it (--keep-updates)"
    ),
    "updates unread": "that the kept updates are those of the run: {found}",
    "rests unproven": (
        "the inner products of what updates add to their forecasts: no kept updates show them (--keep-updates)"
    ),
    "values unproven": (
        "the values in {found}: sites' logs have the Dice that they answered; the server made the models, and no "
        "kept updates show it (--keep-updates)"
    ),
    "steps unproven": (
        "that the model was moved by these weights in {rounds}: the logs of {site} have no projections of the update "
        "and of the step that followed"
    ),
    "scores unproven": (
        "the guard's scores of pairs of updates, which its verdicts follow from: no kept updates show them "
        "(--keep-updates)"
    ),
    "products unproven": (
        "the inner products of different sites' updates: no kept updates show them (--keep-updates), and the logs here "
        "do not determine them"
    ),
    "parts unproven": (
        "the inner products of parts of updates, which {found} needs: no kept updates show them (--keep-updates)"
    ),
    "importance unproven": "the importance of neurons, by which submodels were allocated: only the server has it",
    "absence unproven": (
        "why the ledger has nothing of {site}, or not all, in {rounds} ({found}): its log has no task of that, and "
        "nobody signs what does not come"
    ),
    "organisations unproven": (
        "the organisations of {site}: the ledger has no certificates of theirs that an authority has issued"
    ),
    "owner of the certificate": (
        "whose the certificate in the run folder is: --certificate takes the rootCA.pem of your startup kit"
    ),
    "owners of the logs' certificates": (
        "whose the certificates beside the sites' logs are: --certificate takes the rootCA.pem of a startup kit"
    ),
    "empty ledger": "that anything was run: the ledger holds no record",
    "unfinished": "that there was no more: {found} of {expected} rounds are there; unfinished, or cut short",
    "not closed": "that results and models are those of the run: it is not closed yet",
    "logs missing": (
        "that the server sent all sites the same, and took what they sent: the logs of {site} are missing (--site-log)"
    ),
    "sites unheard": "that the run had {site}, and why no record has anything that they sent",
    "heads unsigned": "that the server said what the logs of {site} have of it: its signature is not there",
    "log ends unknown": "that the logs of {site} are whole: {closing} does not say how they ended",
    "not countersigned": "that the run was not closed again: the logs of {site} do not say how it was when it ended",
    "logs unsigned": "that the logs of {site} are theirs, and whole: they are not signed",
    "log ends unsigned": "that the logs of {site} are whole: how they ended is not signed by these sites",
    "log ends disputed": (
        "whether the logs of {site} were cut, or the server invented how they ended: they lack a record that it says "
        "they had, and no signature shows who is right"
    ),
    "update discarded": "why what {site} trained in {rounds} did not count: its log has it, the ledger says: {found}",
    "rating discarded": (
        "why what {site} said of models in {rounds} did not count: its log has it, the ledger says: {found}"
    ),
    "foreign method": "that weights, contributions and verdicts follow from what came: {found} is not ours",
    "models unseen": "that the models are made by these weights: the server did not see the updates",
    "models no sums": "that the models are made by these weights: those of {found} are no sums of whole updates",
    "joined model": "that the model which {site} began with, as it joined, is made of the others'",
    "submodels": "that the models of rounds {rounds} are parts of those before: submodels were allocated",
    "verdict unsupported": (
        "that {site} did not work, as the verdict from round {round} on says: its log cannot show it"
    ),
    "measurements unsupported": "that {split} measurements of {site} in round {round} are its own: its log has none",
    "measurements discarded": (
        "why {split} measurements of {site} in round {round} are not in results.csv: by its log it answered"
    ),
    "plan unnamed": "that {site} trained by the plan in {run}: their logs name none",
    "plan changed": "that {site} trained by the plan in {run} to the end: {log}, names another",
    "statistics unproven": (
        "that the statistics of BatchNorm in {found} are made of the sites': these log only parameters, and no weight "
        "depends on statistics"
    ),
    "models without digest": "what {found} are: models of sites, of which the ledger has no digest",
    "other models tested": "that {site} tested the final models: by their logs it was others, such as their own",
    "best round": "of which round the models in {found} are: results.csv has testing_best of {rounds} rounds",
    "models seen encrypted": (
        "that {found} are those of the ledger, whose digests are of what the server saw: not the models"
    ),
    "steps differ": "that {site} trained in round {round} as it said: {found}",
    "steps not repeated": "that {site} trained in {rounds}: nobody repeated drawn steps (`fedmerit deploy audit`)",
    "audits without log": (
        "that the repeated steps of {site} are those that were drawn: the log is missing (--site-log)"
    ),
    "steps repeated by site": "that {site} repeated its steps: only its own key signed that; an auditor's has to",
    "unknown network": "that {found} are those of the ledger: which numbers of such a network are trained is not known",
}


@dataclass(frozen=True)
class Movement:
    """The largest change of an aggregation weight."""

    weight: float  # 0 to 1
    site: str = ""
    round: int | None = None

    @property
    def text(self) -> str:
        """The change in words; "" if it is none."""
        place = f" of {self.site}, round {self.round}" if self.site else ""
        return f" (up to {self.weight:.3f} of a weight rests on it{place})" if self.weight else ""


@dataclass(frozen=True)
class Finding:
    """A finding of a verification."""

    kind: str  # a name of `CONTRADICTIONS` or of `QUESTIONS`
    where: str = ""  # file and line
    site: str = ""  # the site, or several separated by commas
    round: int | None = None
    quantity: str = ""
    found: Any = None
    expected: Any = None
    details: Mapping[str, Any] = field(default_factory=dict)  # further values that the wording names
    moved: Movement | None = None  # how far what is open could have moved a weight; None: not computed

    def __str__(self) -> str:
        values = vars(self) | dict(self.details)
        return {**CONTRADICTIONS, **QUESTIONS}[self.kind].format(**values)


class Contradiction(BadInput):
    """A contradiction between files: something was changed, left out or reordered, or is not its owner's.

    Args:
        kind: a name of `CONTRADICTIONS`, or a finding.
        where: file and line.
        **values: further ones of `make_finding`.
    """

    def __init__(self, kind: str | Finding, where: str | Path = "", **values: Any):
        self.finding = make_finding(kind, where, **values) if isinstance(kind, str) else kind
        self.findings: tuple[Finding, ...] = (self.finding,)
        super().__init__(str(self.finding))

    @classmethod
    def of_all(cls, findings: Sequence[Finding]) -> "Contradiction":
        """Return the error of several contradictions, at least one."""
        error = cls(findings[0])
        error.findings = tuple(findings)
        BadInput.__init__(error, *map(str, findings))
        return error


Report = Callable[[Finding], object]  # what is done with a contradiction


def stop(finding: Finding) -> None:
    """Raise a contradiction."""
    raise Contradiction(finding)


class Faults(list[Finding]):
    """A collection of contradictions: a verification continues after each."""

    @property
    def kinds(self) -> set[str]:
        """The kinds of the contradictions."""
        return {fault.kind for fault in self}

    @contextmanager
    def collect(self, unreadable: str = "unreadable") -> Iterator[None]:
        """Have the block end at a contradiction, at a chain that is not its owner's, or at a file that nobody can read,
        which is a finding of the kind ``unreadable``; keep that.
        """
        try:
            yield
        except Contradiction as error:
            self.append(error.finding)
        except Tampered as error:
            self.append(make_finding("chain", found=str(error)))
        except BadInput as error:
            self.append(make_finding(unreadable, found=str(error)))


@dataclass(frozen=True)
class Signatures:
    """The signatures that a verification could check, with certificates that count."""

    server: bool = False  # of the server, on the ledger
    closing: bool = False  # of the server, on the closing record
    sites: Collection[str] = ()  # of these, on the logs which were given

    def attribute(self, fault: Finding, faults: Iterable[Finding]) -> str:
        """Return whose signature convicts whom of a contradiction, among all ``faults``."""
        kinds, site, nobody = {one.kind for one in faults}, fault.site, "no signature convicts anybody"
        if fault.kind in OF_LOG and site in {one.site for one in faults if one.kind == "cut log"}:
            return f"the log of {site} does not count: the signature of {site} convicts it of another log"
        in_closing = self.closing and kinds.isdisjoint(CHANGED_AFTER)
        if fault.kind in CLOSED_AGAINST_LOG:
            return self._against_log(site, "the server, in the closing record" if in_closing else "")
        if fault.kind in OF_LOG:
            is_cut = fault.details.get("is_cut") or (fault.kind == "other plan" and "plan" in kinds)
            return self._against_log(site, "" if is_cut or not self.server else "the server, in the ledger")
        is_signed = bool(fault.details.get("is_signed"))
        convictions = {  # by kind, whether the signature is there, and whom it convicts
            **dict.fromkeys(OF_SERVER, (self.server, "the server's signature convicts the server")),
            **dict.fromkeys(
                OF_RESULTS, (in_closing, "the server's signature of the closing record convicts the server")
            ),
            "cut log": (True, f"the signature of {site} on the end of its log convicts {site}, if it gave this file"),
            "malformed entry": (is_signed, f"the signature of {site} in its log convicts {site}"),
            "invented log end": (
                self.server, "the server's record convicts the server: the site signed no such end"
            ),
            "two ledgers": (is_signed, "the server's two signatures convict the server"),
        }  # fmt: skip
        is_there, text = convictions.get(fault.kind, (False, ""))
        if is_there:
            return text
        if fault.kind in OF_SERVER:
            return f"{nobody}: the ledger is not signed"
        by_anybody = fault.kind in OF_RESULTS or fault.kind in CHANGED_AFTER
        return f"{nobody}: anybody with the run folder could have done it" if by_anybody else nobody

    def _against_log(self, site: str, server: str) -> str:
        signers = [server] * bool(server) + [f"{site}, in its log"] * (site in self.sites)
        if len(signers) == 2:
            return f"{' and '.join(signers)}, signed the contrary: one of the two lies"
        if signers:
            return f"signed only by {signers[0]}: the other side could have been changed"
        return "no signature convicts anybody: neither side is signed"


def make_finding(kind: str, where: str | Path = "", **values: Any) -> Finding:
    """Return a finding; values that are no field of `Finding` become its details."""
    fields = {name: values.pop(name) for name in Finding.__dataclass_fields__ if name in values}
    return Finding(kind, str(where), **fields, details=values)


def at(path: Path, line: int) -> str:
    """Return the text that names a line of a file."""
    return f"{path}, line {line}"


def join_names(names: Iterable[str]) -> str:
    """Return names in order, separated by commas."""
    return ", ".join(names)


def join_rounds(rounds: list[int]) -> str:
    """Return rounds as words, such as "round 3" or "rounds 3, 4"."""
    return f"round{'s' * (len(rounds) > 1)} {', '.join(map(str, rounds))}"
