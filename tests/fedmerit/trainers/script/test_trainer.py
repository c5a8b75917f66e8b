"""Scripts of the sites' own: their answers and faults, which methods they can do, and whole runs."""

import hashlib
import json
import math
import re
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nvflare.app_common.abstract.fl_model import FLModel
from refusals import broken_rules
from torch import nn

from fedmerit import client
from fedmerit.contract import flat
from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.method import Layout
from fedmerit.engines.nvflare.script_recipe import describe_script, plain_weights, require_args
from fedmerit.errors import BadInput
from fedmerit.methods.registry import METHODS, build_method
from fedmerit.reasons import SCRIPT_RAISED
from fedmerit.schema.configuration.requirements import unmet_needs
from fedmerit.schema.configuration.run import RunConfiguration, configure_script
from fedmerit.schema.configuration.script import Script, find_names, find_uses
from fedmerit.schema.expected import check_enrolment, check_model
from fedmerit.schema.messages import Evaluation, Task
from fedmerit.schema.rules import TENSOR_NAME
from fedmerit.site.enrolment import make_enrolment
from fedmerit.site.policy import Manifest
from fedmerit.trainers.factory import build_network, read_layout
from fedmerit.trainers.memory import Memory, MemoryFolder
from fedmerit.trainers.script.named_tensors import NamedTensors, describe, load_weights
from fedmerit.trainers.script.restarts import ScriptEnded
from fedmerit.trainers.script.trainer import (
    FEDCE_ERROR,
    FEDCE_WEIGHTS,
    SCAFFOLD_ALL,
    SCAFFOLD_CHANGE,
    STEPS,
    Said,
    ScriptTrainer,
)


