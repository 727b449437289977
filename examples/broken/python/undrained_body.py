"""A replay is sent as soon as the key is found, while the request body is still unread on the connection.

Seen in proxies and caches that respond after reading the request head; the body cannot be compared either.
Cost: the rest of the body is parsed as the next request on the connection. Behind a proxy that shares connections
this is request smuggling: another client's request begins with bytes that an attacker chose.
"""

from base import Refused, Service, digest, serve

BODY_BYTES_MAX = 64 * 1024


class UndrainedBody(Service):
    def guarded(self, request):
        if int(request.headers.get("content-length", 0)) > BODY_BYTES_MAX and request.body:
            raise Refused(413, "too large")
        return super().guarded(request)

    def fingerprint_of(self, request):
        return digest(request.method, request.path, request.query)

    def drain(self, request):
        pass


serve(UndrainedBody)
