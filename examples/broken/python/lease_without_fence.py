"""A lease without a fence (fencing token): a slow holder does not notice that another process has taken over.

Seen in nearly all code with an expiring lock, because the lease looks long enough.
Cost: after a pause longer than the lease (garbage collection, live migration, a full disk), both holders pay.
"""

from base import Service, serve


class LeaseWithoutFence(Service):
    def holds(self, identity, fence):
        return True


serve(LeaseWithoutFence)
