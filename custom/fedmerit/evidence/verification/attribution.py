"""Whose signature convicts whom, for each contradiction that a verification found."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fedmerit.evidence.verification.findings import Finding

# Contradictions within what the server signs: its ledger, and the outcome that follows from the inputs in it.
OF_SERVER = (
    *(
        "round number",
        "number of rounds",
        "update without start",
        "model swapped",
        "departures",
        "no outcome",
        "outcome",
    ),
    *(
        "organisation",
        "impossible sharing",
        "impossible count",
        "impossible products",
        "planned rounds",
        "server images",
        "cases",
        "measured otherwise",
        "model of weights",
        "closed early",
        "emptied ledger",
        "missing records",
    ),
    "closing of another ledger",
)
# A site's log against the server's files.
OF_LOG = (
    *(
        "update not in log",
        "other update",
        "enrolment",
        "enrolment left out",
        "rating not in log",
        "reported",
        "rating",
        "unworked verdict",
    ),
    *("other ledger", "no head", "head signature", "unsigned other closing", "closed again", "answer left out"),
    *("measurements", "measurements lacking", "num_samples", "other plan"),
    *("rating details", "rated models", "projected step", "not encrypted", "values", "other models rated"),
)
# Files of the run folder that the closing record covers.
OF_RESULTS = (
    *("result", "extra result", "enrolled cases", "rows", "counts lacking", "no counts", "dice", "unknown site"),
    *("unknown row", "matrix", "matrix sites", "no matrix", "mixed runs", "other run", "plan", "not of the plan"),
    *("beyond the plan", "model", "missing model", "model of the round", "no network"),
)
CHANGED_AFTER = (
    "changed file",
    "missing file",
    "added file",
    "missing results",
    "missing run.json",
    "missing closing",
    "kept",
)


@dataclass(frozen=True)
class Signatures:
    """The signatures that a verification could check."""

    server: bool = False  # the ledger is signed, by a certificate that counts
    closing: bool = False  # the closing record is signed by the server
    sites: Collection[str] = ()  # that signed the logs which were given

    def attribute(self, fault: Finding, faults: Iterable[Finding]) -> str:
        """Return whose signature convicts whom of a contradiction, among all ``faults``."""
        others = list(faults)
        cut = {one.site for one in others if one.kind == "cut log"}
        nobody = "no signature convicts anybody"
        if fault.kind == "cut log":
            return f"the signature of {fault.site} on the end of its log convicts {fault.site}"
        if fault.kind == "invented log end":
            return "the server's record convicts the server: the site signed no such end" if self.server else nobody
        if fault.kind == "two ledgers":
            is_signed = bool(fault.details.get("is_signed"))
            return "the server's two signatures convict the server" if is_signed else nobody
        if fault.kind in OF_LOG:
            return self._against_log(fault.site, cut)
        if fault.kind in OF_SERVER:
            return (
                "the server's signature convicts the server" if self.server else f"{nobody}: the ledger is not signed"
            )
        if fault.kind in OF_RESULTS and self.closing and not any(one.kind in CHANGED_AFTER for one in others):
            return "the server's signature of the closing record convicts the server"
        if fault.kind in (*OF_RESULTS, *CHANGED_AFTER):
            return f"{nobody}: anybody with the run folder could have done it"
        return nobody

    def _against_log(self, site: str, cut: Collection[str]) -> str:
        if site in cut:
            return f"the log of {site} does not count: the signature of {site} convicts it of another log"
        signers = [
            *(["the server, in the ledger"] if self.server else []),
            *([f"{site}, in its log"] * (site in self.sites)),
        ]
        if len(signers) < 2:
            return (
                f"signed only by {signers[0]}: the other side could have been changed"
                if signers
                else ("no signature convicts anybody: neither ledger nor log is signed")
            )
        return f"{' and '.join(signers)}, signed the contrary: one of the two lies"
