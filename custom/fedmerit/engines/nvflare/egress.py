"""The gate of a site as NVFlare's last result filter."""

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from fedmerit.contract.method import DECIMALS
from fedmerit.schema.egress import clear_message
from fedmerit.schema.survey import LEAST


class EgressFilter(Filter):
    """A filter that builds every result again from the fields that may leave.

    The job installs it; a site that wants it in every job names it in its own ``local/privacy.json``.

    Args:
        decimals: to which reported numbers are rounded. Below 3, FedCE's check of claims begins to flag honest sites.
        encrypted: nothing a site trained passes in the clear: it takes part only in encrypted runs.
        least: patients behind every number of a survey; one with a lower floor does not pass.
    """

    def __init__(self, decimals: int = DECIMALS, encrypted: bool = False, least: int = LEAST):
        super().__init__()
        if not 0 <= decimals <= DECIMALS:
            raise ValueError(f"decimals={decimals}: expected 0 to {DECIMALS}")
        self.decimals, self.encrypted, self.least = decimals, encrypted, least

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Return what may leave of a result.

        Raises:
            Withheld: a field has another form than declared; NVFlare then sends a return code instead of the result.
        """
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return make_reply(code)
        dxo = from_shareable(shareable)
        data, parts = clear_message(dxo.data, dxo.meta, self.decimals, self.encrypted, self.least)
        return DXO(DataKind.WEIGHT_DIFF, data=data, meta=parts).to_shareable()
