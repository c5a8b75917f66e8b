"""Sites on this machine that train by a script: in a process for each, or as NVFlare starts it."""

import importlib.util
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from fedmerit.child_processes import python_command
from fedmerit.ciphertexts import SiteKey
from fedmerit.contract import flat
from fedmerit.engines.site_errors import ERRORS, keep_error
from fedmerit.errors import BadInput
from fedmerit.files import sha256
from fedmerit.reasons import SCRIPT_LATE, ScriptAnswer
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.configuration.run import RunConfiguration, configure_script, read_plan
from fedmerit.schema.configuration.script import Script
from fedmerit.schema.declarations import read
from fedmerit.schema.messages import Answer, Work, describe_failure
from fedmerit.schema.run_info import read_run
from fedmerit.schema.scores import Overlap
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.seeds import random_seed
from fedmerit.site import machine_settings
from fedmerit.site.peers import AskPeer
from fedmerit.site.site import Site
from fedmerit.tensor_files import load_state
from fedmerit.trainers.factory import FIRST_MODEL
from fedmerit.trainers.script.description import describe_script, plain_weights, require_args
from fedmerit.trainers.script.model_forms import to_model
from fedmerit.trainers.script.named_tensors import Model, load_weights
from fedmerit.trainers.script.restarts import RestartedScript, ScriptEnded, explain_output
from fedmerit.trainers.script.trainer import Question, Said, ScriptTrainer
from fedmerit.trust import allow_script, require_trusted_script

OF_IMAGES = ("sites", "fold", "server_sites", "recipe", "preset", "final_model", "device")  # options of prepared images
MOST_OUTPUT = 20_000  # bytes of a script's output, from its end, in which its traceback is looked for
OUTPUT = "script.log"  # in a site's folder of the run: what its script printed
ENDING = 5.0  # seconds for a script's process to end by itself
VISIBLE = "CUDA_VISIBLE_DEVICES"  # variable that says which GPUs a process sees
SERVE = "import sys; from fedmerit.engines.nvflare.client_script import serve; serve(*sys.argv[1:])"


class Launch(BaseModel):
    """A description of how the sites of a run start their script; run.json records it."""

    model_config = ConfigDict(strict=True, extra="forbid")
    file: str
    sha256: str
    clients: int = Field(ge=1)  # all sites that have it; those of the run may be fewer
    args: str = ""
    timeout: float = Field(0.0, ge=0)  # seconds to wait for an answer; 0: as long as it takes
    command: Literal[""] = ""  # no process of its own by a command
    transfer: Literal["FULL"] = "FULL"

    @property
    def sites(self) -> list[str]:
        """The names of all sites that have the script."""
        return [f"site-{number}" for number in range(1, self.clients + 1)]


def read_launch(run: Path) -> Launch:
    """Return how the sites of a run start their script.

    Raises:
        BadInput: it is gone, or another than when the run began.
        Untrusted: only run.json names it.
    """
    launch: Launch = read(Launch, read_run(run)["script"], run / "run.json")
    file = Path(launch.file)
    if not file.is_file():
        raise BadInput(f"{file}: the sites' script is gone; put it back")
    require_trusted_script(file, digest := sha256(file), f"{run / 'run.json'}")
    if digest != launch.sha256:
        raise BadInput(f"{file}: changed since {run} began; put the old one back, or choose another --out")
    return launch


