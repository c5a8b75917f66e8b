from fedmerit.plugins import register as register
from fedmerit_api.calls import compare as compare
from fedmerit_api.calls import load_run as load_run
from fedmerit_api.calls import prepare as prepare
from fedmerit_api.calls import report as report
from fedmerit_api.calls import rounds as rounds
from fedmerit_api.calls import run as run

__version__: str
