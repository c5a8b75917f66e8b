"""What privacy filters need of a method."""

from collections.abc import Sequence

from fedmerit.ciphertexts import require_tenseal
from fedmerit.contract.capabilities import capabilities
from fedmerit.contract.method import Method
from fedmerit.errors import BadInput
from fedmerit.schema.configuration import spec_syntax
from fedmerit.schema.configuration.filters import HE, KINDS, parse

PEER_MODELS_UNFILTERED = "its models go from site to site, past the filters of what goes to the server"
BESIDE = "its sites send another vector beside the update, and the filters see only the update"
ONE_OF_THEM = "a filter acts on an update in the clear, and updates leave encrypted; take one or the other"
SINGLE = "its server half needs single updates or the model in the clear, which a server that adds ciphertexts has not"


def require_privacy(specs: Sequence[str], name: str, method: Method) -> list[str]:
    """The specs, complete; `BadInput` if one is invalid, or the method ``name`` cannot work with filters."""
    if HE in specs:
        if not method.needs.sums_only:
            raise BadInput(f"--privacy {HE}: not with method {name}: {SINGLE}")
        if len(specs) > 1:
            raise BadInput(f"--privacy {HE}: not with others: {ONE_OF_THEM}")
        require_tenseal(f"--privacy {HE}")
        return [HE]
    complete = [spec_syntax.format_spec(parse(spec), KINDS) for spec in specs]
    can = capabilities(method)
    why_not = method.needs.unfiltered or (
        PEER_MODELS_UNFILTERED if can.exchanges_directly else BESIDE if can.vectors else ""
    )
    if complete and why_not:
        raise BadInput(f"--privacy {complete[0]}: not with method {name}: {why_not}")
    return complete
