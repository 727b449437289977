"""The store returns an error, and the request executes without a claim: "better than an outage".

Seen in gateways and middleware that catch every store error and continue. Here the column is too short for
some keys; a restart of the store, a full disk or a timeout do the same to all of them.
Cost: while the store fails, no request is deduplicated, and that is when clients retry.
"""

import sqlite3

import base

UNCLAIMED = 0


class StoreErrorForwards(base.Service):
    def claim(self, identity, fingerprint):
        try:
            return super().claim(identity, fingerprint)
        except sqlite3.Error:
            return UNCLAIMED

    def holds(self, identity, fence):
        return fence == UNCLAIMED or super().holds(identity, fence)

    def keep(self, identity, fingerprint, answer):
        try:
            super().keep(identity, fingerprint, answer)
        except sqlite3.Error:
            pass


base.KEY_BYTES_MAX = 10_000
base.serve(StoreErrorForwards)
