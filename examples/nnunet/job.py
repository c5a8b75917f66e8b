"""From raw nnU-Net folders to a federated run on this machine, and back to nnU-Net's model folders.

    python job.py out /data/A/Dataset001_Prostate /data/B/Dataset001_Prostate -- --method cgsv --rounds 10

What follows -- are options of `fedmerit run`.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

from export import export
from plan import make_plan, summarize, write

from fedmerit.errors import BadInput

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Summaries, plan, run, model folders."""
    own, _, options = " ".join(map(shlex.quote, sys.argv[1:])).partition(" -- ")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("datasets", type=Path, nargs="+")
    parser.add_argument("--memory", type=float, default=8.0, help="GB of a GPU to plan for")
    parser.add_argument("--features", type=int, default=32, help="channels of the network's first level")
    parser.add_argument("--client", default="", help="more options of client.py")
    asked = parser.parse_args(shlex.split(own))
    out = asked.out.resolve()
    if len(str(out).split()) > 1:
        raise BadInput(f"{out}: has a space, and NVFlare splits a script's arguments at spaces; choose another folder")
    (out / "data").mkdir(parents=True)
    summaries = {}
    for number, dataset in enumerate(asked.datasets, 1):
        name = f"site-{number}"
        (out / "data" / name).symlink_to(dataset.resolve())
        summaries[name] = summarize(dataset)
        write(out / f"summary_{name}.json", summaries[name])
    make_plan(out / "plan", summaries, memory=asked.memory, features=asked.features)
    print(json.dumps(json.loads((out / "plan" / "plans.json").read_text())["configurations"], indent=2))
    paths = {"data": out / "data" / "{site}", "plan": out / "plan", "work": out / "work" / "{site}"}
    given = " ".join(f"--{name} {path}" for name, path in paths.items())
    command = [
        *("fedmerit", "run", "--out", str(out / "run"), "--engine", "local", "--clients", str(len(asked.datasets))),
        *("--script", str(HERE / "client.py"), "--script-args", f"{given} {asked.client}"),
        *("--model", f"{HERE / 'plan.py'}:Net", *shlex.split(options)),
    ]
    print(shlex.join(command), flush=True)
    subprocess.run(command, check=True, cwd=out)
    for model in sorted((out / "run" / "models").glob("*.pt")):
        print(export(out / "plan", model, out / "nnunet" / model.stem))


if __name__ == "__main__":
    main()