@dataclass(frozen=True)
class ScriptSites:
    """The sites of a run that train by a script, and of a new run the script's description and first model."""

    launch: Launch
    names: list[str]  # of the sites that take part
    script: Script = field(default_factory=Script)
    first: Mapping[str, Tensor] = field(default_factory=dict)  # the weights that all sites begin with
    failures: dict[str, str] = field(default_factory=dict)  # by site, why its last answer failed
    server_folders: Sequence[SiteFolder] = ()

    @classmethod
    def read(cls, options: RunOptions) -> Self:
        """Read the script and model that a person asks for, whose script this process may run from now on.

        Raises:
            BadInput: one is not there or cannot be used, or an option is of prepared images.
        """
        for name in OF_IMAGES:
            if name in options.model_fields_set:
                raise BadInput(
                    f"--{name.replace('_', '-')}: of prepared images, and this run has a script; leave it out"
                )
        file = (options.script or Path()).resolve()
        if not file.is_file():
            raise BadInput(f"--script {options.script}: file not found; expected the sites' Python script")
        require_args(options.script_args)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(random_seed(options.seed, "initial model"))
            model = load_model(str(options.model))
        launch = Launch(
            file=str(file),
            sha256=sha256(file),
            clients=options.clients,
            args=options.script_args,
            timeout=options.script_timeout,
        )
        if unknown := sorted({*options.only} - {*launch.sites}):
            raise BadInput(f"--only: no client is called {unknown[0]}; there are {', '.join(launch.sites)}")
        allow_script(launch.sha256)
        names = [name for name in launch.sites if name in (options.only or launch.sites)]
        return cls(launch, names, describe_script(model, file, options.metric), plain_weights(model))

    @classmethod
    def recorded(cls, run: Path, info: Mapping[str, Any]) -> Self:
        """Return the sites that run.json names; arguments and errors as of `read_launch`."""
        return cls(read_launch(run), list(info["sites"]))

    def configure(self, options: RunOptions) -> RunConfiguration:
        """Return the configuration of a new run; `BadInput` if the method needs what the script cannot do."""
        return configure_script(
            str(options.method),
            options.rounds,
            self.script,
            options.seed,
            options.all_settings,
            options.values,
            options.keep_updates,
            options.share_models,
        )

    def describe(self, config: RunConfiguration, options: RunOptions) -> dict[str, Any]:
        """Return what run.json says of these sites."""
        return {"script": self.launch.model_dump()}

    def begin(self, run: Path) -> None:
        """Write the first model into the run folder."""
        torch.save(dict(self.first), run / FIRST_MODEL)

    def device(self, name: str) -> str:
        """Return "auto": a script chooses for itself."""
        return "auto"

    def count_processes(self, config: RunConfiguration, threads: int | None) -> int:
        """Return the number of sites: each has a process, whose script lives as long as the run."""
        return len(self.names)

    def environment(self) -> dict[str, str]:
        """Return empty variables: the script knows its data."""
        return dict.fromkeys((machine_settings.SITES, machine_settings.SERVER_SITES, machine_settings.DEVICES), "")

    @contextmanager
    def open_site(
        self, name: str, config: RunConfiguration, memory: Path, ask_peer: AskPeer, key: SiteKey | None
    ) -> Iterator[Site]:
        """Start the script of a site, and end it when the context is left."""
        process, seconds = ScriptProcess(name, self.launch, memory / OUTPUT), 0.0  # a run that is stopped does not wait

        def report(error: Exception) -> None:
            self.failures[name] = str(error)
            keep_error(memory / ERRORS, error)

        trainer = ScriptTrainer(name, config, memory, RestartedScript(process.ask, process.start), report)
        try:
            yield ScriptSite(report, trainer, memory, ask_peer, key, self.names)
            seconds = ENDING
        finally:
            process.close(seconds)


class ScriptSite(Site):
    """A site whose failures do not end the run, as on NVFlare: it continues if enough others are there."""

    def __init__(self, report: Callable[[Exception], None], trainer: ScriptTrainer, memory: Path, *more: Any):
        super().__init__(trainer, trainer.config, memory, *more)
        self._report = report

    def answer(self, task: Work) -> Answer:
        """Return the answer to a task; a failure if there is none, with the reason in the site's log."""
        try:
            return super().answer(task)
        except Exception as error:
            self._report(error)
            return describe_failure(error)


def choose_gpu(row: int) -> dict[str, str]:
    """Return the variable that gives the site in a row one of several GPUs of this machine, in turn; {} without them.

    A person who set the variable has chosen.
    """
    count = 0 if VISIBLE in os.environ else torch.cuda.device_count()
    return {VISIBLE: str(row % count)} if count > 1 else {}


