"""Trains at one hospital with PyTorch Lightning; NVFlare patches the trainer, and nothing in here knows of FedMerit."""

import nvflare.client.lightning as flare
from data import images
from lightning_model import LitNet
from nvflare.client import is_evaluate
from pytorch_lightning import LightningDataModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset


class Hospital(LightningDataModule):
    """Its images. After an evaluation, too, NVFlare asks the trainer for its loaders: here they are always."""

    def __init__(self, site: str):
        super().__init__()
        self.site = site

    def train_dataloader(self) -> DataLoader:
        """Batches of four, shuffled."""
        return DataLoader(TensorDataset(*images(self.site, "training")), batch_size=4, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        """All in one batch."""
        return DataLoader(TensorDataset(*images(self.site, "validation")), batch_size=6)


def main():
    """One hospital, round by round."""
    flare.init()
    site = flare.get_site_name()
    seed_everything(sum(site.encode()), verbose=False)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(max_epochs=1, accelerator="cpu", devices=1, enable_checkpointing=False, **quiet)
    flare.patch(trainer)
    network, hospital = LitNet(), Hospital(site)
    while flare.is_running():
        if flare.receive() is None:
            break
        only_tested = is_evaluate()
        trainer.validate(network, datamodule=hospital, verbose=False)  # the received model, and whole evaluations
        if not only_tested:
            trainer.fit(network, datamodule=hospital)


if __name__ == "__main__":
    main()
