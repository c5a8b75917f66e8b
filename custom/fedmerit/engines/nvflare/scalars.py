"""Scalars of the rounds for NVFlare's analytics receivers at the server. Sites send nothing for them.

The server knows every number already; it hands them to its own receivers as if each site had sent its own, so that
TensorBoard gets a folder and MLflow a run per site.
"""

from collections.abc import Mapping
from typing import Any

from nvflare.apis.analytix import ANALYTIC_EVENT_TYPE, AnalyticsDataType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import EventScope, FedEventHeader, FLContextKey, ReservedKey
from nvflare.apis.utils.analytix_utils import create_analytic_dxo

from fedmerit.engines.live_curves import EXPERIMENT, scalars
from fedmerit.schema.configuration.specs import MLflow, parse_tracker

RECEIVERS = (
    "nvflare.app_opt.tracking.tb.tb_receiver.TBAnalyticsReceiver",
    "nvflare.app_opt.tracking.mlflow.mlflow_receiver.MLflowReceiver",
)


def receiver(spec: str) -> FLComponent:
    """Return NVFlare's receiver of a spec of `fedmerit.schema.configuration.specs`."""
    tracker = parse_tracker(spec)
    if isinstance(tracker, MLflow):
        from nvflare.app_opt.tracking.mlflow.mlflow_receiver import MLflowReceiver  # both need optional packages

        return MLflowReceiver(tracking_uri=tracker.uri or None, kw_args={"experiment_name": EXPERIMENT})
    from nvflare.app_opt.tracking.tb.tb_receiver import TBAnalyticsReceiver

    return TBAnalyticsReceiver()


def track(engine: Any, record: Mapping[str, Any]) -> None:
    """Fire an analytics event for every scalar of a round."""
    for site, tag, value in scalars(record):
        event = create_analytic_dxo(tag, value, AnalyticsDataType.SCALAR, global_step=record["round"]).to_shareable()
        event.set_peer_props({ReservedKey.IDENTITY_NAME: site})
        event.set_header(FedEventHeader.DIRECTION, "in")  # as received: NVFlare does not send it on
        with engine.new_context() as fl_ctx:
            fl_ctx.set_prop(FLContextKey.EVENT_DATA, event, private=True, sticky=False)
            fl_ctx.set_prop(FLContextKey.EVENT_SCOPE, EventScope.FEDERATION, private=True, sticky=False)
            engine.fire_event(f"fed.{ANALYTIC_EVENT_TYPE}", fl_ctx)
