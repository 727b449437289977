"""Counts effects: POST /ID adds one, GET /ID returns the count.

Usage: python3 ledger.py PORT
"""

import collections
import http.server
import sys

EFFECTS = collections.Counter()


class Ledger(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        EFFECTS[self.path] += 1
        self.answer(b"")

    def do_GET(self):
        self.answer(str(EFFECTS[self.path]).encode())

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if len(sys.argv) != 2:
    sys.exit(__doc__)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Ledger).serve_forever()
