"""A service that charges whenever it is asked to: `python3 shop.py PORT`."""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Shop(BaseHTTPRequestHandler):
    charges = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Shop.charges += 1
        answer = b"charge number %d\n" % Shop.charges
        self.send_response(201)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%d\n" % Shop.charges)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Shop).serve_forever()
