"""A duplicate that has waited long enough deletes the key, "so that it is not stuck".

Seen in middleware that unlocks in a `finally` block without a check of the owner.
Cost: the owner is alive and slow; the next retry finds the key free and pays a second time.
"""

import base


class WaiterDeletesClaim(base.Service):
    def give_up(self, identity):
        with self.transaction():
            self.sql.execute("DELETE FROM records WHERE identity = ? AND status IS NULL", (identity,))
        return super().give_up(identity)

    # No lease and no fence: the service relies on the lock alone.
    def holds(self, identity, fence):
        return True


# Long enough for the quick orders, and too short for the slow ones.
base.WAIT = 0.5
base.SLOW_STEPS = 200
base.LEASE = 60
base.serve(WaiterDeletesClaim)
