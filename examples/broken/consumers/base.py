"""A correct consumer of a Redis stream; the broken consumers change one thing in it.

Usage: python3 NAME.py REDIS_PORT STREAM CONSUMER LEDGER_URL

A message has an id and a JSON payload. Its effect is one POST to LEDGER_URL/ID.
`"slow": SECONDS` in the payload takes that long before the effect, and `"fail": N` fails the first N times.
A message that fails ATTEMPTS times goes to the stream STREAM-dead.
"""

import json
import socket
import sys
import time
import urllib.request

ATTEMPTS = 3
# A message that is not acknowledged within this time is delivered again.
IDLE_MS = 300
# A claim lapses after this time if its holder is gone.
LEASE_MS = 4000
# A completed message is remembered for this time.
KEPT_MS = 24 * 3600 * 1000


class Redis:
    """The part of the Redis protocol that is needed."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")

    def __call__(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        parts = [b"*%d\r\n" % len(words)]
        parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
        self.socket.sendall(b"".join(parts))
        return self.read()

    def read(self):
        line = self.file.readline()
        if not line:
            sys.exit("Redis is gone")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self.file.read(size + 2)[:-2]
        if kind == b"*":
            count = int(rest)
            return None if count < 0 else [self.read() for _ in range(count)]
        return rest


class Failed(Exception):
    """The message was not handled."""


class Consumer:
    def __init__(self, port, stream, name, ledger):
        self.redis = Redis(int(port))
        self.stream, self.name, self.ledger = stream, name, ledger
        try:
            self.redis("XGROUP", "CREATE", stream, name, "0", "MKSTREAM")
        except RuntimeError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def run(self):
        while True:
            for entry, fields in self.pull():
                message = dict(zip(fields[::2], fields[1::2]))
                self.take(entry, message[b"id"].decode(), message[b"payload"])

    def pull(self):
        lapsed = self.redis(
            "XAUTOCLAIM", self.stream, self.name, "one", IDLE_MS, "0-0", "COUNT", 10
        )[1]
        read = self.redis(
            "XREADGROUP", "GROUP", self.name, "one", "COUNT", 10, "BLOCK", 50,
            "STREAMS", self.stream, ">",
        )
        return [it for it in lapsed if it[1]] + (read[0][1] if read else [])

    def take(self, entry, id, payload):
        """Claim, handle, mark as done, acknowledge: in this order."""
        mark = self.mark(id)
        if self.redis("SET", mark, "claimed", "NX", "PX", LEASE_MS) is None:
            if self.redis("GET", mark) == b"done":
                self.acknowledge(entry)
            # Otherwise it is in flight, or its holder died: it is delivered again later.
            return
        try:
            self.handle(id, payload)
        except Failed:
            self.redis("DEL", mark)
            self.fail(entry, id, payload)
            return
        self.redis("SET", mark, "done", "PX", KEPT_MS)
        self.acknowledge(entry)

    def fail(self, entry, id, payload):
        if self.redis("INCR", f"attempts:{self.name}:{entry.decode()}") >= ATTEMPTS:
            self.give_up(entry, id, payload)

    def mark(self, id):
        return f"mark:{self.stream}:{self.name}:{id}"

    def handle(self, id, payload):
        order = json.loads(payload)
        if "fail" in order:
            tried = self.redis("INCR", f"tried:{self.stream}:{self.name}:{id}")
            if tried <= order["fail"]:
                raise Failed
        time.sleep(order.get("slow", 0))
        self.effect(id)

    def effect(self, id):
        urllib.request.urlopen(f"{self.ledger}/{id}", data=b"").read()

    def give_up(self, entry, id, payload):
        self.redis("XADD", f"{self.stream}-dead", "*", "id", id, "payload", payload)
        self.acknowledge(entry)

    def acknowledge(self, entry):
        self.redis("XACK", self.stream, self.name, entry)


def main(consumer):
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    consumer(*sys.argv[1:]).run()
