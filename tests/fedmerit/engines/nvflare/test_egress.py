"""The gate as NVFlare calls it: a result is made anew of what is listed, and an error leaves as its code alone."""

import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from pretending import NETWORK, SITES, replies, tiny_plan
from stepping import Stepped

from fedmerit.contract import flat
from fedmerit.engines.nvflare.egress import EgressFilter
from fedmerit.engines.nvflare.translation import answer_to_model, model_to_reply
from fedmerit.schema.egress_list import Withheld
from fedmerit.schema.messages import Failure, Reply

PATIENT = "Mueller_19450213"


@pytest.fixture
def reply():
    return Reply(2, flat.get_parameters(NETWORK), flat.get_buffers(NETWORK), 12, ())


def result(update, **parts):
    """What a site would send of these parts."""
    return DXO(DataKind.WEIGHT_DIFF, data=update, meta=parts).to_shareable()


def through_the_gate(answer, encrypted=False):
    shareable = FLModelUtils.to_shareable(answer_to_model(answer, NETWORK))
    left = EgressFilter(encrypted=encrypted).process(shareable, FLContext())
    return model_to_reply(FLModelUtils.from_shareable(left), NETWORK)


def test_a_result_is_made_anew_and_keeps_its_round():
    sent = result({"bias": np.ones(2, np.float32)}, train_loss=0.123456, patient=PATIENT)
    sent.set_header(AppConstants.CURRENT_ROUND, 3.0)
    left = EgressFilter(decimals=2).process(sent, FLContext())
    dxo = from_shareable(left)
    assert (dxo.data_kind, dxo.meta, list(dxo.data)) == (DataKind.WEIGHT_DIFF, {"train_loss": 0.12}, ["bias"])
    assert dxo.data["bias"].tolist() == [1.0, 1.0]
    told = left.get_header(AppConstants.CURRENT_ROUND)
    assert (told, type(told)) == (3, int)
    unnumbered = EgressFilter().process(result({}, failure="no reply"), FLContext())
    assert unnumbered.get_header(AppConstants.CURRENT_ROUND) is None


def test_a_round_that_is_text_does_not_leave():
    sent = result({})
    sent.set_header(AppConstants.CURRENT_ROUND, PATIENT)
    with pytest.raises(ValueError, match="invalid literal"):
        EgressFilter().process(sent, FLContext())


def test_an_error_leaves_as_its_code_alone():
    shareable = DXO(DataKind.WEIGHT_DIFF, data={}, meta={"patient": PATIENT}).to_shareable()
    shareable.set_return_code(ReturnCode.EXECUTION_EXCEPTION)
    left = EgressFilter().process(shareable, FLContext())
    assert left.get_return_code() == ReturnCode.EXECUTION_EXCEPTION
    assert PATIENT not in repr(left)


def test_a_site_can_insist_on_encryption(tmp_path):
    plain = replies(Stepped(tiny_plan("fedavg"), SITES, tmp_path / "run"))["Alder"]
    assert isinstance(through_the_gate(plain), Reply)
    with pytest.raises(Withheld, match="only encrypted"):
        through_the_gate(plain, encrypted=True)
    assert isinstance(through_the_gate(Failure("no reply"), encrypted=True), Failure)
