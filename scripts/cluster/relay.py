#!/usr/bin/env python3
"""relay.py [--delay SECONDS] [--loss PERCENT] [--reorder PERCENT] --drops FILE --ready FILE PORT...

The switch of nodes that scripts/cluster.sh emulates, if their links delay, lose or reorder packets. Forwards Ethernet
frames between the network interfaces PORT... of its network namespace, by raw sockets. A frame crosses two links: that
of the node that sends it and that of the node that receives it. Each link delays every frame by SECONDS, loses PERCENT
of the frames, and delays PERCENT of the frames further, so that later frames arrive first. FILE of --drops has the
names of ports whose links lose all frames; SIGHUP makes the relay read it again. The relay creates FILE of --ready
when it forwards frames, and ends when it is killed. The random numbers begin with the same seed in each run.
"""

import argparse
import heapq
import itertools
import pathlib
import random
import select
import signal
import socket
import time

ALL_PROTOCOLS = 0x0003
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
BUFFER_BYTES = 16 << 20
# With PACKET_VNET_HDR, a header precedes each frame. It states which checksum is still missing and how a frame larger
# than a packet is divided. The socket that sends the frame gets the same header.
HEADER_BYTES = 10
LARGEST_FRAME = HEADER_BYTES + 14 + 4 + 65536
# Later frames arrive before a reordered frame if they are sent within this time.
REORDER_SECONDS = 0.002
FRAMES_AT_ONCE = 64


def open_port(name):
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for forced, limited in ((SO_SNDBUFFORCE, socket.SO_SNDBUF), (SO_RCVBUFFORCE, socket.SO_RCVBUF)):
        try:
            port.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)
        except PermissionError:
            port.setsockopt(socket.SOL_SOCKET, limited, BUFFER_BYTES)
    port.setblocking(False)
    port.bind((name, ALL_PROTOCOLS))
    return port


class Relay:
    """Forwards frames between ports. Each port learns the addresses of its node from the frames that it receives."""

    def __init__(self, options):
        self.options = options
        self.ports = {open_port(name): name for name in options.ports}
        self.port_of_address = {}
        self.waiting = []  # a heap of (time to send, number, port, header and frame)
        self.number = itertools.count()
        self.random = random.Random(1)
        self.dropped_ports = set()
        self.read_drops()

    def read_drops(self, *_):
        path = pathlib.Path(self.options.drops)
        self.dropped_ports = set(path.read_text(encoding="ascii").split()) if path.exists() else set()

    def targets(self, source, frame):
        target, sender = frame[HEADER_BYTES:HEADER_BYTES + 6], frame[HEADER_BYTES + 6:HEADER_BYTES + 12]
        self.port_of_address[sender] = source
        known = self.port_of_address.get(target)
        if known is not None:
            return [known]
        return [port for port in self.ports if port is not source]

    def is_lost(self, port):
        return self.ports[port] in self.dropped_ports or self.random.uniform(0, 100) < self.options.loss

    def delay(self):
        late = self.random.uniform(0, 100) < self.options.reorder
        return self.options.delay + (REORDER_SECONDS if late else 0)

    def accept(self, source, frame, now):
        for target in self.targets(source, frame):
            if target is source or self.is_lost(source) or self.is_lost(target):
                continue
            due = now + self.delay() + self.delay()
            heapq.heappush(self.waiting, (due, next(self.number), target, frame))

    def receive(self, source):
        for _ in range(FRAMES_AT_ONCE):
            try:
                frame = source.recv(LARGEST_FRAME)
            except BlockingIOError:
                return
            except OSError:  # the interface is down, which discards the frame
                return
            if len(frame) >= HEADER_BYTES + 14:
                self.accept(source, frame, time.monotonic())

    def send_due(self):
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(self.waiting)
            try:
                target.send(frame)
            except OSError:  # the queue of the link is full, or the interface is down: a switch discards the frame too
                pass

    def run(self):
        signal.signal(signal.SIGHUP, self.read_drops)
        pathlib.Path(self.options.ready).touch()
        while True:
            timeout = max(0.0, self.waiting[0][0] - time.monotonic()) if self.waiting else None
            readable, _, _ = select.select(list(self.ports), [], [], timeout)
            for port in readable:
                self.receive(port)
            self.send_due()


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--delay", type=float, default=0)
    parser.add_argument("--loss", type=float, default=0)
    parser.add_argument("--reorder", type=float, default=0)
    parser.add_argument("--drops", required=True)
    parser.add_argument("--ready", required=True)
    parser.add_argument("ports", nargs="+")
    Relay(parser.parse_args()).run()


if __name__ == "__main__":
    main()
