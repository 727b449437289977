"""A service that charges on every POST and knows nothing of retries; GET with ?key= finds a charge by its key."""

import http.server
import json
import threading
import urllib.parse

CHARGES = []
LOCK = threading.Lock()


class Shop(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        form = urllib.parse.parse_qs(self.rfile.read(length).decode())
        with LOCK:
            charge = {
                "id": len(CHARGES) + 1,
                "key": self.headers.get("Idempotency-Key"),
                "amount": form.get("amount", ["0"])[0],
            }
            CHARGES.append(charge)
        self.reply(201, charge)

    def do_GET(self):
        query = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)
        with LOCK:
            found = [charge for charge in CHARGES if charge["key"] in query.get("key", [])]
            charges = list(CHARGES)
        if "key" not in query:
            return self.reply(200, charges)
        return self.reply(200, found[0]) if found else self.reply(404, {"error": "no such charge"})

    def reply(self, status, value):
        body = json.dumps(value).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


http.server.ThreadingHTTPServer(("", 3000), Shop).serve_forever()
