"""Fingerprints are unique across keys: the same order under another key "must be a duplicate".

Seen where keys were added to a service that detected duplicates by content before.
Cost: two customers, or one customer on two days, buy the same item, and the second order is rejected.
"""

from base import Refused, Service, serve


class IndexAcrossKeys(Service):
    def find(self, identity, fingerprint):
        same = "SELECT 1 FROM records WHERE fingerprint = ? AND identity <> ?"
        if self.sql.execute(same, (fingerprint, identity)).fetchone():
            raise Refused(409, "this order was placed already")
        return super().find(identity, fingerprint)


serve(IndexAcrossKeys)
