"""What a dossier is about: which site folders are here.

The dossier: every item answered by evidence or by whom to ask, and nothing said that was not recorded.
"""

from pathlib import Path

import pandas as pd
import pytest
from dossier_files import made_run, made_sites
from run_factory import SITES, make_run

from fedmerit.errors import BadInput
from fedmerit.trust import allow_places
from fedmerit_dossier.dossier import LISTS, NOT_KNOWN, UNANSWERABLE, read_items, write_dossier
from fedmerit_dossier.evidence import EVIDENCE, open_sources


def test_site_folders_are_those_of_the_runs_where_none_are_named(tmp_path: Path) -> None:
    sites = made_sites(tmp_path / "sites", Alder={}, Yew={})
    assert open_sources([made_run(tmp_path, sites_folder=str(sites))], None).folders == [], "only a record names it"
    allow_places(sites)
    assert [site.name for site in open_sources([made_run(tmp_path, sites_folder=str(sites))], None).folders] == [
        "Alder"
    ]
    assert open_sources([made_run(tmp_path, sites_folder=str(tmp_path / "gone"))], None).folders == []
    assert open_sources([made_run(tmp_path)], None).folders == []
    with pytest.raises(BadInput, match=r"--sites .*: holds none of Alder, Birch, Cedar"):
        open_sources([made_run(tmp_path)], made_sites(tmp_path / "others", Yew={}))


def _read(out: Path, name: str) -> "pd.Series[str]":
    return pd.read_csv(out / "tables" / f"{name}.csv", dtype=str).set_index("Item")["Evidence"]


@pytest.mark.parametrize("name", LISTS)
def test_every_item_names_known_evidence_and_whom_to_ask(name: str) -> None:
    items = read_items(name)
    assert items["item"].is_unique
    assert (items[["item", "asks", "ask"]] != "").all(axis=None)
    assert not ((items["open"] != "") & (items["evidence"] == "")).any()  # what is left open is beside evidence
    assert {key for keys in items["evidence"] for key in keys.split()} <= {*EVIDENCE, *UNANSWERABLE}


def test_the_lists_are_whole() -> None:
    sizes = {name: len(read_items(name)) for name in LISTS}
    assert (sizes["claim"], sizes["future-ai"]) == (44, 30)
    numbers = {item.rstrip("abcdefg") for item in read_items("tripod-ai")["item"]}
    assert numbers == {str(number) for number in range(1, 28)}
    assert {item[0] for item in read_items("eu-ai-act-annex-iv")["item"]} == set("123456789")
    assert {item[:8] for item in read_items("article-30")["item"]} == {
        "30(2)",
        *(f"30(1)({letter})" for letter in "abcdefg"),
    }
    assert sum(item.startswith("Criterion ") for item in read_items("dpia")["item"]) == 9


def test_what_was_recorded_is_reported_and_the_rest_is_asked_for(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"{method}-{seed}", method=method, seed=seed, rounds=2, image_size=[64, 64], privacy=[])
            for method, seed in (("standalone", 0), ("fedce", 1))]  # fmt: skip
    path = write_dossier(runs, tmp_path / "out")
    page = path.read_text()
    assert all(title in page for title in LISTS.values())
    claim, flute = _read(tmp_path / "out", "claim"), _read(tmp_path / "out", "hl7-flute")
    assert "Mean test Dice" in claim["37"]
    assert all(site in claim["37"] for site in SITES)
    assert claim["23"].startswith("FedMerit 0.1.0 (torch 2.13.0")
    assert claim["24"] == "Initial parameters are random, by seed: 1."  # of what was federated
    assert claim["7"] == f"{NOT_KNOWN} each hospital's data manager"  # no site folder is here
    assert claim["33"] == f"{NOT_KNOWN} a hospital that took no part"
    assert flute["Membership"].startswith(NOT_KNOWN)
    # What was measured answers such an item in part, and whom to ask for the rest is reported.
    assert claim["40"].endswith(f"Beyond that (limits that the numbers do not show): {NOT_KNOWN} the authors")
    annex = _read(tmp_path / "out", "eu-ai-act-annex-iv")
    assert annex["1(e)"] == f"{NOT_KNOWN} the model's provider"  # what it was trained on is not what it is to run on
    assert annex["4"] == f"{NOT_KNOWN} the study's statistician"  # measures do not say why they are suitable
    assert "in part" in page
    assert "compare them with the originals" in page
    assert str(tmp_path) not in page


def test_an_unfinished_run_claims_no_result(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rounds=4, done=2, image_size=[64, 64])
    write_dossier([run], tmp_path / "out")
    claim = _read(tmp_path / "out", "claim")
    for item in ("26", "28", "29", "32", "37", "39"):
        assert claim[item].startswith(NOT_KNOWN)
    assert "run incomplete: 2 of 4 rounds" in claim["40"]


@pytest.mark.slow
def test_a_run_says_what_a_real_one_recorded(trained, tmp_path: Path) -> None:
    run = trained()
    write_dossier([run], tmp_path / "out")
    record = _read(tmp_path / "out", "eu-ai-act-article-12")
    assert "3 rounds, hash chain complete, not signed" in record["12(1)"]
    assert record["12(1) in use"] == f"{NOT_KNOWN} the model's provider"
    assert "SHA-256" in _read(tmp_path / "out", "claim")["43"]
