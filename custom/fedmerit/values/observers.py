"""What can be observed of a run, by name."""

from fedmerit.plugins import Catalogue
from fedmerit.values.alone import Alone
from fedmerit.values.carried import Carried
from fedmerit.values.in_run import InRun
from fedmerit.values.observing import Observer
from fedmerit.values.others_lose import OthersLose

OWN = {"in_run": InRun, "carried": Carried, "others_lose": OthersLose, "alone": Alone}
OBSERVERS: Catalogue[type[Observer]] = Catalogue(
    "observers",
    OWN,
    lambda part: isinstance(part, type) and issubclass(part, Observer),
    "a frozen dataclass derived from fedmerit.values.observing.Observer",
)
