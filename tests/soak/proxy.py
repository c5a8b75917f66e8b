"""A line between sites and the server that can be cut: a TCP proxy of its own for each site."""

import socket
import threading
from contextlib import suppress

CHUNK = 1 << 16


class Proxy:
    """Passes on what comes to its ``port`` to another port of this machine; while it `is_cut`, nothing passes."""

    def __init__(self, target: int):
        self.target, self.is_cut = target, False
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and let none begin until `mend`."""
        self.is_cut = True
        for one in tuple(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """From now on connections pass again."""
        self.is_cut = False

    def _accept(self) -> None:
        while True:
            near, _ = self.listening.accept()
            with suppress(OSError):
                if self.is_cut:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self.target))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        self._open.add(source)
        with suppress(OSError):
            while content := source.recv(CHUNK):
                sink.sendall(content)
        self._open.discard(source)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
