"""Marked as done a while after the effect: a consumer that dies in between does it again.

That is at-least-once, and right where that is promised; it is not exactly-once.
"""

import time

from base import Consumer, main


class EffectThenMark(Consumer):
    def effect(self, id):
        super().effect(id)
        time.sleep(3)


main(EffectThenMark)
