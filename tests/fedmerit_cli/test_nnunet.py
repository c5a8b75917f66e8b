"""nnU-Net at generated hospitals: one plan, a federated run of its 2D configuration, and nnU-Net's own predictor."""

import json
import shutil
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from fedmerit.errors import BadInput
from fedmerit.evidence.ledger import read_verified_records
from fedmerit.schema.results import read_table
from fedmerit.tensor_files import load_state

pytest.importorskip("nnunetv2", reason="pip install -c constraints.txt '.[nnunet]' installs it")
PROJECT = Path(__file__).resolve().parents[2] / "examples" / "nnunet"
NAMES = ("site-1", "site-2", "site-3")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]  # every process imports nnU-Net


@pytest.fixture(scope="module")
def nnunet():
    """The example's modules by name; only one example is imported in a process."""
    with pytest.MonkeyPatch.context() as changed:
        changed.syspath_prepend(str(PROJECT))
        for name in ("client", "plan", "export"):
            changed.delitem(sys.modules, name, raising=False)
        import client
        import export
        import plan

        yield {"client": client, "plan": plan, "export": export}
        for name in ("client", "plan", "export"):
            sys.modules.pop(name)


def make_dataset(folder, seed, spacing, cases=5):
    """Noisy slices with a bright disc, as nnU-Net's raw folder."""
    generator = np.random.default_rng(seed)
    affine = np.diag([*spacing, 1.0])
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True)
    for number in range(cases):
        row, column = np.mgrid[:40, :40]
        y, x = generator.uniform(14, 26, 2)
        mask = np.repeat(((row - y) ** 2 + (column - x) ** 2 < 64)[..., None], 4, axis=2)
        image = 100 * mask + generator.normal(200, 30, mask.shape)
        nibabel.save(
            nibabel.Nifti1Image(image.astype(np.float32), affine), folder / "imagesTr" / f"c{number}_0000.nii.gz"
        )
        nibabel.save(nibabel.Nifti1Image(mask.astype(np.uint8), affine), folder / "labelsTr" / f"c{number}.nii.gz")
    described = {"channel_names": {"0": "T2"}, "labels": {"background": 0, "disc": 1}}
    (folder / "dataset.json").write_text(json.dumps(described | {"numTraining": cases, "file_ending": ".nii.gz"}))
    return folder


@pytest.fixture(scope="module")
def federation(nnunet, tmp_path_factory):
    """Three hospitals' raw folders, their summaries and the plan of all; the plan of site-3 is another."""
    out = tmp_path_factory.mktemp("nnunet")
    spacings = ((1.0, 1.0, 3.0), (1.0, 1.0, 3.0), (1.2, 1.2, 4.0))
    for seed, (name, spacing) in enumerate(zip(NAMES, spacings, strict=True)):
        make_dataset(out / "data" / name, seed, spacing)
    summaries = {name: nnunet["plan"].summarize(out / "data" / name) for name in NAMES}
    small = {"memory": 0.2, "features": 4}
    for name in NAMES[:2]:
        nnunet["plan"].make_plan(out / "plans" / name, summaries, **small)
    nnunet["plan"].make_plan(out / "plans" / "site-3", {"site-3": summaries["site-3"]}, **small)
    return out, summaries


@pytest.fixture(scope="module")
def run(federation, fedmerit):
    """Has so many sites train for two rounds; the folder of the run."""
    out, _ = federation

    def execute(folder, clients, *options):
        paths = f"--data {out}/data/{{site}} --plan {out}/plans/{{site}} --work {out}/work/{folder}/{{site}}"
        with pytest.MonkeyPatch.context() as changed:
            changed.setenv("NNUNET_PLAN", str(out / "plans" / "site-1"))
            done = fedmerit(
                *("run", "--out", out / folder, "--method", "fedavg", "--rounds", 2, "--engine", "local"),
                *("--script", PROJECT / "client.py", "--model", f"{PROJECT / 'plan.py'}:Net", "--clients", clients),
                *("--script-args", f"{paths} --iterations 4", *options),
            )
        logs = [file.read_text()[-2000:] for file in (out / folder / "sites").glob("*/script.log")]
        assert done.exit_code == 0, [done.output, *logs]
        return out / folder

    return execute


@pytest.fixture(scope="module")
def trained(run):
    return run("run", 2)


