"""Files that others hand over: no memory beyond the file, nothing read or written outside of its folder."""

import json
import resource
import shutil
import zipfile
from collections import OrderedDict

import pytest
import torch

from fedmerit.errors import BadInput
from fedmerit.evidence.verification.run import verify_run
from fedmerit.files import BESIDE, parse_json, read_bytes, require_inside, write_text
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.tensor_files import load_tensors

ALLOWED = 256e6  # bytes beside four times the file


def inflate(path):
    """The same archive with compressed entries, one of them of 320 MB of zeros."""
    packed = path.with_suffix(".zip")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
        for name in source.namelist():
            if name.endswith("/data/0"):
                with target.open(name, "w") as entry:
                    for _ in range(20):
                        entry.write(bytes(1 << 24))
            else:
                target.writestr(name, source.read(name))
    packed.replace(path)


def claim(path, content):
    torch.save(content, path)


def call(path, code):
    """A pickle that has a function make something."""
    torch.save({"a": torch.zeros(2)}, path)
    whole = path.with_suffix(".zip")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(whole, "w") as target:
        for name in source.namelist():
            target.writestr(name, code if name.endswith("/data.pkl") else source.read(name))
    whole.replace(path)


@pytest.mark.parametrize(
    ("spoil", "reported"),
    [
        (lambda path: claim(path, {"a": torch.zeros(1).expand(1 << 33)}), "is not what is stored of it"),
        (lambda path: claim(path, {str(i): torch.zeros(1000) for i in range(2)} | {"v": [shared[:] for _ in range(9)]}),
         "declares tensors of"),
        (lambda path: call(path, b"\x80\x02cbuiltins\nbytearray\nJ\x00\x00\x00\x7f\x85R."), "names builtins bytearray"),
        (lambda path: call(path, b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."), "names os system"),
        (lambda path: call(path, b"\x80\x04\x8c\x02os\x8c\x06system\x93."), "names STACK_GLOBAL"),
        (lambda path: path.write_bytes(b"PK\x05\x06" + bytes(18)), "compressed, or not as torch.save"),
        (lambda path: path.write_bytes(b""), "not a file of tensors"),
        (lambda path: path.mkdir(), "is no file that can be read"),
    ],
)  # fmt: skip
def test_files_of_tensors_that_declare_more_than_they_hold(tmp_path, spoil, reported):
    spoil(tmp_path / "model.pt")
    with pytest.raises(BadInput, match=reported):
        load_tensors(tmp_path / "model.pt")


shared = torch.zeros(1 << 16)


def test_what_a_run_saves_is_read_as_it_was(tmp_path):
    content = {
        "model": torch.arange(6.0).reshape(2, 3).T, "count": 3, "sites": ["a"], "none": None,
        "random": torch.get_rng_state(),
        "double": torch.ones(2, dtype=torch.float64), "flags": torch.tensor([True]), "empty": torch.zeros(0),
        "state": OrderedDict(torch.nn.BatchNorm2d(2).state_dict()), "nested": {1: (0.5, True)},
    }  # fmt: skip
    torch.save(content, tmp_path / "a.pt")
    found = load_tensors(tmp_path / "a.pt")
    assert found.keys() == content.keys()
    assert found["nested"] == content["nested"]
    assert all(torch.equal(found[name], one) for name, one in content.items() if isinstance(one, torch.Tensor))
    assert all(torch.equal(found["state"][name], one) for name, one in content["state"].items())


def test_a_checkpoint_that_inflates_takes_no_memory(trained, tmp_path):
    """It took verify 2.5 GB for 2 MB."""
    run = tmp_path / "run"
    shutil.copytree(trained(rounds=1), run)
    inflate(run / "checkpoint.pt")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadInput, match=r"checkpoint.pt: compressed, or not as torch.save writes tensors"):
        verify_run(run)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < 4 * (run / "checkpoint.pt").stat().st_size + ALLOWED


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[" * 60 + "]" * 60, "[" + "{}," * (BESIDE // 200) + "{}]", '"\\ud800"']
)
def test_json_beyond_the_bounds(text):
    with pytest.raises(ValueError, match=r"nested deeper|more values than|surrogates"):
        parse_json(text)


def test_files_that_never_end_or_are_too_long(tmp_path):
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(BadInput, match="is no file that can be read"):
        read_bytes(tmp_path / "zero")
    (tmp_path / "long").write_bytes(bytes(11))
    with pytest.raises(BadInput, match="has 11 bytes; expected at most 10"):
        read_bytes(tmp_path / "long", 10)


LINKED = ["results.csv", "ledger.jsonl", ".lock", "models/model.json", "evaluation", "tables", "run.json"]


@pytest.mark.parametrize("name", LINKED)
def test_nothing_is_read_or_written_through_links_of_a_run_folder(trained, sites, fedmerit, tmp_path, name):
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(trained(rounds=1), run)
    path = run / name
    outside.mkdir()
    if path.is_file():
        shutil.move(path, outside / "file")
        path.symlink_to(outside / "file")
    else:
        path.symlink_to(outside)
    before = sorted((file.name, file.stat().st_mtime_ns) for file in outside.iterdir())
    for command in (
        ("report", run),
        ("verify", run),
        ("evaluate", run, "--sites", sites),
        ("run", "--resume", "--out", run),
    ):
        reported = fedmerit(*command)
        assert reported.exit_code == 2, (command, reported.output)
        assert f"{path}: is a symbolic link out of {run}" in reported.stderr
    assert sorted((file.name, file.stat().st_mtime_ns) for file in outside.iterdir()) == before


def test_links_within_a_folder_stay(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    (tmp_path / "latest").symlink_to(tmp_path / "a")
    require_inside(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BadInput, match="loop: is a symbolic link out of"):
        require_inside(tmp_path)


def test_no_file_is_written_through_a_link_that_lies_in_its_place(tmp_path):
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "file").symlink_to(tmp_path / "outside")
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "outside").read_text() == "mine"
    assert not (tmp_path / "file").is_symlink()


@pytest.mark.parametrize("name", ["site.json", "datalist.json"])
def test_a_site_folder_is_not_read_through_links(own_sites, tmp_path, name):
    path = own_sites / "site1" / name
    shutil.move(path, tmp_path / "file")
    path.symlink_to(tmp_path / "file")
    with pytest.raises(BadInput, match=f"lists {name}, which lies outside the site folder"):
        SiteFolder(own_sites / "site1")


@pytest.mark.parametrize("site", ["../../outside", "/etc/x", "$x", "a\nb", 5])
def test_sites_of_a_run_that_name_files_elsewhere(trained, fedmerit, tmp_path, site):
    run = tmp_path / "run"
    shutil.copytree(trained(rounds=1), run)
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(content | {"sites": [site]}))
    reported = fedmerit("report", run)
    assert reported.exit_code == 2
    assert "run.json: sites.0=" in reported.stderr


@pytest.mark.slow  # a report of a hostile table is in `test_fuzz.py`
def test_a_case_that_is_no_number(trained, fedmerit, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained(rounds=1), run)
    text = (run / "results.csv").read_text()
    (run / "results.csv").write_text(text.replace(",testing,000,", ",testing,first,"))
    reported = fedmerit("report", run)
    assert reported.exception is None or isinstance(reported.exception, SystemExit)
