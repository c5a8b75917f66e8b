"""Evidence on the processing of personal data: what leaves a site, who receives it, how long it is kept, measures."""

from fedmerit.errors import BadInput
from fedmerit.schema.configuration.filters import HE
from fedmerit.schema.configuration.run import RunConfiguration
from fedmerit.site.plan_description import Job, parts_at_the_end, parts_before, parts_each_round
from fedmerit_evaluation.dossier.sources import DossierSources

DEPLOYED = ("poc", "prod")  # engines with certificates


def study(file: DossierSources) -> str:
    """The study that the run is for."""
    name = file.info.get("plan", {}).get("study")
    return f"Research, study {name}: joint training of a segmentation model." if name else ""


def leaving(file: DossierSources) -> str:
    """What each site sent, by the plan."""
    config = _plan(file)
    if config is None:
        return ""
    job = Job(file.run.path.name, config.to_dict(), tuple(file.info.get("privacy") or ()))
    before, after = dict(parts_before(config)), dict(parts_at_the_end(config))
    each = {name: text for name, text in parts_each_round(job, config) if name != "failure"}
    kinds = [
        f"{when}: {', '.join(f'{name} ({text})' if text else name for name, text in parts.items())}"
        for when, parts in (("before training", before), ("each round", each), ("at the end", after))
        if parts
    ]
    return f"A site sends, {'; '.join(kinds)}. No image, mask, file name or patient code: docs/privacy.md has the list."


def receiving(file: DossierSources) -> str:
    """Who received what, by the plan."""
    config = _plan(file)
    if config is None:
        return ""
    seen = "ciphertexts and numbers" if HE in (file.info.get("privacy") or ()) else "updates and numbers"
    shared = "also models of single sites" if config.share_models else "no model of a single site"
    return f"The server's operator: {seen} of every site. The other sites: aggregated models, {shared}."


def retention(file: DossierSources) -> str:
    """What is stored where, and until when."""
    config = _plan(file)
    if config is None:
        return ""
    kept = "every update" if config.keep_updates else "no update"
    return (
        f"The server keeps the run folder (models, results.csv, ledger, {kept}) until it is deleted; a site keeps its "
        "prepared images, its last model and its log until it deletes them. No time limit is built in."
    )


def safeguards(file: DossierSources) -> str:
    """Technical measures of this run."""
    config = _plan(file)
    if config is None:
        return ""
    filters = [name for name in file.info.get("privacy") or () if name != HE]
    found = [
        "TLS in both directions with a certificate for each participant" * (file.info.get("engine") in DEPLOYED),
        "an egress filter at each site" * (file.info.get("engine") != "local"),
        "no code in the job" * (file.info.get("engine") in DEPLOYED),
        "homomorphic encryption of updates" * (HE in (file.info.get("privacy") or ())),
        f"privacy filters ({', '.join(filters)})" * bool(filters),
        "inspection of every reply and the guard" * config.is_guarded(config.build_method()),
        "a hash-chained ledger",
    ]
    text = ", ".join(filter(None, found))
    return f"{text[0].upper()}{text[1:]}."


PROCESSING = (study, leaving, receiving, retention, safeguards)


def _plan(file: DossierSources) -> RunConfiguration | None:
    """Of the run; None if it recorded none, or one that cannot be read here."""
    try:
        return RunConfiguration.from_dict(file.info["plan"])
    except (BadInput, KeyError):
        return None
