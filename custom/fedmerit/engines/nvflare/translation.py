"""Messages as NVFlare's models and requests."""

from typing import Any

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from torch import nn

from fedmerit.errors import BadInput
from fedmerit.schema.codec import KIND, decode, encode
from fedmerit.schema.messages import ANSWERS, WORK, Answer, Failure, PeerModel, Work
from fedmerit.schema.rules import Message


def message_to_model(message: Message, network: nn.Module, rounds: int | None = None) -> FLModel:
    """Return a task or an answer as NVFlare carries it; ``rounds``: of the run, for NVFlare's own use."""
    params, fields = encode(message, network)
    kind = ParamsType.FULL if isinstance(message, WORK) else ParamsType.DIFF
    current: Any = getattr(message, "round", None)
    return FLModel(params_type=kind, params=params, current_round=current, total_rounds=rounds, meta=fields)


def model_to_task(model: FLModel, network: nn.Module) -> Work:
    """Return the task that a site received; raise `BadInput` if it is none."""
    task: Work = decode(model.params, model.meta, network, WORK)
    return task


def model_to_answer(model: FLModel, network: nn.Module) -> Answer:
    """Return the answer that the server received; a `Failure` that says why, if it is none."""
    if not isinstance(model.params_type, str) or model.params_type != ParamsType.DIFF:
        return Failure("a model instead of an update")
    try:
        answer: Answer = decode(model.params, model.meta, network, ANSWERS)
    except BadInput as error:
        return Failure(str(error))
    return answer


def peer_to_shareable(model: PeerModel | None, network: nn.Module) -> Shareable:
    """Return a site's answer to a peer that asks for its model."""
    reply = make_reply(ReturnCode.OK)
    if model is not None:
        reply.update(encode(model, network)[1])
    return reply


def shareable_to_peer(reply: Shareable, network: nn.Module) -> PeerModel | None:
    """Return the model of a peer, None if it shares none; raise `RuntimeError` or `BadInput` if it is no answer."""
    if reply.get_return_code() != ReturnCode.OK:
        raise RuntimeError(f"answers {reply.get_return_code()}")
    return decode({}, reply, network, (PeerModel,)) if KIND in reply else None
