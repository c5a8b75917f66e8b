"""Training steps and evaluation passes on a GPU, each captured as one CUDA graph and replayed.

A step of a small network launches hundreds of kernels, and the GPU waits for the CPU that launches them. A graph is
launched at once. It reads and writes the same memory whenever it is replayed: so the network, the optimizer's state and
the sum of losses stay where they are over all rounds, and a batch is copied to where the graph reads it. What is drawn
is drawn outside. The first step or pass of a shape is taken eagerly; the second is taken both ways, and graphs are
replayed from then on only if both gave the same bits.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

Step = Callable[..., None]  # of the tensors of a batch; what it changes is the state of `CapturedSteps`
CAPTURING = {"cuda"}  # types of devices
MOST_SHAPES = 4  # of batches; an epoch has two, of which the smaller comes once
log = logging.getLogger(__name__)
_capture = Lock()  # CUDA allows one at a time in a process
_steps: WeakKeyDictionary[nn.Module, tuple[object, "CapturedSteps"]] = WeakKeyDictionary()
_passes: WeakKeyDictionary[nn.Module, "CapturedPasses"] = WeakKeyDictionary()


class _Captured:
    """A memory of what was captured of one network, whose graphs read and write its tensors where they were then."""

    def __init__(self, network: nn.Module):
        self._of_network = [*network.parameters(), *network.buffers()]
        self._places = [tensor.data_ptr() for tensor in self._of_network]
        self._seen: set[tuple[object, ...]] = set()  # shapes that were computed eagerly
        self._fault = ""  # why nothing can be captured

    def fits(self, network: nn.Module) -> bool:
        """Return whether the network's tensors are where they were."""
        return self._places == [tensor.data_ptr() for tensor in (*network.parameters(), *network.buffers())]


class CapturedSteps(_Captured):
    """The steps of one network by one recipe.

    Args:
        network: trained.
        optimizer: of its parameters, which holds learning rates as tensors; used for every round.
    """

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer):
        super().__init__(network)
        self.optimizer = optimizer
        device = next(network.parameters()).device
        self.total = torch.zeros((), device=device)  # of the losses since `begin`
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._graphs: dict[tuple[torch.Size, ...], tuple[tuple[Tensor, ...], Callable[[], None]]] = {}

    def begin(self, rate: float) -> None:
        """Begin a round with a learning rate: the optimizer is as a new one."""
        self.total.zero_()
        for value in self._optimizer_state():
            value.zero_()
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Enter a stream of the network's own: it waits for what the thread did before, the thread for what it does."""
        if self._stream is None:
            yield
            return
        before = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(before)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            before.wait_stream(self._stream)

    def take(self, step: Step, *batch: Tensor) -> None:
        """Take a step on the tensors of a batch: by a graph, if there is one of their shapes.

        ``step`` changes nothing but the network, the optimizer and the total.
        """
        shapes = tuple(tensor.shape for tensor in batch)
        if shapes in self._graphs:
            inputs, replay = self._graphs[shapes]
            for place, tensor in zip(inputs, batch, strict=True):
                place.copy_(tensor)
            replay()
        elif shapes not in self._seen or self._fault or len(self._graphs) == MOST_SHAPES:
            step(*batch)
            self._seen.add(shapes)
        else:
            self._capture(step, batch, shapes)

    def _capture(self, step: Step, batch: tuple[Tensor, ...], shapes: tuple[torch.Size, ...]) -> None:
        """Take a step, take it again by a new graph, and keep the graph if both gave the same bits."""
        before = self._copy_state()
        step(*batch)
        after = self._copy_state()
        inputs = tuple(tensor.clone() for tensor in batch)
        try:
            replay = record(lambda: step(*inputs), self._stream)
            self._set_state(before)
            replay()
            if not all(map(_same_bits, self._state(), after)):
                self._fault = "a replayed step gave other bits"
        except RuntimeError as error:  # such as what CUDA cannot capture
            self._fault = str(error).splitlines()[0]
        if self._fault:
            log.warning("steps are not captured as CUDA graphs: %.200s", self._fault)
            self._set_state(after)
        else:
            self._graphs[shapes] = inputs, replay

    def _optimizer_state(self) -> Iterator[Tensor]:
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    def _state(self) -> Iterator[Tensor]:
        yield self.total
        yield from self._of_network
        yield from self._optimizer_state()

    def _copy_state(self) -> list[Tensor]:
        return [tensor.detach().clone() for tensor in self._state()]

    @torch.no_grad()
    def _set_state(self, values: list[Tensor]) -> None:
        for tensor, value in zip(self._state(), values, strict=True):
            tensor.copy_(value)