def test_what_leaves_a_hospital_are_aggregates_that_merge(nnunet, federation, tmp_path):
    plan, (_, summaries) = nnunet["plan"], federation
    assert set(summaries["site-1"]) == {
        *("cases", "spacing", "shape", "relative_size_after_cropping", "intensities", "dataset")
    }
    assert summaries["site-3"]["spacing"] == [4.0, 1.2, 1.2]
    assert summaries["site-3"]["shape"] == [4, 40, 40]
    one, other = ({**summaries["site-1"], "cases": cases} for cases in (1, 3))
    one["intensities"] = {"0": dict.fromkeys(plan.STATISTICS, 0.0) | {"mean": 2.0, "std": 1.0}}
    other["intensities"] = {"0": dict.fromkeys(plan.STATISTICS, 4.0) | {"mean": 6.0, "std": 1.0}}
    merged = plan.merge({"a": one, "b": other})
    assert merged["spacings"] == [[3.0, 1.0, 1.0]] * 4
    of_voxels = np.array([1.0, 3.0] + [5.0, 7.0] * 3)  # the same means and deviations
    found = merged["foreground_intensity_properties_per_channel"]["0"]
    assert found == pytest.approx(
        {"mean": of_voxels.mean(), "std": of_voxels.std(), "median": 3.0}
        | {"percentile_00_5": 3.0, "percentile_99_5": 3.0}
    )
    other["dataset"] = other["dataset"] | {"labels": {"background": 0, "cup": 1}}
    with pytest.raises(BadInput, match=r"b: labels is .*cup.*; make dataset.json say the same"):
        plan.merge({"a": one, "b": other})
    with pytest.raises(BadInput, match=r"has 4 training cases; a summary needs 5"):
        plan.summarize(make_dataset(tmp_path / "few", 0, (1, 1, 1), cases=4))


def test_generated_random_numbers_of_others_are_left_untouched(nnunet):
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    first = torch.rand(1)
    with nnunet["client"].seeded("a"):
        inside = torch.rand(1), np.random.random()  # noqa: NPY002
    with nnunet["client"].seeded("a"):
        assert (torch.rand(1), np.random.random()) == inside  # noqa: NPY002
    assert torch.equal(torch.cat([first, torch.rand(1)]), expected)


def test_a_run_repeats_and_verifies_and_has_scores_by_case(trained, run, fedmerit, federation):
    again = run("again", 2)
    records, others = (read_verified_records(folder / "ledger.jsonl") for folder in (trained, again))
    assert [(record["rejected"], record["updates"]) for record in others] == [({}, one["updates"]) for one in records]
    enrolled = records[0]["guard"]["enrolled"]
    assert {site: one["cases"]["training"] for site, one in enrolled.items()} == {"site-1": 4, "site-2": 4}
    first, second = (load_state(folder / "models" / "global.pt") for folder in (trained, again))
    assert all(torch.equal(first[name], second[name]) for name in first)
    start = load_state(trained / "first_model.pt")
    assert any(not torch.equal(first[name], start[name]) for name in first)
    assert fedmerit("verify", trained).exit_code == 3
    rows = read_table(trained / "results.csv")
    tested = rows[(rows["split"] == "testing") & (rows["quantity"] == "dice")]
    assert tested.groupby("site").size().to_dict() == {"site-1": 1, "site-2": 1}  # of five cases each
    done = fedmerit("report", trained)
    assert done.exit_code == 0, done.output


def test_nnunet_predicts_by_the_exported_model_what_its_trainer_found(nnunet, trained, federation):
    out, _ = federation
    plan, client = out / "plans" / "site-1", nnunet["client"]
    nnunet["export"].export(plan, trained / "models" / "global.pt", out / "exported")
    paths = f"--data {out}/data/{{site}} --plan {plan} --work {out}/work/run/{{site}}"
    site, trainer = client.start("site-1", client.read_arguments(paths.split()))
    trainer.load(load_state(trained / "models" / "global.pt"))
    images = site.cases["c0"][0]
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    predictor = nnUNetPredictor(use_mirroring=True, device=torch.device("cpu"), allow_tqdm=False)
    predictor.initialize_from_trained_model_folder(str(out / "exported"), use_folds=(0,))
    reader = trainer.plans_manager.image_reader_writer_class()
    image, properties = reader.read_images(images)
    found = predictor.predict_single_npy_array(image, properties, None, None, False)
    assert np.array_equal(found[None], trainer.segment("c0", mirroring=True))
    shutil.copytree(out / "plans" / "site-3", out / "another")
    with pytest.raises(BadInput, match=r"global.pt: trained by plan_\w{12}, and .* has another"):
        nnunet["export"].export(out / "another", trained / "models" / "global.pt", out / "refused")


def test_a_round_depends_on_what_arrives_and_on_nothing_before(nnunet, trained, federation):
    out, client = federation[0], nnunet["client"]
    paths = f"--data {out}/data/{{site}} --plan {out}/plans/{{site}} --work {out}/work/run/{{site}} --iterations 2"
    arrived = load_state(trained / "first_model.pt")

    def train(trainer, round):
        trainer.load(arrived)
        with client.seeded(f"0 site-1 {round}"):
            trainer.train_round(round, 2, 1)
        return trainer.parameters()

    (_, one), (_, other) = (client.start("site-1", client.read_arguments(paths.split())) for _ in range(2))
    before, after, resumed = train(one, 0), train(one, 1), train(other, 1)
    assert all(torch.equal(after[name], resumed[name]) for name in after)
    assert not all(torch.equal(after[name], before[name]) for name in after)


def test_a_site_with_another_plan_is_rejected_and_learns_why(run):
    folder = run("another_plan", 3, "--min-sites", 2)
    records = read_verified_records(folder / "ledger.jsonl")
    assert [list(record["rejected"]) for record in records] == [["site-3"]] * 2
    log = (folder / "sites" / "site-3" / "script.log").read_text()
    assert "put the coordinator's plan folder at --plan" in log
