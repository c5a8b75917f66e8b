"""The gate as NVFlare calls it: a result is built again of its declared fields, and an error leaves as its code."""

from dataclasses import replace

import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from pretending import NETWORK

from fedmerit.contract import flat
from fedmerit.engines.nvflare.egress import EgressFilter
from fedmerit.engines.nvflare.translation import message_to_model, model_to_answer
from fedmerit.schema.messages import Reply

PATIENT = "Mueller_19450213"


@pytest.fixture
def reply():
    return Reply(2, flat.get_parameters(NETWORK), flat.get_buffers(NETWORK), 12, ())


def through_the_gate(answer, **gate):
    shareable = FLModelUtils.to_shareable(message_to_model(answer, NETWORK))
    shareable.set_header("patient", PATIENT)
    left = EgressFilter(**gate).process(shareable, FLContext())
    assert PATIENT not in repr(left)
    return model_to_answer(FLModelUtils.from_shareable(left), NETWORK)


def test_result_is_built_again_of_its_declared_fields(reply):
    left = through_the_gate(replace(reply, train_loss=0.123456), decimals=2)
    assert (left.train_loss, left.round) == (0.12, 2)
    assert torch.equal(left.update, reply.update)


def test_an_error_leaves_as_its_code_only():
    shareable = DXO(DataKind.WEIGHT_DIFF, data={}, meta={"patient": PATIENT}).to_shareable()
    shareable.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
    left = EgressFilter().process(shareable, FLContext())
    assert left.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert PATIENT not in repr(left)
