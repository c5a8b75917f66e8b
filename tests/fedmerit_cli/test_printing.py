"""What several commands print: sites, runs, tables."""

import pandas as pd
import pytest
from run_factory import make_run, make_sites

from fedmerit.configuration.run import make_configuration
from fedmerit.files import read_json, write_json
from fedmerit.records.results import read_results
from fedmerit.trainers.monai_trainer.networks import Cost
from fedmerit_cli import printing
from fedmerit_cli.printing import print_cost, print_runs, print_sites, show
from fedmerit_evaluation.figures.tables import Table


@pytest.fixture
def told(capsys):
    """The lines printed since it was asked last, each space one."""
    return lambda: [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip()]


def edit(path, change):
    content = read_json(path)
    change(content)
    write_json(path, content)


@pytest.fixture
def two(tmp_path):
    """A with two files left out for one reason and one for another, B with a remark and three unreadable cases."""
    root = make_sites(tmp_path / "sites", ("A", "B"), size=16)
    left_out = [("x", "no [mask]"), ("y", "not named so"), ("z", "not named so")]
    said = {
        "A": {"left_out": [{"file": file, "reason": reason} for file, reason in left_out]},
        "B": {"remarks": [{"case": "scan_0", "remark": "clipped"}], "unreadable_cases": 3},
    }
    nothing = {"left_out": [], "remarks": [], "unreadable_cases": 0}
    for name, slices in (("A", 12), ("B", 15)):
        counted = {"counts": {"training": {"slices": slices}}, "used": {"files": 30}}
        edit(root / name / "site.json", lambda info, own=counted | nothing | said[name]: info.update(own))
    return root


def test_sites_are_told_with_what_was_left_out_by_reason(two, told):
    print_sites(two, 2)
    lines = told()
    assert "server" not in lines[0]
    assert "A 5 5 5 12 30 3" in lines
    assert "B 5 5 5 15 30 0" in lines
    assert lines[lines.index("site files left out") + 1 :][:2] == ["A 2 not named so", "A 1 no [mask]"]
    assert lines[lines.index("site cases noted") + 1] == "B 1 clipped"
    assert lines[-2] == "3 unreadable cases left out, as --skip-unreadable asks"
    assert lines[-1] == f"2 sites in {two}"


def test_what_looks_like_markup_is_printed_as_it_is(two, tmp_path, told):
    (two / "A").rename(two / "A [b]")
    edit(two / "A [b]" / "site.json", lambda info: info.update(name="A [b]"))
    root = two.rename(tmp_path / "of [bold] :key:")
    print_sites(root, 2)
    lines = told()
    assert "A [b] 5 5 5 12 30 3" in lines
    assert lines[-1] == f"2 sites in {root}"


def test_the_server_has_a_column_where_a_site_set_cases_aside(two, told):
    def set_aside(lists):
        lists["server_validation"] = lists["training"][3:]
        del lists["training"][3:]

    edit(two / "A" / "datalist.json", set_aside)
    print_sites(two, 2)
    lines = told()
    assert "server" in lines[0]
    assert "A 3 5 5 2 12 30 3" in lines
    assert "B 5 5 5 0 15 30 0" in lines


def test_of_many_reasons_twenty_are_printed(two, told):
    many = [{"file": "x", "reason": f"reason {number:02d}"} for number in range(23)]
    edit(two / "A" / "site.json", lambda info: info.update(left_out=many))
    print_sites(two, 2)
    lines = told()
    assert [line for line in lines if line.startswith("A 1 reason")] == [f"A 1 reason {n:02d}" for n in range(20)]
    assert "and 3 other reasons, all in the sites' site.json" in lines


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({"architecture": "unet", "depth": "2"}, "an image of 32 x 48"),
        ({"architecture": "dynunet", "depth": "3", "patch": "4,16,16"}, "a patch of 4 x 16 x 16"),
    ],
)
def test_the_cost_of_a_network(tmp_path, monkeypatch, told, settings, seen):
    network = {"in_channels": 1, "labels": ["prostate"]}
    plan = make_configuration("fedavg", "prostate", 1, 0, network, settings).to_dict()
    write_json(tmp_path / "run.json", {"plan": plan, "image_size": [32, 48]})
    sizes = []
    cost = Cost(parameters=1_234_567, update_bytes=4_938_268, operations=2_504_000_000)
    monkeypatch.setattr(printing, "estimate_cost", lambda described, size: sizes.append(size) or cost)
    print_cost(tmp_path)
    expected = f"{settings['architecture']}: 1,234,567 parameters, 4.9 MB an update, 2.50 billion operations for"
    assert " ".join(told()) == f"{expected} {seen}"
    assert sizes == [(32, 48)]


def test_runs_are_told_by_dice_and_contribution_and_where_they_are(tmp_path, told):
    runs = [make_run(tmp_path / name, method=name, rounds=2) for name in ("fedce", "fedavg")]
    print_runs(runs)
    lines = told()
    assert lines[-2:] == [f"run folder: {run}" for run in runs]
    for run in runs:
        tested = read_results(run).query("split == 'testing' and quantity == 'dice'")
        for images, (site, dice) in zip((40, 50, 60, 70), tested.groupby("site")["value"].mean().items(), strict=True):
            (line,) = [line for line in lines if line.startswith(f"{run.name} {site} ")]
            assert f" {images} {100 * dice:.1f} " in line


def test_tables_are_printed_and_written_below_out(tmp_path, told):
    tables = [Table(name, f"Of {name}", pd.DataFrame({"Site": ["A"], "Dice [%]": [81.25]})) for name in ("one", "two")]
    show(tables, tmp_path)
    lines = told()
    assert lines.index("Of one") < lines.index("Of two")
    assert lines.count("A 81.2") == 2
    for name in ("one", "two"):
        assert (tmp_path / "tables" / f"{name}.csv").read_text() == "Site,Dice [%]\nA,81.25\n"
        assert (tmp_path / "tables" / f"{name}.tex").exists()
