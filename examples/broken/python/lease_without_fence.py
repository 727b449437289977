"""A lease, and no fence: who was slow does not notice that somebody else has taken over.

Seen in nearly everything with a lock that expires, because the time looks long enough.
Cost: a pause (garbage collection, a moved machine, a full disk) past the lease, and both holders pay.
"""

from base import Service, serve


class LeaseWithoutFence(Service):
    def holds(self, identity, fence):
        return True


serve(LeaseWithoutFence)
