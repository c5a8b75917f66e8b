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


@pytest.mark.parametrize(
    ("given", "scheme", "options"),
    [
        (("--by", "dirichlet", "--alpha", 3, "--classes", "size"), {"alpha": 3.0, "classes": "size"}, {}),
        (("--by", "imbalanced", "--kappa", 0.3, "--holders", 2), {"kappa": 0.3, "holders": 2}, {}),
        (
            ("--by", "uniform", "--outlier", "site2", "--outlier", "site3", "--inverted", "site3"),
            {"outlier": ("site2", "site3")},
            {"inverted": ["site3"]},
        ),
        (("--by", "uniform", "--folds"), {}, {"folds": True}),
        (
            ("--by", "uniform", "--duplicate", "site-1", "--duplicate", "site-2"),
            {},
            {"duplicate": ["site-1", "site-2"]},
        ),
    ],
)
def test_every_option_reaches_the_partition(fedmerit, sites, tmp_path, monkeypatch, given, scheme, options):
    asked = []
    monkeypatch.setattr(
        "fedmerit_lab.partitioning.partition.partition", lambda *given, **more: asked.append((given, more)) or [sites]
    )
    monkeypatch.setattr("fedmerit_cli.printing.print_sites", lambda root, count: None)
    result = fedmerit("data", "partition", sites, "--out", tmp_path / "out", "--into", 4, *given)
    assert result.exit_code == 0, result.output
    ((called, more),) = asked
    assert called == (sites, tmp_path / "out", Scheme(given[1], 4, **scheme))
    lists: dict[str, list[str]] = {"duplicate": [], "inverted": []}
    more |= {name: list(more[name]) for name in lists}
    assert more == {"label_noise": {}, "noise_rule": "shift", "folds": False, **lists} | options


@pytest.mark.parametrize("noise", ["site-1", "=0.5", "site-1=2", "site-1=nan", "site-1=0.5,site-1=0.2"])
def test_the_command_refuses_other_noise(fedmerit, sites, tmp_path, noise):
    given = ("--out", tmp_path / "out", "--into", 2, "--by", "uniform", "--label-noise", noise)
    result = fedmerit("data", "partition", sites, *given)
    assert result.exit_code == 2
    assert "expected SITE=LEVEL" in result.output
    assert not (tmp_path / "out").exists()


def test_the_command_refuses_a_rule_without_noise(fedmerit, sites, tmp_path):
    given = ("--out", tmp_path / "out", "--into", 2, "--by", "uniform", "--noise-rule", "swap")
    result = fedmerit("data", "partition", sites, *given)
    assert result.exit_code == 2
    assert "--noise-rule swap: belongs to --label-noise; give that too" in result.output
    assert not (tmp_path / "out").exists()
