"""Sites of prepared images on this machine: opened for a new run, or as a run was created with them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from fedmerit.ciphertexts import SiteKey
from fedmerit.contract.capabilities import capabilities
from fedmerit.errors import BadInput
from fedmerit.machine import cores, pick_device
from fedmerit.schema.configuration.data import common
from fedmerit.schema.configuration.options import RunOptions
from fedmerit.schema.configuration.run import RunConfiguration, make_configuration, with_sharing
from fedmerit.schema.scores import SERVER_SPLIT
from fedmerit.schema.site_folder import (
    SiteFolder,
    images_digest,
    open_sites,
    read_site_digests,
    require_same_preparation,
)
from fedmerit.site import machine_settings
from fedmerit.site.machine_settings import assign_devices, configured_device, require_known_sites
from fedmerit.site.peers import AskPeer
from fedmerit.site.site import Site, image_site
from fedmerit.trainers.factory import check_training
from fedmerit.trust import allow_places, require_place


@dataclass(frozen=True)
class ImageSites:
    """A run's site folders: of the sites, and of the server if it has images of its own."""

    root: Path
    folders: Sequence[SiteFolder]
    server_root: Path | None = None
    server_folders: Sequence[SiteFolder] = ()
    devices: str = ""  # setting as `configured_device` reads it
    failures: Mapping[str, str] = field(default_factory=dict)  # an answer that fails ends the run

    @classmethod
    def read(cls, options: RunOptions) -> Self:
        """Open the folders of the sites that a new run asks for.

        Raises:
            BadInput: a folder is missing or damaged, or the device setting names another site.
        """
        root = Path(str(options.sites))
        folders = open_sites(root, options.only or None, options.fold)
        own = open_sites(options.server_sites) if options.server_sites is not None else []
        names = [folder.name for folder in folders]
        known = names if not options.only else [folder.name for folder in open_sites(root)]
        require_known_sites(options.device, known, present=names)
        return cls(root, folders, options.server_sites, own, options.device)

    @classmethod
    def recorded(cls, run: Path, info: Mapping[str, Any]) -> Self:
        """Open the folders of the sites that run.json names.

        Raises:
            BadInput: they are not those that the run was created with, or were prepared again since.
            Untrusted: only run.json names their place, and nobody trusts that.
        """
        root = Path(info["sites_folder"])
        if not root.is_dir():
            raise BadInput(
                f"{root}: no such folder, where {run} had its sites; --resume --sites PLACE says where they are"
            )
        require_place(root, run)
        folders = open_sites(root, info["only"], info["fold"])
        names = [folder.name for folder in folders]
        if names != info["sites"]:
            raise BadInput(f"{root}: holds {', '.join(names)}; run {run} was started with {', '.join(info['sites'])}")
        own = open_sites(require_place(info["server_sites"], run)) if info["server_sites"] else []
        require_same_images(run, info, folders, own)
        server_root = Path(info["server_sites"]) if info["server_sites"] else None
        return cls(root, folders, server_root, own, assign_devices(info["device"], names))

    @property
    def names(self) -> list[str]:
        """The names of the sites, sorted."""
        return [folder.name for folder in self.folders]

    def configure(self, options: RunOptions) -> RunConfiguration:
        """Return the configuration of a new run; `BadInput` if an option cannot be used with these images."""
        config = configure_images(self.folders, options, options.all_settings)
        config = replace(config, server_images=images_digest(self.server_folders))
        return with_sharing(config, options.share_models, options.engine != "poc", options.server_sites is not None)

    def describe(self, config: RunConfiguration, options: RunOptions) -> dict[str, Any]:
        """Check the images and devices, and return what run.json says of these sites.

        Raises:
            BadInput: an image cannot be used, a device is not there, or the method lacks images at the server.
        """
        for folder in self.folders:
            folder.require_cases()
            folder.require_arrays()
            pick_device(self.device(folder.name), folder.name)
        self._require_server_set(config)
        return {
            "only": sorted(options.only) or None,
            "image_size": list(self.folders[0].image_size),
            "site_digests": read_site_digests(self.folders),
            "server_digests": read_site_digests(self.server_folders),
            "sites_folder": str(self.root.resolve()),
            "server_sites": self.server_root and str(self.server_root.resolve()),
            "settings": {name: str(value) for name, value in options.all_settings.items()},
        }

    def begin(self, run: Path) -> None:
        """Let later processes of this machine's user open these folders."""
        allow_places(self.root, self.server_root)

    def device(self, name: str) -> str:
        """Return the device of a site, or of the server."""
        return configured_device(name, self.devices)

    def count_processes(self, config: RunConfiguration, threads: int | None) -> int:
        """Return ``threads``, or how many sites there are cores for; all sites if they ask each other."""
        at_once = capabilities(config.build_method()).exchanges_directly
        return min(threads or (len(self.names) if at_once else cores()), len(self.names))

    def environment(self) -> dict[str, str]:
        """Return the variables of the folders and devices; the options decide, not this process's environment."""
        return {
            machine_settings.SITES: str(self.root.resolve()),
            machine_settings.SERVER_SITES: str(self.server_root.resolve()) if self.server_root else "",
            machine_settings.DEVICES: self.devices,
        }

    @contextmanager
    def open_site(
        self, name: str, config: RunConfiguration, memory: Path, ask_peer: AskPeer, key: SiteKey | None
    ) -> Iterator[Site]:
        """Open the site of a folder in this process."""
        folder = next(folder for folder in self.folders if folder.name == name)
        shared = {"ask_peer": ask_peer, "key": key, "participants": self.names}
        yield image_site(folder, config, memory, self.device(name), **shared)

    def _require_server_set(self, config: RunConfiguration) -> None:
        """Check that the server has the validation set that the method needs, and that it fits the sites."""
        first = self.folders[0]
        expected = (first.task, first.channels, first.labels, first.image_size)
        for folder in self.server_folders:
            properties = (folder.task, folder.channels, folder.labels, folder.image_size)
            if properties != expected:
                raise BadInput(
                    f"{folder.path}: task, channels, labels and size are {properties}, the sites' are {expected}; "
                    "prepare the server's images like the sites'"
                )
            folder.require_arrays()
        if self.server_folders:
            return
        lacking = [folder.name for folder in self.folders if not folder.cases(SERVER_SPLIT)]
        if lacking and capabilities(config.build_method()).candidates:
            raise BadInput(
                f"method {config.method} needs images set aside for the server, and {', '.join(lacking)} set none "
                "aside; prepare the sites with --server-share 0.1, or name a folder of the server's own with "
                "--server-sites"
            )