class ScriptProcess:
    """A site's script in a process of its own, with NVFlare's Client API in it.

    Args:
        site: the name of the site.
        launch: how to start the script.
        log: the file of what it prints; it begins in a folder of its own beside that, as on NVFlare.
    """

    def __init__(self, site: str, launch: Launch, log: Path):
        self.site, self.log, self.timeout, self.launch = site, log, launch.timeout, launch
        self._is_closed = False
        self.start()

    def start(self) -> None:
        """Start the process; it may be another after one that ended."""
        launch, log = self.launch, self.log
        self._connection, its = Pipe()
        (place := log.with_suffix("")).mkdir(parents=True, exist_ok=True)
        self._begin = log.stat().st_size if log.exists() else 0  # of what it prints
        arguments = [str(its.fileno()), self.site, launch.file, launch.args, launch.transfer]
        paths = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
        paths |= choose_gpu(launch.sites.index(self.site))
        with its, log.open("ab") as output:  # no multiprocessing, which would run the caller's own script again
            self._process = subprocess.Popen(
                python_command("-u", "-c", SERVE, *arguments),
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[its.fileno()],
                env=paths,
                start_new_session=True,  # Ctrl-C is for this process, which ends the script
            )
        if self._is_closed:  # meanwhile, by another thread
            self._end(0.0)

    def ask(self, question: Question) -> Said:
        """Return the script's answer.

        Raises:
            ScriptEnded: it ended, or gave no answer in time and so was ended; the message has its last lines.
        """
        answer = None
        with suppress(EOFError, OSError):  # it has ended, or was ended
            self._connection.send_bytes(pickle.dumps(question))
            if not self._connection.poll(self.timeout or None):
                self._end(0.0)
                raise ScriptEnded(
                    f"site {self.site}: its script gave no answer in {self.timeout:g} seconds, and was ended; "
                    f"{self.log} says how far it came; raise script_timeout if it takes longer",
                    SCRIPT_LATE,
                    is_late=True,
                )
            answer = self._read(self._connection.recv_bytes())
        if isinstance(answer, Said):
            return answer
        code = self._end(ENDING)
        if self._is_closed:
            raise ScriptEnded(f"site {self.site}: its script was ended with the run", SCRIPT_LATE, can_start=False)
        with self.log.open("rb") as output:
            output.seek(self._begin)
            last, reason = explain_output(output.read()[-MOST_OUTPUT:].decode(errors="replace"), code)
        raise ScriptEnded(
            f"site {self.site}: its script ended{f' (exit code {code})' if code else ''}; mend that, then --resume, or "
            f"begin again if the script changed; --min-sites lets the others go on; {self.log} ends with:\n{last}",
            reason,
        )

    def _read(self, sent: bytes) -> Any:
        try:
            return pickle.loads(sent)
        except (AttributeError, ImportError) as error:
            raise ScriptAnswer(
                f"site {self.site}: its script sent an object of a class that only it has ({error!s:.100}); send "
                "numbers, texts, tensors or arrays"
            ) from None

    def close(self, seconds: float = ENDING) -> None:
        """End the process for good, after so many seconds by force."""
        self._is_closed = True
        self._end(seconds)

    def _end(self, seconds: float) -> int | None:
        """End the process, after so many seconds by force; return its exit code, None if it ended by force."""
        self._connection.close()
        try:
            return self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # with its own children
            self._process.wait()
            return None


def load_model(text: str) -> Model:
    """Return the model of "FILE.py:NAME", of a class without arguments; `BadInput` if there is none."""
    made = load_named(text, "--model")
    try:
        model = made() if callable(made) and not isinstance(made, nn.Module) else made
    except Exception as error:  # whatever another's code raises
        raise BadInput(f"--model {text}: cannot be made ({type(error).__name__}: {error!s:.200})") from error
    return to_model(model)


def load_named(text: str, option: str) -> Any:
    """Return what "FILE.py:NAME" names; `BadInput` with the ``option`` if there is none."""
    file, _, name = text.rpartition(":")
    path = Path(file).resolve()
    if not name.isidentifier() or not path.is_file():
        raise BadInput(f"{option} {text}: expected FILE.py:NAME")
    sys.path.insert(0, str(path.parent))  # of modules beside it, which it imports
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)
    except Exception as error:  # whatever another's code raises
        raise BadInput(f"{option} {text}: cannot be loaded ({type(error).__name__}: {error!s:.200})") from error
    finally:
        sys.path.remove(str(path.parent))


def score_everywhere(run: Path, model: Path) -> dict[str, tuple[Overlap, ...]]:
    """Return the scores of a run's final ``model`` by the scripts of all sites, also of those that took no part.

    Raises:
        BadInput: the script does not answer evaluations, or `read_launch` refuses it.
        RunFailed: a script ended.
    """
    config, launch = read_plan(run), read_launch(run)
    if not config.can_evaluate:
        raise BadInput(f"{launch.file}: does not answer flare.is_evaluate(), so sites that take no part test no model")
    scores = {}
    for site in launch.sites:
        folder = run / "sites" / site
        with closing(ScriptProcess(site, launch, folder / OUTPUT)) as process:
            trainer = ScriptTrainer(site, config, folder, process.ask)
            load_weights(trainer.network, load_state(model))
            network = flat.get_parameters(trainer.network), flat.get_buffers(trainer.network)
            scores[site] = trainer.score(network, config.rounds, "testing")
    return scores
