"""The steps of a FedCE round and nothing else."""

from run_factory import make_sites

from fedmerit.engines import runs
from fedmerit_lab.benchmarks import bare_steps


def test_every_site_trains_once_and_validates_twice_a_round(tmp_path, monkeypatch):
    """Two of three sites take part, three rounds."""
    sites = make_sites(tmp_path / "sites", ("Alder", "Birch", "Cedar"), size=16)
    settings = {"architecture": "unet", "width": "2", "depth": "2", "lr": "0.02"}
    only = ["Alder", "Birch"]
    runs.create(tmp_path / "run", "fedce", sites, 3, engine="local", threads=1, settings=settings, only=only)
    done = []
    monkeypatch.setattr(
        bare_steps,
        "train",
        lambda network, slices, training, lr, seed: done.append((id(network), "train", len(slices), lr)),
    )
    monkeypatch.setattr(
        bare_steps,
        "evaluate",
        lambda network, cases, labels, amp: done.append((id(network), "evaluate", len(cases), labels)),
    )
    bare_steps.main(str(tmp_path / "run"), str(tmp_path / "ends.txt"))
    ends = [float(line) for line in (tmp_path / "ends.txt").read_text().splitlines()]
    assert len(ends) == 3
    assert ends == sorted(ends)
    networks = {network for network, *_ in done}
    assert len(networks) == 2  # a site's own, round for round
    a_round = [("train", 15, 0.02), ("evaluate", 5, ("prostate",)), ("evaluate", 5, ("prostate",))]
    for one in networks:
        assert [(what, number, how) for network, what, number, how in done if network == one] == 3 * a_round
