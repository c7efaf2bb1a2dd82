"""A relay between a client and a server that can cut, swallow, or lose an answer. TCP or Unix sockets."""

from __future__ import annotations

import selectors
import socket
import threading
from pathlib import Path
from typing import Any

Address = tuple[str, int] | str


class Proxy:
    """Listens on `listen` (or a free port of the loopback) and forwards to `upstream` until told otherwise."""

    def __init__(self, upstream: Address, listen: Address = ("127.0.0.1", 0)) -> None:
        self.upstream = upstream
        self.lost = threading.Event()
        """Set when an answer has been lost."""
        self._listener = _socket(listen)
        self._listener.bind(listen)
        if isinstance(listen, str):
            Path(listen).chmod(0o777)
        self._listener.listen(64)
        self._peers: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._doomed: set[socket.socket] = set()
        self._orphans: list[socket.socket] = []
        self._lose_after: bytes | None = None
        self._refusing = self._swallowing = self._closed = False
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def cut(self) -> None:
        """End every connection and refuse new ones."""
        with self._lock:
            self._refusing = True
            for sock in list(self._peers):
                self._drop(sock)

    def black_hole(self) -> None:
        """Forward nothing and close nothing: a network that is gone without a word."""
        with self._lock:
            self._swallowing = True

    def forget(self) -> None:
        """Close the side of the servers only: the clients wait for answers that will never come."""
        with self._lock:
            for client in self._clients:
                self._selector.unregister(client)
                self._orphans.append(client)
            for sock in list(self._peers):
                if sock not in self._clients:
                    self._selector.unregister(sock)
                    sock.close()
            self._peers.clear()
            self._clients.clear()

    def heal(self) -> None:
        with self._lock:
            self._refusing = self._swallowing = False

    def lose_answer_to(self, request: bytes) -> None:
        """Let the next request that holds these bytes through, then cut its connection instead of answering."""
        with self._lock:
            self.lost.clear()
            self._lose_after = request

    def close(self) -> None:
        self._closed = True
        self._thread.join()
        for sock in [self._listener, *self._peers, *self._orphans]:
            sock.close()
        self._selector.close()

    def _relay(self) -> None:
        while not self._closed:
            ready = self._selector.select(0.02)
            with self._lock:
                if self._swallowing:
                    threading.Event().wait(0.02)
                    continue
                for key, _ in ready:
                    self._serve(key.fileobj)

    def _serve(self, sock: Any) -> None:
        if sock is self._listener:
            self._accept()
        elif sock in self._peers:
            self._forward(sock)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = _socket(self.upstream)
        try:
            if self._refusing:
                raise ConnectionRefusedError
            server.connect(self.upstream)
        except OSError:
            client.close()
            server.close()
            return
        self._clients.add(client)
        self._peers |= {client: server, server: client}
        for sock in (client, server):
            self._selector.register(sock, selectors.EVENT_READ)

    def _forward(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(2**16)
            if not data or sock in self._doomed:
                self._drop(sock)
                return
            if sock in self._clients and self._lose_after and self._lose_after in data:
                self._lose_after = None
                self._doomed.add(self._peers[sock])
            self._peers[sock].sendall(data)
        except OSError:
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        if sock not in self._peers:
            return
        if sock in self._doomed:
            self.lost.set()
        for end in (sock, self._peers[sock]):
            self._selector.unregister(end)
            del self._peers[end]
            self._clients.discard(end)
            self._doomed.discard(end)
            end.close()


def _socket(address: Address) -> socket.socket:
    return socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