def configure_images(
    folders: Sequence[SiteFolder], options: RunOptions, settings: Mapping[str, Any]
) -> RunConfiguration:
    """Return the configuration of a run on site folders.

    Args:
        folders: the images must have one form, the same at all sites.
        options: method, rounds, seed, fold, and what is observed.
        settings: of the method, the training and the guard.

    Raises:
        BadInput: a setting is unknown or wrong, or the images do not fit the network.
    """
    first = folders[0]
    network = {"in_channels": first.channels, "labels": list(first.labels)}
    plan = first.data_plan.settings if first.data_plan else {}
    config = make_configuration(
        str(options.method),
        first.task,
        options.rounds,
        options.seed,
        network,
        {**plan, **settings},
        options.values,
        options.keep_updates,
        common({folder.name: folder.info for folder in folders}),
        options.fold,
    )
    check_training(config, first.image_size)
    return config


def require_same_images(
    run: Path, info: Mapping[str, Any], folders: Sequence[SiteFolder], own: Sequence[SiteFolder] = ()
) -> None:
    """Check that no images, of the sites or the server's ``own``, were prepared again since the run was created."""
    before, current = info["image_size"], list(folders[0].image_size)
    if before != current:
        raise BadInput(
            f"{folders[0].path.parent}: holds images of {current[0]}x{current[1]}, run {run} was started with "
            f"{before[0]}x{before[1]}; prepare the old folder again, or choose another --out"
        )
    require_same_preparation(folders, info["site_digests"], run)
    require_same_preparation(own, info["server_digests"], run)
