"""A job reads nothing but its site's own folder, and only the folder that the machine's manifest names."""

import json

import pytest
import torch

from fedmerit import machine
from fedmerit.errors import BadInput
from fedmerit.schema.site_folder import SiteFolder
from fedmerit.site import machine_settings
from fedmerit.site.policy import JobRules, Manifest


@pytest.fixture
def site(own_sites):
    return own_sites / "site1"


def spoil(site, field, entry, split="training"):
    lists = json.loads((site / "datalist.json").read_text())
    lists[split][0][field] = str(entry)
    (site / "datalist.json").write_text(json.dumps(lists))


@pytest.mark.parametrize("field", ["image", "label"])
@pytest.mark.parametrize("split", ["training", "testing"])
@pytest.mark.parametrize("entry", ["../site2/site.json", "/etc/hostname", "a/../../site2/site.json", "..", "~/../.."])
def test_listed_path_that_leaves_the_folder(site, field, split, entry):
    spoil(site, field, entry, split)
    with pytest.raises(BadInput, match="outside the site folder") as reported:
        SiteFolder(site)
    assert "datalist.json" in str(reported.value)
    assert entry in str(reported.value)


@pytest.mark.parametrize("target", ["file", "folder", "itself"])
def test_symbolic_link_that_leaves_the_folder(site, target):
    lists = json.loads((site / "datalist.json").read_text())
    listed = site / lists["training"][0]["image"]
    other = site.parent / "site2" / listed.relative_to(site)
    assert other.is_file()
    if target == "folder":
        (site / "link").symlink_to(other.parent)
        spoil(site, "image", f"link/{listed.name}")
    else:
        listed.unlink()
        listed.symlink_to(other if target == "file" else listed)
    with pytest.raises(BadInput, match="outside the site folder"):
        SiteFolder(site)


def test_symbolic_links_to_and_within_the_folder_are_followed(site, tmp_path):
    lists = json.loads((site / "datalist.json").read_text())
    listed = site / lists["training"][0]["image"]
    listed.rename(site / "elsewhere.npy")
    listed.symlink_to(site / "elsewhere.npy")
    (tmp_path / "link").symlink_to(site)
    assert SiteFolder(tmp_path / "link").cases("training")[0].image.shape[1] == 1


@pytest.fixture
def local(tmp_path, monkeypatch):
    """An empty local/ folder of a kit; the environment is put back behind the test."""
    for variable in (machine_settings.SITES, *machine_settings.MANIFEST_SETTINGS.values()):
        monkeypatch.setenv(variable, "set by someone")
    return tmp_path


def test_the_manifest_goes_before_the_environment(local, site):
    manifest = {"site": "site1", "site_folder": str(site), "device": "cpu"}
    (local / machine_settings.MANIFEST).write_text(json.dumps(manifest))
    assert machine_settings.follow_manifest(local, "site1").jobs == JobRules()
    assert machine_settings.site_folder("site1").path == site
    assert machine_settings.configured_device("site1") == "cpu"
    assert machine_settings.server_sites() == []
    assert machine_settings.run_folder(local / "job") == local / "job" / machine_settings.RUN_NAME


def test_jobs_have_run_folders_of_their_own(local, site, tmp_path):
    (local / machine_settings.MANIFEST).write_text(json.dumps({"site": "server", "runs": str(tmp_path / "runs")}))
    machine_settings.follow_manifest(local, machine_settings.SERVER)
    assert machine_settings.run_folder(local / "job1") == tmp_path / "runs" / "job1"
    assert machine_settings.run_folder(local / "job2") == tmp_path / "runs" / "job2"


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ({"site": "site2", "site_folder": "/x"}, "site2"),
        ({"site_folder": "/x"}, "site: Field required"),
        ({"site": "site1", "folder": "/x"}, "folder: Extra inputs"),
        ({"site": "site1", "jobs": {"least_images": -1}}, "jobs.least_images"),
        ({"site": "site1", "jobs": {"keep_updates": "no"}}, "jobs.keep_updates"),
        ({"site": "site1", "jobs": {"evaluations": {"training": 1}}}, "jobs.evaluations"),
        ({"site": "site1", "jobs": {"largest_lr": float("nan")}}, "jobs.largest_lr"),
        ({"site": "site1", "device": "x" * 2**20}, "expected at most"),
        ([], "fedmerit.json: the file: "),
    ],
)
def test_manifest_of_another_site_is_refused(local, content, word):
    (local / machine_settings.MANIFEST).write_text(json.dumps(content))
    with pytest.raises(BadInput, match=word):
        machine_settings.follow_manifest(local, "site1")


def test_a_provisioned_machine_that_nobody_prepared_has_the_default_rules(tmp_path):
    local = tmp_path / "local"
    assert machine_settings.follow_manifest(local, "site1") is None  # the simulator: the user's own machine
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "rootCA.pem").touch()
    assert machine_settings.follow_manifest(local, "site1") == Manifest(site="site1")


def test_of_an_unknown_site_those_present_are_reported():
    with pytest.raises(BadInput, match=r"no site site9; there are site1, site2$"):
        machine_settings.require_known_sites("site9=cpu", ["site1", "site2", "site3"], present=["site1", "site2"])
    machine_settings.require_known_sites("site3=cpu", ["site1", "site2", "site3"], present=["site1", "site2"])


def test_sites_take_the_gpus_of_a_machine_in_turn_by_default(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for setting in ("", "auto"):
        assert machine_settings.assign_devices(setting, ["A", "B", "C"]) == "A=cuda:0,B=cuda:1,C=cuda:0"
    for setting in ("cpu", "cuda:1", "A=cpu"):
        assert machine_settings.assign_devices(setting, ["A", "B", "C"]) == setting
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert machine_settings.configured_device("A", machine_settings.assign_devices("", ["A", "B"])) == "auto"


def test_a_gpu_computes_gradients_in_a_fixed_order(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    machine.pick_device("cpu", "A")
    assert torch.backends.cudnn.deterministic


@pytest.mark.parametrize("setting", ["A=cuda:0,A=cpu", "A=cpu,", "A=", "=cpu"])
def test_device_settings_that_are_none(setting):
    with pytest.raises(BadInput, match=r"expected DEVICE, or SITE=DEVICE,SITE=DEVICE, each site at most once"):
        machine_settings.configured_device("A", setting)
