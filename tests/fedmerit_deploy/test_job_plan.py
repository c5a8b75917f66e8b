"""Test the description of a job for a hospital's data officer."""

from dataclasses import replace

from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS, OWN
from fedmerit.schema.configuration.run import configure_script, make_configuration
from fedmerit.schema.configuration.script import NamedTensor, Script
from fedmerit.schema.configuration.settings import TASKS
from fedmerit.schema.messages import ANSWERS, ClosingReceipt, Enrolment, Evaluated, Failure, Importance, Reply
from fedmerit.schema.rules import parts_of
from fedmerit.schema.survey import Surveyed
from fedmerit_deploy.job_plan import Job, describe_job, parts_at_the_end, parts_before, parts_each_round


def plan(method="fedavg", task="prostate", keep_updates=False, values=(), share_models=False, **settings):
    network = {"in_channels": TASKS[task]["in_channels"], "labels": TASKS[task]["labels"]}
    settings = {"guard": "on", **settings}
    config = make_configuration(method, task, 30, 0, network, settings, values, keep_updates)
    return replace(config, share_models=share_models)


def test_describe_job_names_every_part_of_egress_list():
    named = set()
    settings = [
        {"guard": "on"},
        {"guard": "off"},
        {"norm": "batch", "final_model": "selected", "validate_trained": True},
    ]
    for method in OWN:
        optimizer = {"optimizer": "sgd"} if method == "scaffold" else {}
        for more in settings:
            try:
                config = plan(method, **optimizer, **more)
            except BadInput:  # the method needs the guard
                continue
            for filters in ((), ("he",)):
                job = Job("j", config.to_dict(), filters)
                parts = [*parts_before(config), *parts_each_round(job, config), *parts_at_the_end(config)]
                named |= {name for name, _ in parts}
                assert dict(describe_job(job, config))["never leaves"]
    peers = plan("cycle", exchange="peer", warmup_by="own")
    named |= {name for name, _ in parts_each_round(Job("j", {}), peers)}
    private = plan("fedavg", dp_noise=1.0)
    named |= {name for name, _ in parts_each_round(Job("j", {}), private)}
    script = Script(tensors=(NamedTensor("weight", (2,)),), metric="dice")
    named |= {name for name, _ in parts_each_round(Job("j", {}), configure_script("fedavg", 3, script))}
    whole = {Enrolment: "enrolment", ClosingReceipt: "countersigned", Failure: "failure"}
    fields = {part.name for kind in (Reply, Evaluated, Importance) for part in parts_of(kind)} - {"round"}
    assert set(ANSWERS) == {Reply, Evaluated, Importance, Surveyed, *whole}
    assert named == fields | set(whole.values()) | {"model"}
    assert set(OWN) <= set(METHODS)
