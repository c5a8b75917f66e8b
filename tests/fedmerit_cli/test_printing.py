"""What several commands print: sites, runs, tables."""

import pytest
from run_factory import make_run, make_sites

from fedmerit.files import read_json, write_json
from fedmerit.schema.results import read_results
from fedmerit_cli.printing import print_runs, print_sites


@pytest.fixture
def printed(capsys):
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
    said["B"]["readings"] = [{"case": "scan_1", "plane": "axial", "kept": {"prostate": 0.5}}]
    nothing = {"left_out": [], "remarks": [], "unreadable_cases": 0}
    for name, slices in (("A", 12), ("B", 15)):
        counted = {"counts": {"training": {"slices": slices}}, "used": {"files": 30}}
        edit(root / name / "site.json", lambda info, own=counted | nothing | said[name]: info.update(own))
    return root


def test_sites_are_printed_with_what_was_left_out_by_reason(two, printed):
    print_sites(two, 2)
    lines = printed()
    assert "server" not in lines[0]
    assert "A 5 5 5 12 30 3" in lines
    assert "B 5 5 5 15 30 0" in lines
    assert lines[lines.index("site files left out such as") + 1 :][:2] == ["A 2 not named so y, z", "A 1 no [mask] x"]
    assert "B axial not stated not stated not stated 50%, lowest 50%" in lines
    assert lines[lines.index("site cases noted such as") + 1] == "B 1 clipped scan_0"
    assert lines[-2] == "3 unreadable cases left out, as --skip-unreadable asks"
    assert lines[-1] == f"2 sites in {two}"


def test_runs_are_printed_by_dice_and_contribution_and_where_they_are(tmp_path, printed):
    runs = [make_run(tmp_path / name, method=name, rounds=2) for name in ("fedce", "fedavg")]
    print_runs(runs)
    lines = printed()
    assert lines[-2:] == [f"run folder: {run}" for run in runs]
    for run in runs:
        tested = read_results(run).query("split == 'testing' and quantity == 'dice'")
        for images, (site, dice) in zip((40, 50, 60, 70), tested.groupby("site")["value"].mean().items(), strict=True):
            (line,) = [line for line in lines if line.startswith(f"{run.name} {site} ")]
            assert f" {images} {100 * dice:.1f} " in line
