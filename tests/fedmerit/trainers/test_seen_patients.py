"""Patients whom a run has seen, as hashes at the site: `evaluate` does not score them."""

import json
import shutil

import pytest

from fedmerit.errors import BadInput
from fedmerit.files import read_json, write_json
from fedmerit.schema.site_folder import SiteFolder, open_sites
from fedmerit.trainers.seen_patients import FILE, drop_seen, note_patients, read_seen


def move(site, case_of, target):
    """List a case of one split in another, as a new draw would."""
    lists = read_json(site / "datalist.json")
    lists[target].append(lists[case_of].pop(0))
    write_json(site / "datalist.json", lists)


def test_run_notes_seen_patients_as_hashes(trained, sites):
    run = trained()
    for site in open_sites(sites):
        text = (run / "sites" / site.name / FILE).read_text()
        assert not any(case.patient in text or case.name in text for cases in site.splits.values() for case in cases)
        seen = read_seen(run / "sites" / site.name)
        for split, cases in site.splits.items():
            expected = split if split in ("training", "validation") else ""
            assert {seen.use_of(site, case, same_site=True) for case in cases} <= {expected}


def test_evaluate_does_not_score_patients_that_the_run_has_seen(fedmerit, trained, own_sites, tmp_path):
    run = shutil.copytree(trained(), tmp_path / "run")
    clean = fedmerit("evaluate", run, "--sites", own_sites)
    assert clean.exit_code == 0, clean.output
    assert "not scored" not in clean.output
    name = SiteFolder(own_sites / "site1").cases("training")[0].name
    move(own_sites / "site1", "training", "testing")
    result = fedmerit("evaluate", run, "--sites", own_sites)
    assert result.exit_code == 0, result.output
    tested = len(SiteFolder(own_sites / "site1").cases("testing"))
    assert f"site site1: 1 of {tested} cases are not scored" in result.output
    assert f"(trained on: {name}); prepare with --like" in result.output
    assert "not scored" not in fedmerit("evaluate", run, "--sites", own_sites, "--split", "training").output


def test_evaluate_of_seen_patients_only_raises(trained, own_sites, tmp_path):
    folder = own_sites / "site1"
    lists = json.loads((folder / "datalist.json").read_text())
    write_json(folder / "datalist.json", lists | {"testing": lists["validation"], "validation": []})
    site = SiteFolder(folder)
    with pytest.raises(BadInput, match=r"site site1: .* has seen the patients of all .* cases .*chosen by: "):
        drop_seen(trained(), site, site.cases("testing"))


def test_drop_seen_knows_images_under_other_names_and_sites(own_sites, tmp_path):
    site = SiteFolder(own_sites / "site1")
    note_patients(tmp_path / "run" / "sites" / "site1", site, "key")
    other = own_sites.parent / "elsewhere" / "London"
    shutil.copytree(own_sites / "site1", other)
    lists = json.loads((other / "datalist.json").read_text().replace('"patient": "', '"patient": "new-'))
    write_json(other / "datalist.json", lists)
    write_json(other / "site.json", read_json(other / "site.json") | {"name": "London"})
    renamed = SiteFolder(other)
    with pytest.raises(BadInput, match="has seen the patients of all"):
        drop_seen(tmp_path / "run", renamed, renamed.cases("training"))
    left, reported = drop_seen(tmp_path / "run", renamed, renamed.cases("testing"))
    assert left == list(renamed.cases("testing"))
    assert reported == ""


def test_note_patients_adds_to_those_noted_before(own_sites, tmp_path):
    note_patients(tmp_path, SiteFolder(own_sites / "site1"), "key")
    first = read_seen(tmp_path)
    move(own_sites / "site1", "testing", "training")
    note_patients(tmp_path, SiteFolder(own_sites / "site1"), "key")
    assert len(read_seen(tmp_path).patients["training"]) == len(first.patients["training"]) + 1
