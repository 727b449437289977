"""A correct payments service: the same key with the same request takes effect once.

The broken services next to it change one thing each. Standard library only.

A record holds, for one caller and key, the fingerprint of the request, its holder (a fence) and the end of the lease,
and finally the response. Payment and response are committed in one transaction, and only by the current fence.
"""

import functools
import hashlib
import http.server
import json
import os
import sqlite3
import sys
import threading
import time
import urllib.parse

LEASE = 3.0  # how long a claim stands: much longer than the slowest order takes, on a busy machine too
SLOW_STEPS = 60  # of 5 ms each, that a slow order takes; the others take 4
WAIT = 2.0  # how long a duplicate waits for the first one's answer
KEY_BYTES_MAX = 255
IN_FLIGHT = object()

SCHEMA = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = OFF;
    CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY, caller TEXT, paid BLOB);
    CREATE TABLE IF NOT EXISTS records (
        identity TEXT PRIMARY KEY CHECK (length(identity) < 300), fingerprint TEXT, fence INTEGER, until REAL,
        status INTEGER, content_type TEXT, location TEXT, body BLOB);
"""


class Answer:
    """A response; of its headers, only `location` and the content type are replayed."""

    def __init__(self, status, body, content_type="application/json", location=None, **more):
        self.status, self.body, self.content_type, self.location = status, body, content_type, location
        self.more = {name.replace("_", "-"): value for name, value in more.items()}


class Refused(Exception):
    """A rejection before anything took effect."""

    def __init__(self, status, why, **more):
        super().__init__(why)
        self.answer = Answer(status, json.dumps({"error": why}).encode(), **more)


class Request:
    def __init__(self, handler):
        self.method, self.headers, self._stream = handler.command, handler.headers, handler.rfile
        parts = urllib.parse.urlsplit(handler.path)
        self.path, self.query = parts.path, parts.query

    @functools.cached_property
    def body(self):
        return self._stream.read(int(self.headers.get("content-length", 0)))

    @property
    def is_json(self):
        return self.headers.get("content-type") == "application/json"

    @functools.cached_property
    def order(self):
        try:
            return json.loads(self.body) if self.is_json else {}
        except ValueError:
            raise Refused(400, "no JSON") from None


class Service:
    def __init__(self, folder):
        self.lock, self.tried = threading.Lock(), set()
        self.sql = sqlite3.connect(os.path.join(folder, "payments.db"), isolation_level=None, check_same_thread=False)
        self.sql.executescript(SCHEMA)

    # Key, caller and fingerprint.

    def key_of(self, request):
        keys = request.headers.get_all("idempotency-key", [])
        if len(keys) != 1:
            raise Refused(400, "exactly one Idempotency-Key is required")
        key = keys[0].strip('"')
        if not key or not key.isascii() or len(key) > KEY_BYTES_MAX:
            raise Refused(400, "the key must be 1 to 255 ASCII characters")
        return key

    def caller_of(self, request):
        """`Bearer alice.2` is the second credential of alice."""
        return request.headers.get("authorization", "").removeprefix("Bearer ").split(".")[0]

    def identity_of(self, request):
        return f"{self.caller_of(request)} {self.key_of(request)}"

    def fingerprint_of(self, request):
        return digest(request.method, request.path, request.query, self.canonical(request))

    def canonical(self, request):
        return json.dumps(request.order, sort_keys=True).encode() if request.is_json else request.body

    # The life of a record.

    def guarded(self, request):
        identity, fingerprint = self.identity_of(request), self.fingerprint_of(request)
        deadline = time.monotonic() + WAIT
        while (found := self.claim(identity, fingerprint)) is IN_FLIGHT:
            if time.monotonic() > deadline:
                return self.give_up(identity)
            time.sleep(0.01)
        return found if isinstance(found, Answer) else self.run(request, identity, fingerprint, found)

    def claim(self, identity, fingerprint):
        """Returns the stored response, IN_FLIGHT, or the fence of the new holder."""
        with self.transaction():
            if found := self.find(identity, fingerprint):
                return found
            fence = time.time_ns()
            record = (identity, fingerprint, fence, time.time() + LEASE)
            self.sql.execute("REPLACE INTO records (identity, fingerprint, fence, until) VALUES (?, ?, ?, ?)", record)
            return fence

    def find(self, identity, fingerprint):
        columns = "fingerprint, until, status, content_type, location, body"
        row = self.sql.execute(f"SELECT {columns} FROM records WHERE identity = ?", (identity,)).fetchone()
        if row is None:
            return None
        if row[0] != fingerprint:
            raise Refused(422, "the key was used for another request")
        if row[2] is not None:
            status, content_type, location, body = row[2:]
            return Answer(status, body, content_type, location, idempotent_replayed="true")
        return IN_FLIGHT if row[1] > time.time() else None

    def run(self, request, identity, fingerprint, fence):
        try:
            self.bank(request)
        except Refused as refused:
            self.release(identity, fence)
            return refused.answer
        with self.transaction():
            if self.holds(identity, fence):
                answer = self.pay(request)
                self.keep(identity, fingerprint, answer)
                return answer
        # Another holder took over: return its outcome.
        return self.guarded(request)

    def holds(self, identity, fence):
        held = "SELECT 1 FROM records WHERE identity = ? AND fence = ? AND status IS NULL"
        return self.sql.execute(held, (identity, fence)).fetchone() is not None

    def keep(self, identity, fingerprint, answer):
        self.sql.execute(
            "REPLACE INTO records (identity, fingerprint, status, content_type, location, body) VALUES (?, ?, ?, ?, ?, ?)",
            (identity, fingerprint, answer.status, answer.content_type, answer.location, answer.body),
        )

    def release(self, identity, fence):
        with self.transaction():
            self.sql.execute("DELETE FROM records WHERE identity = ? AND fence = ?", (identity, fence))

    def give_up(self, identity):
        raise Refused(409, "still in flight", retry_after="1")

    def transaction(self):
        return Transaction(self)

    # The business.

    def bank(self, request):
        """Calls the bank, in small time steps; for some orders the first call fails."""
        amount = request.order.get("amount", 0)
        if amount < 0:
            raise Refused(400, "the amount is negative")
        for _ in range(SLOW_STEPS if request.order.get("slow") else 4):
            time.sleep(0.005)
        reference = request.order.get("reference")
        if amount == 503 and reference not in self.tried:
            self.tried.add(reference)
            raise Refused(503, "the bank does not answer")

    def pay(self, request):
        paid = (self.caller_of(request), request.body)
        number = self.sql.execute("INSERT INTO payments (caller, paid) VALUES (?, ?)", paid).lastrowid
        location, cookie = f"{request.path}/{number}", f"session={number}"
        if not request.is_json:
            return Answer(201, request.body, "application/octet-stream", location, set_cookie=cookie)
        body = b'{"id":%d,"order":%s}' % (number, request.body)
        return Answer(201, body, location=location, set_cookie=cookie)

    def payments(self):
        with self.lock:
            return self.sql.execute("SELECT count(*) FROM payments").fetchone()[0]

    # HTTP.

    def answer(self, request):
        if (request.method, request.path) == ("GET", "/ledger"):
            return Answer(200, b"%d" % self.payments())
        try:
            if not self.caller_of(request):
                raise Refused(401, "authentication required")
            if request.path not in ("/v1/payments", "/v1/refunds"):
                raise Refused(404, "not found")
            return self.guarded(request)
        except Refused as refused:
            return refused.answer

    def drain(self, request):
        """Reads the rest of the body, which would be parsed as the next request otherwise."""
        return request.body


class Transaction:
    """A transaction; only one runs at a time."""

    def __init__(self, service):
        self.service = service

    def __enter__(self):
        self.service.lock.acquire()
        self.service.sql.execute("BEGIN")

    def __exit__(self, kind, *_):
        self.service.sql.execute("COMMIT" if kind is None else "ROLLBACK")
        self.service.lock.release()


def digest(*parts):
    parts = (part if isinstance(part, bytes) else part.encode() for part in parts)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def serve(kind):
    """`SERVICE.py PORT FOLDER`: listens on the port, stores everything in the folder."""
    service = kind(sys.argv[2])

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version, wbufsize = "HTTP/1.1", -1

        def handle_any(self):
            request = Request(self)
            answer = service.answer(request)
            service.drain(request)
            self.send_response(answer.status)
            headers = {"content-type": answer.content_type, "location": answer.location, **answer.more}
            for name, value in headers.items():
                if value is not None:
                    self.send_header(name, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_POST = do_PUT = handle_any

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size, daemon_threads = 128, True

        def handle_error(self, *_):
            """Ignores client disconnects: the request has already been executed."""

    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