class Net(nn.Module):
    """A convolution, a norm and an output layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
        self.last = nn.Conv2d(2, 1, 1)
        self.table = nn.Parameter(torch.ones(3, dtype=torch.float16), requires_grad=False)
        self.register_buffer("places", torch.arange(-2, 2, dtype=torch.int32))


NET = Net()
TENSORS, OUTPUT = describe(NET)
SCRIPT = Script(tensors=TENSORS, output=OUTPUT, metric="dice", evaluates=True)


def configured(method="fedavg", script=SCRIPT, **settings):
    return configure_script(method, 3, script, settings=settings)


@pytest.fixture
def trainer(tmp_path):
    def make(said, method="fedavg", script=SCRIPT, first=None, **settings):
        heard = []

        def ask(question):
            heard.append(question)
            return said(question) if callable(said) else said

        made = ScriptTrainer("site-1", configured(method, script, **settings), tmp_path / "memory", ask)
        load_weights(made.network, first or plain_weights(NET))
        return made, heard

    return make


def state():
    return NET.state_dict()


def task_of(trainer, round=0, **more):
    return Task(round, flat.get_parameters(trainer.network), flat.get_buffers(trainer.network), **more)


def trained(trainer, **more):
    task = task_of(trainer, **more)
    return task, trainer.train(task, task.parameters, None, "")


def moved(question, by=1.0):
    return {name: value + by if value.is_floating_point() else value for name, value in question.state.items()}


def test_a_configuration_survives_json_and_says_nothing_of_a_training_of_ours():
    config = configured("cgsv", alpha=0.9, metric="accuracy", highest="100")
    content = config.to_dict()
    assert not {"network", "training", "preprocessing"} & set(content)
    assert RunConfiguration.from_dict(json.loads(json.dumps(content))) == config
    assert (config.script.metric, config.network.labels, config.parameters["alpha"]) == ("accuracy", ("accuracy",), 0.9)
    with pytest.raises(BadInput, match="network of a run by script"):
        RunConfiguration.from_dict(content | {"network": {}})


def test_a_network_of_names_has_the_layout_of_the_module_they_are_of():
    network = build_network(configured().network)
    named, own = read_layout(network), read_layout(NET)
    there = [place for place, name in enumerate(named.names) if name != "table"]  # frozen: a parameter here
    assert [named.names[place] for place in there] == list(own.names)
    assert [named.tensor_sizes[place] for place in there] == list(own.tensor_sizes)
    assert [named.norms[place] for place in there] == list(own.norms)
    assert isinstance(named, Layout)
    rows = torch.arange(sum(named.tensor_sizes))[named.outputs]
    assert rows.shape == own.outputs.shape
    assert {name for name, _ in network.named_buffers()} == {name for name, _ in NET.named_buffers()}
    with pytest.raises(BadInput, match="applied by its own module"):
        network(torch.zeros(1))


@pytest.mark.parametrize("name", ["type", "train.half", "fedmerit_tensors.weight", "last"])
def test_a_tensor_may_have_the_name_of_an_attribute_or_of_a_module(name):
    state = {name: torch.ones(2), "last.weight": torch.ones(3)}
    network = NamedTensors({"tensors": [asdict(one) for one in describe(state)[0]]})
    load_weights(network, state)
    assert {name: value.tolist() for name, value in network.state_dict().items()} == {
        name: [1, 1],
        "last.weight": [1] * 3,
    }


def test_a_script_gets_its_own_kinds_of_numbers_and_may_give_all_or_what_changed(trainer):
    for is_difference in (False, True):
        made, heard = trainer(
            lambda question, kind=is_difference: Said(
                {name: value - question.state[name] for name, value in moved(question).items()}
                if kind
                else moved(question),
                kind,
                {"dice": 0.5, "loss": 3.0},
                {STEPS: 7},
            )
        )
        task, result = trained(made)
        assert {name: value.dtype for name, value in heard[0].state.items()} == {n: v.dtype for n, v in state().items()}
        assert torch.allclose(result.learned.update, torch.ones_like(task.parameters), atol=1e-3)
        assert torch.equal(result.learned.trained, task.parameters + result.learned.update)
        assert result.num_samples == 7
        assert [one.dice for one in result.overlaps] == [0.5]
        assert math.isnan(result.learned.loss)  # its other metrics stay with it
        assert check_model(result.learned.update, result.learned.buffers, task.parameters, task.buffers) is None


def test_of_a_model_of_arrays_the_script_gets_arrays(trainer, tmp_path):
    model = {"weights": np.ones((2, 3), np.float64), "steps": np.array(4)}
    (tmp_path / "client.py").write_text("pass")
    described = describe_script(model, tmp_path / "client.py")
    made, heard = trainer(
        lambda question: Said({name: value + 1 for name, value in question.state.items()}),
        script=described,
        first=plain_weights(model),
    )
    _, result = trained(made)
    assert {name: value.dtype for name, value in heard[0].state.items()} == {"weights": np.float64, "steps": np.int64}
    assert result.learned.update.tolist() == [1] * 6
    assert result.learned.buffers["steps"] == 5


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"names": np.array(["a"])}, "names is ndarray; expected tensors, or NumPy's arrays of numbers"),
        (
            {"mask": torch.tensor([0, -torch.inf])},
            "mask has NaN or infinite entries; mend it, or register a buffer with persistent=False",
        ),
        ({"steps": torch.tensor(1)}, "no parameters"),
        ({"a/b": torch.ones(1)}, "its name may have"),
    ],
)
def test_a_model_that_cannot_be_sent_is_refused(model, words):
    with pytest.raises(BadInput, match=f"^model: .*{words}"):
        describe(model)


def test_of_part_of_the_tensors_the_rest_is_unchanged_and_the_first_count_of_steps_counts(trainer):
    made, _ = trainer(
        lambda question: Said(
            {"last.bias": torch.full((1,), 5.0, dtype=torch.bfloat16)}, meta={STEPS: 3 + question.round}
        )
    )
    for round in (0, 1):
        _, result = trained(made, round=round)
        changed = result.learned.update.nonzero().flatten().tolist()
        assert len(changed) == 1
        assert result.learned.trained[changed[0]] == 5
        assert result.num_samples == 3
        assert result.unsent == len(TENSORS) - 1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Said(), "sent no parameters"),
        (Said([torch.ones(1)]), "parameters as list; expected tensors by name"),
        (
            Said({"module.last.bias": torch.ones(1)}),
            "'module.last.bias', which the model does not have; did you mean last.bias. leave out 'module.'",
        ),
        (Said({"model": {"last.bias": torch.ones(1)}}), "'model', .*; it holds names itself"),
        (Said({"last.bias": torch.ones(1, device="meta")}), "last.bias as a tensor without numbers"),
        (Said({"last.bias": torch.tensor([1e300]).double()}), "last.bias with NaN or infinite entries"),
        (Said({"last.bias": torch.tensor([1e7])}), r"last.bias with changes up to 1e\+07; expected at most 1e\+06"),
        (Said({"first.1.running_var": torch.tensor([1.0, -2.0])}), "running_var with -2; expected a variance"),
        (Said({"first.1.running_mean": torch.tensor([1.0, 1e13])}), r"running_mean with statistics up to 1e\+13"),
        (Said({"last.bias": "file"}), "last.bias as str; expected a tensor"),
        (Said({"last.bias": torch.ones(2)}), r"last.bias of shape \(2,\); the model's is \(1,\)"),
        (Said({"last.bias": torch.ones(1)}, metrics={"dice": 1.5}), "dice is 1.5; expected 0 to 1"),
        (Said({"last.bias": torch.ones(1)}, metrics={"dice_by_case": 3}), "no list"),
        (Said({"last.bias": torch.ones(1)}, metrics={"dice": {"a": 1}}), "expected a number"),
        (Said({"last.bias": torch.ones(1, dtype=torch.int64)}), "last.bias as int64; expected numbers with fractions"),
        (Said({"last.bias": torch.ones(1) * 1j}), "last.bias as complex64; expected numbers with fractions"),
        (Said({"last.bias": torch.tensor([math.nan])}), "last.bias with NaN or infinite entries"),
        (Said({"first.1.running_mean": torch.tensor([0, math.inf])}), "running_mean with NaN or infinite entries"),
        *(
            (Said({"last.bias": torch.ones(1)}, meta={STEPS: steps}), STEPS)
            for steps in (0, 2.5, math.nan, "many", 10**30)
        ),
    ],
)
def test_an_answer_that_is_none_names_site_and_tensor(trainer, said, words):
    made, _ = trainer(said)
    with pytest.raises(BadInput, match=f"^site site-1: .*{words}"):
        trained(made)


@pytest.mark.parametrize(
    "array", [np.ones(2, ">f4"), np.ones(2)[::-1], np.ma.masked_array([1.0, 1.0], False), [1.0, 1.0]]
)
def test_train_takes_arrays_of_any_layout(trainer, array):
    made, _ = trainer(Said({"first.1.weight": array}))
    assert flat.named(made.network, trained(made)[1].learned.trained)["first.1.weight"].tolist() == [1, 1]


def test_differences_sent_as_a_model_and_the_reverse_are_refused_at_the_first_answer(trainer):
    wide = nn.Sequential(nn.Linear(8, 8))
    tensors, output = describe(wide)
    script, first = replace(SCRIPT, tensors=tensors, output=output), plain_weights(wide)
    changes = {name: torch.full_like(value, 0.01) for name, value in first.items()}
    whole = {name: value + changes[name] for name, value in first.items()}
    for said, words in (
        (Said(changes), "differences to the model as params_type FULL"),
        (Said(whole, is_difference=True), "a model as params_type DIFF"),
    ):
        with pytest.raises(BadInput, match=words):
            trained(trainer(said, script=script, first=first)[0])
    answers = [Said(whole), Said(metrics={"dice": 0.5}), Said(changes)]  # a later answer is not judged
    made, _ = trainer(lambda question: answers.pop(0), script=script, first=first)
    assert trained(made)[1].learned.update.norm() > 0
    assert trained(made)[1].learned.update.norm() > 0


@pytest.mark.parametrize(
    ("metrics", "places"),
    [
        ({"val/dice (%)_by_case": torch.tensor([0.5, math.nan, 1.0])}, {"000": 0.5, "002": 1.0}),  # an empty reference
        ({"val/dice (%)_by_case": np.array([0.25])}, {"000": 0.25}),
        ({"val/dice (%)": torch.tensor(0.75)}, {"000": 0.75}),
        ({"val/dice (%)": math.nan}, {}),
        ({}, {}),
    ],
)
def test_a_metric_has_any_name_its_values_may_be_an_array_and_of_a_case_not_known(trainer, metrics, places):
    named = replace(SCRIPT, metric="val/dice (%)")
    made, _ = trainer(lambda question: Said(moved(question), metrics=metrics, meta={STEPS: np.int64(6)}), script=named)
    result = trained(made)[1]
    assert {one.case: one.dice for one in result.overlaps} == places
    assert result.num_samples == 6
    assert all(re.fullmatch(TENSOR_NAME, one.label) for one in result.overlaps)
    assert {one.label for one in result.overlaps} <= {*made.config.network.labels}


def evaluation(trainer, count=2):
    task = task_of(trainer)
    models = torch.stack([task.parameters, task.parameters + 1])[:count]
    return Evaluation(1, "testing", models, torch.eye(count).double(), (task.buffers,), torch.ones(count, 1).double())


def test_models_are_scored_by_case_equal_ones_once_and_less_can_be_better(trainer):
    low = replace(SCRIPT, metric="error", highest=10.0, better="lower")
    made, heard = trainer(Said(metrics={"error": 1.0, "error_by_case": [0.0, 2.5]}), script=low)
    task = evaluation(made)
    answer = made.evaluate(
        replace(task, mixtures=torch.tensor([[1.0, 0], [0, 1], [1, 0]]).double(), shares=torch.ones(3, 1).double())
    )
    assert [[one.dice for one in of_model] for of_model in answer.overlaps] == [[1.0, 0.75]] * 3
    assert [question.meta["split"] for question in heard] == ["testing"] * 2


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Said(metrics={"loss": 1.0}), "has no 'dice'; it has loss; name one of them as key_metric"),
        (Said(), r"has no 'dice'; send FLModel\(metrics"),
        (Said(metrics={"dice": math.nan}), "evaluates no case, or 'dice' of each is NaN"),
        (Said(metrics={"dice_by_case": []}), "evaluates no case"),
        (Said({"last.bias": torch.ones(1)}, metrics={"dice": 1.0}), "is_evaluate"),
    ],
)
def test_an_evaluation_without_the_metric_or_with_parameters_is_refused(trainer, said, words):
    made, _ = trainer(said)
    with pytest.raises(BadInput, match=words):
        made.evaluate(evaluation(made))


def test_train_tells_in_the_first_round_that_the_script_cannot_evaluate(trainer, tmp_path):
    reported = []

    def answer(question):
        if question.work == "train":
            return Said(moved(question), metrics={"dice": 0.5})
        raise ScriptEnded("ValueError: in evaluate", SCRIPT_RAISED.format("ValueError"))

    made, heard = trainer(answer)
    made._report = reported.append
    faults = [trained(made)[1].evaluation_fault]
    (tmp_path / "memory" / "round_0.pt").touch()
    faults.append(trained(made, round=1)[1].evaluation_fault)
    assert faults == ["its script ended with ValueError; the site's own log has its last lines", ""]
    assert [question.work for question in heard] == ["train", "evaluate", "train"]
    assert list(map(str, reported)) == ["ValueError: in evaluate"]


def test_fedce_gets_what_nvflares_helper_reports_and_the_cosine_of_the_updates(trainer):
    made, heard = trainer(
        lambda question: Said(moved(question), metrics={"dice": 0.5}, meta={FEDCE_ERROR: 0.25}),
        "fedce",
        helped("fedce"),
        guard="off",
    )
    task = task_of(made, round=1, weight=0.5)
    memory = Memory(task.parameters - 1, task.parameters, task.buffers)
    values = made.train(task, task.parameters, memory, "").values
    assert values.keys() == {"cosine", "minus_error"}
    assert values["minus_error"] == 0.25
    assert heard[0].meta[FEDCE_WEIGHTS] == {"site-1": 0.5}
    assert made.train(task, task.parameters, None, "").values == {}


NEEDS_NOTHING = "standalone fedavg fedavgm fedadam cgsv rffl dw eu rr shapfed fedbn silobn median trimmed krum fedmgda"
NEEDS_EVALUATION = "cffl cffl_released fedci eci fedvalue innovation"
NEEDS_HELPERS = {
    "fedce": "PTFedCEHelper", "fedce_nvflare": "fedce_minus_val", "fedprox": "PTFedProxLoss", "scaffold":
    "PTScaffoldHelper", "ditto": "with_own_model",
    **{name: "with_losses" for name, kind in METHODS.items() if any(one.startswith("loss") for one in kind.ranges)},
}  # fmt: skip


def test_every_method_says_before_round_0_what_it_needs():
    silent = replace(SCRIPT, evaluates=False)
    able = {name for name in METHODS.ours if not list(unmet_needs(name, build_method(name, {}), silent))}
    assert able == set(NEEDS_NOTHING.split())
    more = {name for name in METHODS.ours if not list(unmet_needs(name, build_method(name, {}), SCRIPT))}
    assert more - able == set(NEEDS_EVALUATION.split())
    for name in METHODS.ours:
        if name not in more:
            with pytest.raises(BadInput, match=f"^method {name}: .*script"):
                configured(name)
        if word := NEEDS_HELPERS.get(name):
            assert configured(name, replace(SCRIPT, uses=find_uses(f"from somewhere import {word}")))
    assert more | {*NEEDS_HELPERS} | {"pooled", "fedsac", "cycle", "vpdl"} == {*METHODS.ours}
    assert configured("fedave", guard="on")  # which asks for no losses then
    with pytest.raises(BadInput, match="uses='other': expected some of fedce, fedprox"):
        configured("cgsv", uses=("other",))


def test_what_a_script_uses_is_read_from_its_code_not_from_its_comments():
    text = """
