"""Nothing is wrong: effect, mark and acknowledgement are one transaction, so that a crash leaves all of them or none.

The effect is the counter effects:ID in Redis itself; nothing is sent to the ledger.
"""

from base import Consumer, Failed, main

COMMIT = """
if redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('SET', KEYS[1], 'done')
    redis.call('INCR', KEYS[2])
end
redis.call('XACK', KEYS[3], ARGV[1], ARGV[2])
"""


class ExactlyOnce(Consumer):
    def take(self, entry, id, payload):
        try:
            self.handle(id, payload)
        except Failed:
            self.fail(entry, id, payload)
            return
        keys = (self.mark(id), f"effects:{id}", self.stream)
        self.redis("EVAL", COMMIT, 3, *keys, self.name, entry)

    def effect(self, id):
        """Part of the transaction in `take`."""


main(ExactlyOnce)
