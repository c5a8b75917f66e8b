"""`fedmerit data partition`; the partitions themselves are tested with what they call."""

from typing import get_args

import pytest

from fedmerit.files import sha256
from fedmerit_lab.commands.partitions import NoiseRule
from fedmerit_lab.partitioning.label_noise import RULES
from fedmerit_lab.partitioning.partition import partition
from fedmerit_lab.partitioning.scheme import Scheme


def checksums(folder):
    return {path.relative_to(folder): sha256(path) for path in folder.rglob("*") if path.is_file()}


def test_help_offers_the_rules_of_noise_that_there_are():
    assert get_args(NoiseRule) == tuple(RULES)


def test_the_command(fedmerit, sites, tmp_path):
    options = ("--by", "powerlaw", "--exponent", 1, "--seed", 2, "--label-noise", "site-1=0.5,site-3=1")
    given = ("--out", tmp_path / "out", "--into", 3, *options, "--noise-rule", "swap")
    result = fedmerit("data", "partition", sites, *given)
    assert result.exit_code == 0, result.output
    assert f"3 sites in {tmp_path / 'out'}" in result.output
    scheme = Scheme("powerlaw", 3, exponent=1, seed=2)
    partition(sites, tmp_path / "same", scheme, label_noise={"site-1": 0.5, "site-3": 1}, noise_rule="swap")
    assert checksums(tmp_path / "out") == checksums(tmp_path / "same")


def test_every_option_reaches_the_partition(fedmerit, sites, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "fedmerit_lab.partitioning.partition.partition", lambda *given, **more: asked.append((given, more)) or [sites]
    )
    monkeypatch.setattr("fedmerit_cli.printing.print_sites", lambda root, count: None)
    several = ("--outlier", "site2", "--outlier", "site3", "--inverted", "site3", "--duplicate", "site-1", "--folds")
    given = ("--out", tmp_path / "out", "--into", 4, "--by", "dirichlet", "--alpha", 3, "--classes", "size", *several)
    result = fedmerit("data", "partition", sites, *given)
    assert result.exit_code == 0, result.output
    ((called, more),) = asked
    scheme = Scheme("dirichlet", 4, alpha=3.0, classes="size", outlier=("site2", "site3"))
    assert called == (sites, tmp_path / "out", scheme)
    assert more == {
        "label_noise": {}, "noise_rule": "shift", "folds": True, "inverted": ["site3"], "duplicate": ["site-1"]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *((("--label-noise", noise), "expected SITE=LEVEL") for noise in ("site-1", "=0.5", "site-1=2", "site-1=nan")),
        (("--label-noise", "site-1=0.5,site-1=0.2"), "expected SITE=LEVEL"),
        (("--noise-rule", "swap"), "--noise-rule swap: belongs to --label-noise; give that too"),
        (("--exponent", "2"), "exponent 2: belongs to powerlaw, but the scheme is uniform"),
        (("--classes", "age"), "--classes age: expected one of source, size, intensity, labels"),
    ],
)
def test_the_command_refuses_options_that_do_not_fit(fedmerit, sites, tmp_path, given, message):
    result = fedmerit("data", "partition", sites, "--out", tmp_path / "out", "--into", 2, "--by", "uniform", *given)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()