class CapturedPasses(_Captured):
    """The evaluation passes of one network: the models that it evaluates are loaded to where its graphs read them."""

    def __init__(self, network: nn.Module):
        super().__init__(network)
        self._graphs: dict[tuple[object, ...], tuple[Tensor, Tensor, Callable[[], None]]] = {}

    def take(self, forward: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """Return ``forward(images)``, by a graph if there is one of their shape and precision."""
        key = images.shape, images.dtype, torch.is_autocast_enabled(images.device.type)
        if key in self._graphs:
            place, logits, replay = self._graphs[key]
            place.copy_(images)
            replay()
            return logits.clone()  # the next replay writes there again
        found = forward(images)
        if key in self._seen and not self._fault and len(self._graphs) < MOST_SHAPES:
            self._capture(forward, images, found, key)
        self._seen.add(key)
        return found

    def _capture(
        self, forward: Callable[[Tensor], Tensor], images: Tensor, expected: Tensor, key: tuple[object, ...]
    ) -> None:
        """Take a pass again by a new graph, and keep the graph if it gives the bits of ``expected``."""
        place, logits = images.clone(), torch.zeros_like(expected)
        try:
            replay = record(lambda: logits.copy_(forward(place)), None)
            replay()
            if not _same_bits(logits, expected):
                self._fault = "a replayed pass gave other bits"
        except RuntimeError as error:  # such as what CUDA cannot capture
            self._fault = str(error).splitlines()[0]
        if self._fault:
            log.warning("evaluation passes are not captured as CUDA graphs: %.200s", self._fault)
        else:
            self._graphs[key] = place, logits, replay


@contextmanager
def captured_passes(network: nn.Module) -> Iterator[None]:
    """Have the passes of ``network``, in eval mode and without gradients, captured and replayed in this context.

    On a device that has no graphs nothing changes.
    """
    if next(network.parameters()).device.type not in CAPTURING:
        yield
        return
    known = _passes.get(network)
    if known is None or not known.fits(network):
        known = _passes[network] = CapturedPasses(network)
    network.forward = partial(known.take, network.forward)
    try:
        yield
    finally:
        del network.forward  # the class's is back


def captured_steps(network: nn.Module, recipe: object, optimizer: Callable[[], torch.optim.Optimizer]) -> CapturedSteps:
    """Return the steps of a network: those of its last round if the recipe is still the same.

    Args:
        network: as a thread works with it.
        recipe: all that a step depends on but the learning rate and the batch.
        optimizer: makes the optimizer of new steps.
    """
    known = _steps.get(network)
    if known is None or known[0] != recipe or not known[1].fits(network):
        known = _steps[network] = recipe, CapturedSteps(network, optimizer())
    return known[1]


def forget_steps(network: nn.Module) -> None:
    """Drop the steps of a network, of which something else than a step has changed the optimizer."""
    _steps.pop(network, None)


def record(work: Callable[[], object], stream: Any) -> Callable[[], None]:
    """Return a function that does the CUDA work of ``work`` again; nothing is done yet."""
    graph = torch.cuda.CUDAGraph()
    with _capture, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph.replay


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.detach().reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
