"""Tasks and replies as NVFlare carries them: FLModels of named numpy arrays.

Updates and models go by parameter name, so that NVFlare's own filters can work on them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from torch import Tensor, nn

from fedmerit.ciphertexts import Ciphertexts
from fedmerit.contract import flat
from fedmerit.schema.messages import (
    Answer,
    ClosingReceipt,
    ClosingTask,
    Enrolment,
    EnrolmentTask,
    Evaluated,
    Evaluation,
    Failure,
    Importance,
    ImportanceTask,
    PeerModel,
    Purpose,
    Reply,
    SparseUpdate,
    Task,
    Work,
)
from fedmerit.schema.scores import Overlap

Arrays = Mapping[str, NDArray[Any]]
PARAMETERS, BUFFERS = "parameters", "buffers"  # of the message that carries a peer's model


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _named(network: nn.Module, vector: Tensor) -> dict[str, Tensor]:
    """As `flat.named`; nothing of a vector (0,), which stands for the site's own."""
    return flat.named(network, vector) if len(vector) else {}


def _vector(params: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """The vector of which `_named` made ``params``."""
    return flat.flatten(params, names) if params else torch.empty(0)


def _vectors(value: Mapping[str, Arrays], names: Sequence[str]) -> dict[str, Tensor]:
    return {str(name): flat.flatten(_tensors(arrays), names) for name, arrays in value.items()}


def _pieces(ciphertexts: Ciphertexts | None) -> dict[str, list[bytes]] | None:
    return None if ciphertexts is None else {name: list(pieces) for name, pieces in vars(ciphertexts).items()}


def _ciphertexts(value: Mapping[str, Sequence[bytes]] | None) -> Ciphertexts | None:
    return None if value is None else Ciphertexts(**{name: tuple(pieces) for name, pieces in value.items()})


def peer_to_shareable(model: PeerModel | None, network: nn.Module) -> Shareable:
    """What a site answers a peer that asks for its model."""
    reply = make_reply(ReturnCode.OK)
    if model is not None:
        reply[PARAMETERS] = _arrays(_named(network, model.parameters))
        reply[BUFFERS] = _arrays(model.buffers)
    return reply


def shareable_to_peer(reply: Shareable, network: nn.Module) -> PeerModel | None:
    """What the peer makes of it; `RuntimeError` if it is no such answer."""
    if reply.get_return_code() != ReturnCode.OK:
        raise RuntimeError(f"answers {reply.get_return_code()}")
    if PARAMETERS not in reply:
        return None
    parameters = flat.flatten(_tensors(reply[PARAMETERS]), list(flat.trainable(network)))
    return PeerModel(parameters, _tensors(reply[BUFFERS]), math.nan)


def task_to_model(task: Work, network: nn.Module, rounds: int) -> FLModel:
    """What the server sends one site."""
    is_sparse = isinstance(task, Task) and isinstance(task.parameters, SparseUpdate)
    params, meta = _content(task, network)
    kind = ParamsType.DIFF if is_sparse else ParamsType.FULL
    return FLModel(params_type=kind, params=params, current_round=task.round, total_rounds=rounds, meta=meta)


def _content(task: Work, network: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and meta of a message to a site."""
    if isinstance(task, EnrolmentTask):
        return {}, {"enrol": True, "ledger": task.ledger}
    if isinstance(task, ClosingTask):
        return {}, {"closing": task.closing, "ledger": task.ledger}
    if isinstance(task, ImportanceTask):
        meta = {"split": task.split, "buffers": _arrays(task.buffers), "order": task.order, "images": task.images}
        return _arrays(flat.named(network, task.model)), meta | {"ledger": task.ledger}
    if isinstance(task, Evaluation):
        models = {
            f"{place}/{name}": array
            for place, model in enumerate(task.models)
            for name, array in _arrays(_named(network, model)).items()
        }
        return models, {
            "split": task.split,
            "mixtures": task.mixtures.numpy(),
            "shares": task.shares.numpy(),
            "buffers": [_arrays(buffers) for buffers in task.buffers],
            "bins": task.bins,
            "purpose": str(task.purpose),
            "ledger": task.ledger,
            "ciphertexts": _pieces(task.ciphertexts),
        }
    params = vars(task.parameters) if isinstance(task.parameters, SparseUpdate) else _named(network, task.parameters)
    of_peers = {
        f"{peer}/{name}": array
        for peer, model in task.peers.items()
        for name, array in _arrays(flat.named(network, model.parameters)).items()
    }
    return _arrays(params) | of_peers, {
        "buffers": _arrays(task.buffers),
        "weight": task.weight,
        "data_share": task.data_share,
        "ledger": task.ledger,
        "neurons": None if task.neurons is None else [np.packbits(task.neurons.numpy()), len(task.neurons)],
        "peers": {
            peer: {"buffers": _arrays(model.buffers), "weight": model.weight} for peer, model in task.peers.items()
        },
        "others": dict(task.others),
        "vectors": {name: _arrays(flat.named(network, vector)) for name, vector in task.vectors.items()},
        "ciphertexts": _pieces(task.ciphertexts),
    }


def model_to_task(model: FLModel, network: nn.Module) -> Task:
    """What the site makes of a training task."""
    params, names = _tensors(model.params), list(flat.trainable(network))
    peers = {
        peer: PeerModel(
            flat.flatten(params, [f"{peer}/{name}" for name in names]), _tensors(entry["buffers"]), entry["weight"]
        )
        for peer, entry in model.meta["peers"].items()
    }
    whole = model.params_type == ParamsType.FULL
    neurons = None
    if model.meta["neurons"] is not None:
        bits, count = model.meta["neurons"]
        if not 0 <= count <= 8 * len(bits):  # NumPy would make as many as it says
            raise ValueError(f"{count} neurons in {len(bits)} bytes")
        neurons = torch.from_numpy(np.unpackbits(bits, count=count).astype(bool))
    return Task(
        round=model.current_round,
        parameters=_vector(params, names) if whole else SparseUpdate(params["indices"], params["values"]),
        buffers=_tensors(model.meta["buffers"]),
        weight=model.meta["weight"],
        data_share=model.meta["data_share"],
        ledger=model.meta["ledger"],
        neurons=neurons,
        peers=peers,
        others=model.meta["others"],
        vectors=_vectors(model.meta["vectors"], names),
        ciphertexts=_ciphertexts(model.meta["ciphertexts"]),
    )


def model_to_evaluation(model: FLModel, network: nn.Module) -> Work:
    """What the site makes of an evaluation, of models or of neurons, of an enrolment, and of how the run was closed."""
    if "enrol" in model.meta:
        return EnrolmentTask(model.current_round, model.meta["ledger"])
    if "closing" in model.meta:
        return ClosingTask(model.current_round, model.meta["closing"], model.meta["ledger"])
    params, names = _tensors(model.params), list(flat.trainable(network))
    if "order" in model.meta:
        return ImportanceTask(
            round=model.current_round,
            split=model.meta["split"],
            model=flat.flatten(params, names),
            buffers=_tensors(model.meta["buffers"]),
            order=model.meta["order"],
            images=model.meta["images"],
            ledger=model.meta["ledger"],
        )
    count = len(model.meta["mixtures"][0])
    return Evaluation(
        round=model.current_round,
        split=model.meta["split"],
        models=torch.stack([_vector(params, [f"{place}/{name}" for name in names]) for place in range(count)]),
        mixtures=torch.from_numpy(np.array(model.meta["mixtures"])),
        buffers=tuple(_tensors(buffers) for buffers in model.meta["buffers"]),
        shares=torch.from_numpy(np.array(model.meta["shares"])),
        bins=model.meta["bins"],
        ledger=model.meta["ledger"],
        ciphertexts=_ciphertexts(model.meta["ciphertexts"]),
        purpose=Purpose(model.meta["purpose"]),
    )


def answer_to_model(answer: Answer, network: nn.Module) -> FLModel:
    """What a site sends back."""
    params = _arrays(_named(network, answer.update)) if isinstance(answer, Reply) else {}
    round = None if isinstance(answer, Failure) else answer.round
    return FLModel(params_type=ParamsType.DIFF, params=params, current_round=round, meta=_answer_meta(answer, network))


def _answer_meta(answer: Answer, network: nn.Module) -> dict[str, Any]:
    """All of an answer but its update and round."""
    if isinstance(answer, Failure):
        return {"failure": answer.reason}
    if isinstance(answer, ClosingReceipt):
        return {"countersigned": True}
    meta: dict[str, Any] = {"seconds": answer.seconds}
    if isinstance(answer, Importance):
        return meta | {"increases": answer.increases.numpy(), "images": answer.images}
    if isinstance(answer, Enrolment):
        parts = {"cases": dict(answer.cases), "slices": dict(answer.slices), "fingerprint": list(answer.fingerprint)}
        own = {name: getattr(answer, name) for name in ("certificate", "seal", "preparation")}
        return meta | {"enrolment": parts | own}
    meta |= {"buffers": _arrays(answer.buffers), "log": answer.log}
    if isinstance(answer, Evaluated):
        overlaps = [[asdict(overlap) for overlap in of_model] for of_model in answer.overlaps]
        return meta | {"overlaps": overlaps, "losses": answer.losses.numpy(), "choice": answer.choice}
    meta |= {name: getattr(answer, name) for name in ("num_samples", "values", "train_loss", "pairs")}
    meta |= {name: [asdict(one) for one in getattr(answer, name)] for name in ("overlaps", "trained_overlaps")}
    meta["vectors"] = {name: _arrays(flat.named(network, vector)) for name, vector in answer.vectors.items()}
    return meta if answer.ciphertexts is None else meta | {"ciphertexts": _pieces(answer.ciphertexts)}


UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError)


def _number(value: object) -> float:
    """A number, neither text nor a boolean."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{type(value).__name__} instead of a number")
    return float(value)


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    return {str(name): _number(value) for name, value in values.items()}


def _overlaps(value: object) -> tuple[Overlap, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{type(value).__name__} instead of a list")
    return tuple(Overlap.from_dict(**overlap) for overlap in value)


def _round(model: FLModel) -> int:
    if type(model.current_round) is not int:
        raise TypeError(f"{type(model.current_round).__name__} instead of a round")
    return int(model.current_round)


def model_to_reply(model: FLModel, network: nn.Module) -> Reply | Failure:
    """What the server makes of a reply; a `Failure` if a part is missing or of another kind."""
    parts = flat.trainable(network)
    try:
        if "failure" in model.meta:
            return Failure(str(model.meta["failure"]))
        if model.params_type != ParamsType.DIFF:
            return Failure("a model instead of an update")
        params = _tensors(model.params)
        if params and set(params) != set(parts):
            return Failure("update with other parameter names than the model's")
        for name, value in params.items():
            if (value.shape, value.dtype) != (parts[name].shape, parts[name].dtype):
                kinds = f"{tuple(value.shape)} and {value.dtype}, expected {tuple(parts[name].shape)}"
                return Failure(f"update of {name} of shape {kinds} and {parts[name].dtype}")
        meta = model.meta
        return Reply(
            round=_round(model),
            update=_vector(params, list(parts)),
            buffers=_tensors(meta["buffers"]),
            num_samples=meta["num_samples"],
            overlaps=_overlaps(meta["overlaps"]),
            values=_numbers(meta["values"]),
            train_loss=_number(meta["train_loss"]),
            seconds=_number(meta["seconds"]),
            trained_overlaps=_overlaps(meta["trained_overlaps"]),
            pairs={str(name): _numbers(values) for name, values in meta["pairs"].items()},
            vectors=_vectors(meta["vectors"], list(parts)),
            ciphertexts=_ciphertexts(meta.get("ciphertexts")),
            log=meta["log"],
        )
    except UNREADABLE as error:
        return Failure(f"reply cannot be read ({type(error).__name__})")


def model_to_evaluated(model: FLModel, network: nn.Module) -> Answer:
    """What the server makes of an evaluation, likewise."""
    try:
        meta = model.meta
        if "failure" in meta:
            return Failure(str(meta["failure"]))
        if "enrolment" in meta:
            parts = meta["enrolment"]
            counts, prints = (dict(parts["cases"]), dict(parts["slices"])), tuple(parts["fingerprint"])
            own = {name: parts[name] for name in ("certificate", "seal", "preparation")}
            return Enrolment(_round(model), *counts, prints, **own, seconds=_number(meta["seconds"]))
        if "countersigned" in meta:
            return ClosingReceipt(_round(model))
        if "increases" in meta:
            return Importance(
                round=_round(model),
                increases=torch.from_numpy(np.array(meta["increases"], dtype=np.float64)),
                images=meta["images"],
                seconds=_number(meta["seconds"]),
            )
        return Evaluated(
            round=_round(model),
            overlaps=tuple(_overlaps(of_model) for of_model in meta["overlaps"]),
            losses=torch.from_numpy(np.array(meta["losses"], dtype=np.float64)),
            choice=meta["choice"],
            buffers=_tensors(meta["buffers"]),
            seconds=_number(meta["seconds"]),
            log=meta["log"],
        )
    except UNREADABLE as error:
        return Failure(f"evaluation cannot be read ({type(error).__name__})")
