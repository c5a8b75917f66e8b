"""Whose signature convicts whom, for each contradiction that a verification found."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fedmerit.evidence.verification.findings import CHANGED_AFTER, OF_LOG, OF_RESULTS, OF_SERVER, Finding


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
