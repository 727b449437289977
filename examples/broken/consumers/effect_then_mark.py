"""Marked as done some time after the effect: if the consumer dies in between, the message takes effect again.

That is at-least-once, and correct for this guarantee; it is not exactly-once.
"""

import time

from base import Consumer, main


class EffectThenMark(Consumer):
    def effect(self, id):
        super().effect(id)
        time.sleep(3)


main(EffectThenMark)