# no is_evaluate here
import nvflare.client as flare
from nvflare.app_opt.pt.fedce import PTFedCEHelper as Helper
meta["fedprox_mu"]
"""
    assert find_uses(text) == ("fedce", "fedprox")
    for lightning in ("import nvflare.client.lightning as flare", "from nvflare.client import lightning",
                      "from nvflare.client.lightning import patch"):  # fmt: skip
        assert find_uses(lightning) == ("fedprox", "scaffold")
    assert "is_evaluate" not in find_names(text)
    assert {"is_evaluate", "flare"} <= find_names("if flare.is_evaluate(): pass")
    with pytest.raises(SyntaxError):
        find_names("if")


@pytest.mark.parametrize(
    ("text", "own_process", "words"),
    [
        ("--epochs 1  --lr 0.1", False, ""),
        ('--sizes {"a":1}', False, ""),
        ('--note "two words"', True, ""),
        ('--note "two words"', False, "splits them at every space"),
        ('--note "two', True, "No closing quotation"),
    ],
)
def test_arguments_arrive_as_they_are_written_or_are_refused(text, own_process, words):
    if not words:
        return require_args(text, own_process)
    with pytest.raises(BadInput, match=words):
        require_args(text, own_process)


def helped(*uses):
    return replace(SCRIPT, uses=uses)


def test_losses_of_the_received_model_are_what_qfedavg_and_fedave_ask_for(trainer):
    def said(question):
        losses = client.with_losses(SimpleNamespace(meta=None), [0.1, 0.3, 0.95])
        return Said(moved(question) if question.meta["split"] == "training" else {}, False, {"dice": 0.5}, losses.meta)

    assert trained(trainer(said, "qfedavg", helped("losses"))[0])[1].values == {"loss": pytest.approx(0.45)}
    made, _ = trainer(said, "fedave", helped("losses"), bins=4)
    assert list(trained(made)[1].values.values()) == [1, 1, 0, 1]
    assert made.evaluate(replace(evaluation(made), bins=4)).losses.tolist() == [[1, 1, 0, 1]] * 2


@pytest.mark.parametrize(("losses", "words"), [(None, "with_losses"), ([], "with_losses"), ([0.5, 3.0], "loss of 3")])
def test_losses_that_are_none_are_refused(trainer, losses, words):
    made, _ = trainer(lambda question: Said(moved(question), meta={client.LOSSES: losses}), "qfedavg", helped("losses"))
    with pytest.raises(BadInput, match=f"^site site-1: .*{words}"):
        trained(made)


def test_scaffolds_controls_are_what_nvflares_helper_added_round_by_round(trainer):
    made, heard = trainer(
        lambda question: Said(moved(question), meta={SCAFFOLD_CHANGE: {"last.bias": np.ones(1, np.float32)}}),
        "scaffold",
        helped("scaffold"),
    )
    memory, place = MemoryFolder(made.memory), flat.flatten(
        {name: torch.full_like(value, name == "last.bias") for name, value in flat.trainable(made.network).items()},
        list(flat.trainable(made.network)),
    )  # fmt: skip
    for round in (0, 1):
        task, result = trained(made, round=round, vectors={"control": 3 * place})
        assert torch.equal(result.learned.vectors["control"], (round + 1) * place)
        memory.remember(round, Memory(task.parameters, task.parameters, task.buffers, kept=result.learned.kept))
    assert heard[-1].meta[SCAFFOLD_ALL]["last.bias"].tolist() == [3]
    lacking, _ = trainer(lambda question: Said(moved(question)), "scaffold", helped("scaffold"))
    with pytest.raises(BadInput, match="sent no scaffold_c_diff"):
        trained(lacking)


def test_a_sites_own_model_is_kept_there_and_is_no_part_of_its_update(trainer, tmp_path):
    def said(question):
        model = client.with_own_model(SimpleNamespace(params=moved(question), meta=None), moved(question, 4.0))
        return Said(model.params, meta=model.meta)

    made, heard = trainer(said, "ditto", helped("own_model"), lambda_=0.3)
    task, result = trained(made)
    assert torch.allclose(result.learned.update, torch.ones_like(task.parameters), atol=1e-3)
    assert torch.allclose(result.learned.own[0] - task.parameters, torch.full_like(task.parameters, 4.0), atol=1e-2)
    assert heard[0].meta[client.LAMBDA] == 0.3
    with pytest.raises(BadInput, match=r"sent no own model; call fedmerit\.client\.with_own_model"):
        trained(trainer(lambda question: Said(moved(question)), "ditto", helped("own_model"))[0])
    made.save(tmp_path, "site-1", result.learned.own)
    assert torch.load(tmp_path / "site-1.pt")["last.bias"].item() == pytest.approx(state()["last.bias"].item() + 4)


def test_cases_are_enrolled_by_salted_digests_and_their_number_counts(trainer, tmp_path, monkeypatch):
    files = [tmp_path / f"{number}.png" for number in range(3)]
    for file in files:
        file.write_text(file.name)
    client.enrol_cases([files[0], files[1:]], evaluated=files)
    questions, sent = [FLModel(metrics={"x": 0.0}, meta={client.ENROL: 1}), None], []
    monkeypatch.setattr("nvflare.client.receive", lambda timeout: questions.pop(0))
    monkeypatch.setattr("nvflare.client.send", sent.append)
    assert client.receive() is None  # what comes after the question
    digests = [hashlib.sha256(text).hexdigest() for text in (b"0.png", b"1.png2.png")]
    assert sent[0].meta[client.ENROL] == digests
    made, _ = trainer(lambda question: Said(moved(question), meta={**sent[0].meta, STEPS: 9}), script=helped("cases"))
    enrolled = make_enrolment(made.holdings(0), made.config, 0, "", "secret")
    assert check_enrolment(enrolled, 0) is None
    assert (enrolled.cases["training"], enrolled.cases["testing"]) == (2, 3)
    assert not {*enrolled.fingerprint} & {one[:32] for one in digests}
    assert trained(made)[1].num_samples == 2  # not 9
    with pytest.raises(BadInput, match=r"named no cases; call fedmerit\.client"):
        trainer(Said(metrics={"dice": 1.0}), script=helped("cases"))[0].holdings(0)


def test_settings_of_our_own_training_are_refused_and_unknown_ones_too():
    with pytest.raises(BadInput, match="'lr': of FedMerit's own training"):
        configured(lr=1)
    with pytest.raises(BadInput, match="'gama': unknown with method cgsv"):
        configured("cgsv", gama=1)


def test_models_that_single_sites_made_are_shared_only_if_the_method_cannot_do_without():
    assert not configured("cgsv").share_models
    assert configured("cffl").share_models
    assert not capabilities(configured("cgsv").build_guarded_method()).candidates


def test_a_site_starts_the_script_that_its_manifest_names_and_only_if_it_is_unchanged(tmp_path):
    file = tmp_path / "client.py"
    file.write_text("pass")
    digest = hashlib.sha256(b"pass").hexdigest()
    named = Manifest(site="site-1", script={"file": str(file), "sha256": digest})
    config = configured()
    assert broken_rules(named, config, 4) == []
    assert "the manifest names none" in broken_rules(Manifest(site="site-1"), config, 4)[0]
    file.write_text("changed")
    assert f"approved was {digest}" in broken_rules(named, config, 4)[0]
    assert (
        "share_models" in broken_rules(named, configured("cffl"), 4)[-1] + broken_rules(named, configured("cffl"), 4)[1]
    )


def test_parameter_of_a_script_run_given_as_text_is_read_as_a_number():
    configuration = configured("fedprox", replace(SCRIPT, uses=("fedprox",)), mu="0.25")
    assert configuration.parameters["mu"] == 0.25
