"""A replay leaves as soon as the key is known, with the request's body still unread on the connection.

Seen in proxies and caches that answer from the head of a request; the body cannot be compared then, either.
Cost: what is left of the body is taken for the next request on the connection. Behind a proxy that shares connections
that is request smuggling: somebody else's request begins with bytes that an attacker chose.
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
