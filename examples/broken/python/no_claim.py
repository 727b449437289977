"""Check-then-act: the key is looked up before execution and stored after it, without a claim in between.

Seen in much hand-written middleware, and in caches used as idempotency stores.
Cost: two clicks, or a retry after a short timeout, execute concurrently and both pay.
"""

import time

from base import Service, serve


class NoClaim(Service):
    def claim(self, identity, fingerprint):
        with self.transaction():
            return self.find(identity, fingerprint) or time.time_ns()

    def holds(self, identity, fence):
        return True


serve(NoClaim)
