"""What sites commit to, and whom their certificates make of them."""

import pytest
from certificates import issue
from pretending import tiny_plan
from run_factory import make_sites

from fedmerit.federation.enrolment import check_certificate, collect_enrolments, make_enrolment
from fedmerit.files import read_json, write_json
from fedmerit.records.signatures import read_certificate
from fedmerit.trainers.monai_trainer.data import SiteFolder, Slices
from fedmerit.wire.inspection import check_enrolment
from fedmerit.wire.messages import Enrolment

SITES = ("Alder", "Birch", "Cedar")


@pytest.fixture
def kits(tmp_path):
    """Certificates of three sites with the organisations given, and the root's."""

    def make(*organisations):
        issue(tmp_path, "root")
        for site, organisation in zip(SITES, organisations, strict=True):
            issue(tmp_path, site, "root", organisation)
        return {site: (tmp_path / f"{site}.crt").read_text() for site in SITES}, read_certificate(tmp_path / "root.crt")

    return make


def enrolments(certificates):
    return {
        site: Enrolment(0, {"training": 2}, {"training": 10}, (f"{site}0", f"{site}1"), pem)
        for site, pem in certificates.items()
    }


def test_sites_of_one_organisation_are_one(kits):
    certificates, root = kits("north", "south", "north")
    assert collect_enrolments(SITES, enrolments(certificates), root).organisations.tolist() == [0, 1, 0]
    assert collect_enrolments(SITES, enrolments(certificates), None).organisations.tolist() == [
        0,
        1,
        2,
    ]  # nobody vouches for them


def test_where_all_are_of_one_organisation_each_is_by_itself(kits):
    certificates, root = kits("fedmerit", "fedmerit", "fedmerit")
    assert collect_enrolments(SITES, enrolments(certificates), root).organisations.tolist() == [0, 1, 2]


def test_who_has_not_enrolled_yet_makes_no_group_of_the_others(kits):
    """A consortium whose kits all name it: two of its sites earned as one for as long as the third was away."""
    certificates, root = kits("fedmerit", "fedmerit", "fedmerit")
    there = {site: one for site, one in enrolments(certificates).items() if site != "Cedar"}
    assert collect_enrolments(SITES, there, root).organisations.tolist() == [0, 1, 2]


def test_a_site_that_did_not_enrol_is_by_itself_and_its_images_are_not_known(kits):
    certificates, root = kits("north", "south", "north")
    there = {site: one for site, one in enrolments(certificates).items() if site != "Cedar"}
    found = collect_enrolments(SITES, there, root)
    assert found.organisations.tolist() == [0, 1, 2]
    assert found.counts.tolist() == [10, 10, 0]


def test_images_that_stand_twice_count_once(kits):
    certificates, root = kits("a", "b", "c")
    there = enrolments(certificates)
    there["Birch"] = Enrolment(0, {"training": 2}, {"training": 10}, ("same", "same"), certificates["Birch"])
    assert collect_enrolments(SITES, there, root).counts.tolist() == [10, 5, 10]


def test_a_certificate_is_the_sites_own_and_the_roots_work(kits, tmp_path):
    certificates, root = kits("a", "b", "c")
    there = enrolments(certificates)
    assert check_certificate(there["Alder"], "Alder", root) is None
    assert check_certificate(there["Alder"], "Birch", root) == "enrolment with another site's certificate"
    (tmp_path / "others").mkdir()
    issue(tmp_path / "others", "root")
    issue(tmp_path / "others", "Alder", "root", "a")
    strange = Enrolment(0, {}, {}, (), (tmp_path / "others" / "Alder.crt").read_text())
    for enrolment in (strange, Enrolment(0, {}, {}, ()), Enrolment(0, {}, {}, (), "no certificate")):
        assert check_certificate(enrolment, "Alder", root) == "enrolment without a certificate of this federation"
        assert check_certificate(enrolment, "Alder", None) is None


def test_a_case_without_a_slice_to_train_on_is_no_training_case(tmp_path):
    """As `prepare --slices organ` leaves photographs that show none: the site is not refused for it."""
    root = make_sites(tmp_path / "sites", ("Alder",), size=16)
    lists = read_json(root / "Alder" / "datalist.json")
    for place, entry in enumerate(lists["training"]):
        entry["slices"] = [] if place < 3 else [1]
    write_json(root / "Alder" / "datalist.json", lists)
    folder = SiteFolder(root / "Alder")
    one = make_enrolment(folder, tiny_plan("fedavg"), 0, len(Slices(folder.cases("training"))), "")
    assert check_enrolment(one, 0) is None
    assert (one.cases["training"], one.slices["training"], len(one.fingerprint)) == (2, 2, 2)
