from fedmerit.engines.nvflare.keep_updates import keep_updates as keep_updates
from fedmerit.engines.nvflare.script_recipe import FedMeritRecipe as FedMeritRecipe
from fedmerit.plugins import register as register
from fedmerit_cli.api import compare as compare
from fedmerit_cli.api import load_run as load_run
from fedmerit_cli.api import prepare as prepare
from fedmerit_cli.api import report as report
from fedmerit_cli.api import rounds as rounds
from fedmerit_cli.api import run as run

__version__: str
